"""Time to quality (AlgoPerf's measure): what trials had spent when they first reached a metric on held-out queries.

The curve of a record has a point for each evaluation; the first at or above the target counts. Seeds are averaged, with
Student's 95 % interval. Where a seed did not reach the target there is no mean: the number of seeds that did is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt
from statistics import fmean, stdev

from xmcbench.reporting.costs import CURVE_COSTS
from xmcbench.reporting.numbers import format_value
from xmcbench.reporting.text_table import TextTable
from xmcbench.suite.tables import COLUMNS, Target
from xmcbench.trial.record import Record

UNITS = ("encoder_tokens", "device_seconds", "flops")
NOT_REACHED = "not reached"


def spent_until(curve: Sequence[dict[str, float]], target: Target) -> float | None:
    """What was spent, in the target's unit, at the first evaluation that reached it; None where none did.

    >>> curve = [{"encoder_tokens": 10.0, "P@1": 0.3}, {"encoder_tokens": 20.0, "P@1": 0.5}]
    >>> spent_until(curve, Target("P@1", 0.4)), spent_until(curve, Target("P@1", 0.6))
    (20.0, None)
    """
    reached = (point for point in curve if point.get(target.metric, -1.0) >= target.value)
    point = next(reached, None)
    return None if point is None else point[target.unit]


def time_to_quality(records: Sequence[Record], target: Target) -> str:
    """The cell of trials that differ in their seed alone: "12.1M (11.0M to 13.2M)", "2 of 3 seeds", "not reached".

    "-" where no curve has the metric: without a `selection` nothing is evaluated along the budget.
    """
    evaluated = [record for record in records if any(target.metric in point for point in record.curve)]
    if not evaluated:
        return "-"
    costs = [spent for record in evaluated if (spent := spent_until(record.curve, target)) is not None]
    if not costs:
        return NOT_REACHED
    if len(costs) < len(records):
        return f"{len(costs)} of {len(records)} seeds"
    kind = COLUMNS[target.unit].kind
    text = format_value(fmean(costs), kind)
    if len(costs) == 1:
        return text
    from scipy.stats import t

    half = float(t.ppf(0.975, len(costs) - 1)) * stdev(costs) / sqrt(len(costs))
    return f"{text} ({format_value(max(0.0, fmean(costs) - half), kind)} to {format_value(fmean(costs) + half, kind)})"


def time_to_quality_table(groups: Iterable[tuple[str, Sequence[Record]]], target: Target) -> TextTable:
    """What the trials of each label had spent when they first reached the target: tokens, seconds, operations."""
    units = [Target(target.metric, target.value, unit) for unit in UNITS]
    rows = tuple((label, *(time_to_quality(records, unit) for unit in units)) for label, records in groups)
    note = (
        f"spent at the first evaluation with {target.metric} of {100 * target.value:g} or more on held-out training "
        "queries; means over seeds with 95 % intervals; -: without evaluations along the budget"
    )
    headings = ("method", *(CURVE_COSTS[unit] for unit in UNITS))
    return TextTable(f"spent to {target.metric}={100 * target.value:g}", headings, rows, (note,))
