"""The cells of a sweep as tables: batch, pool, what was spent, how good it got. A suite says in which columns.

Time to quality (AlgoPerf's measure): what trials had spent at the first evaluation that reached a metric on held-out
queries, mean over seeds with Student's 95 % interval. Also whether all cells spent the same budget, to within one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from xmcbench.reporting.make_rows import encoder_text, measured_rows, newest_versions
from xmcbench.reporting.notes import BELOW_POPULAR, is_below_popular
from xmcbench.reporting.paper_rows import PublishedRow
from xmcbench.reporting.printed_rows import printed_row
from xmcbench.reporting.rows import CURVE_COSTS, Row, cell, costs, grouped, half_width, heading
from xmcbench.reporting.text_table import TextTable, format_value
from xmcbench.suite.tables import COLUMNS, TableShape, Target
from xmcbench.trial.alike import newest_code
from xmcbench.trial.budget import excused_step, over_budget
from xmcbench.trial.facts import Ended, why_ended, worth
from xmcbench.trial.record import SCORED, Record
from xmcbench.trial.trial import Trial

if TYPE_CHECKING:
    import numpy as np


UNITS = ("encoder_tokens", "device_seconds", "flops")


def time_to_quality(records: Sequence[Record], target: Target) -> str:
    """The cell of trials that differ in their seed alone: "12.1M (11.0M to 13.2M)", "2 of 3 seeds", "not reached".

    There is no mean where a seed did not reach the target; "-" where no curve has the metric, without a `selection`, or
    where nobody counted the unit.
    """
    curves = [record.counted_curve for record in records]
    if not any({target.metric, target.unit} <= point.keys() for curve in curves for point in curve):
        return "-"
    lower = {name for record in records for name in record.lower_is_better}
    least = worth(target.metric, target.value, lower)
    known = ([point for point in curve if target.metric in point] for curve in curves)
    reached = ([one for one in own if worth(target.metric, one[target.metric], lower) >= least] for own in known)
    costs = [points[0][target.unit] for points in reached if points]
    if len(costs) < len(records):
        return f"{len(costs)} of {len(records)} seeds" if costs else "not reached"
    mean, half = fmean(costs), half_width(costs) if len(costs) > 1 else 0.0
    text, low, high = (
        format_value(cost, COLUMNS[target.unit].kind) for cost in (mean, max(0.0, mean - half), mean + half)
    )
    return f"{text} ({low} to {high})" if len(costs) > 1 else text


def time_to_quality_table(cells: Sequence[SweepCell], target: Target) -> TextTable:
    """What the trials of each cell had spent when they first reached the target: tokens, seconds, operations."""
    text = f"{target.metric}={100 * target.value:g}"
    columns = [f"to {text} in {unit}" for unit in UNITS]
    lower = any(record.is_lower(target.metric) for cell in cells for record in cell.records)
    bound = f"{100 * target.value:g} or {'less' if lower else 'more'}"
    note = (
        f"spent at the first evaluation with {target.metric} of {bound} on held-out training queries; means "
        "over seeds with 95 % intervals; -: without evaluations along the budget"
    )
    table = cell_table(f"spent to {text}", TableShape(columns=columns), cells)
    return replace(table, headings=("method", *(CURVE_COSTS[unit] for unit in UNITS)), notes=(note,))


SHOWN_COSTS = ("encoder_tokens", "flops", "device_seconds", "peak_bytes", "overrun", "unspent")
COMMON_COSTS = ("flops", "device_hours")  # two cells are compared by the first of these that both have


@dataclass(frozen=True)
class SweepCell:
    """One method with one configuration on one dataset under one budget. Metrics are means over its seeds."""

    entry: str  # the method's label in the suite
    trial: Trial  # of its first seed
    settings: dict[str, Any]  # those that mean something
    status: str  # of its seeds; "not run"
    records: tuple[Record, ...]  # with metrics
    row: Row  # what they come to


def sweep_cells(
    outcomes: Iterable[tuple[Trial, Record | None]], entries: Mapping[str, str], idle: Callable[[Trial], frozenset[str]]
) -> list[SweepCell]:
    """The cells of a suite's trials, in its order. `entries` has the method's label of each trial's label.

    `idle` names the settings that mean nothing beside a trial's others.
    """
    found = []
    for own in grouped(outcomes, lambda outcome: outcome[0].but_seed).values():
        trial = own[0][0]
        entry, unused = entries.get(trial.label, trial.label), idle(trial)
        settings = {name: value for name, value in trial.config.items() if name not in unused}
        statuses = dict.fromkeys(str(record.status) if record else "not run" for _, record in own)
        scored = tuple(newest_code(record for _, record in own if record and record.status in SCORED))
        rows = measured_rows(scored, newest_versions(scored)) or [Row("measured", trial.label)]
        found.append(SweepCell(entry, trial, settings, ", ".join(statuses), scored, rows[0]))
    return found


def cell_table(
    title: str, shape: TableShape, cells: Sequence[SweepCell], published: Sequence[PublishedRow] = ()
) -> TextTable:
    """The table of a suite: its cells, and below them the rows of the paper's table that it is shaped like."""
    shown = [cell for cell in cells if shape.methods is None or cell.entry in shape.methods]
    rows = [(cell.trial.label, *(_text(cell, name) for name in shape.columns)) for cell in shown]
    notes = []
    if "negative_pool" in shape.columns:
        notes.append("pool: labels that a step's queries are scored against, mean over steps")
    if theirs := [row for row in published if row.source == shape.beside]:
        notes.append(f"rows of {shape.beside} are as printed there, on the datasets and budgets of the paper")
    for row in theirs:
        printed, settings = printed_row(row), {name: str(value) for name, value in row.settings.items()}
        known = (cell(printed, name) if _is_known(name) else settings.get(name) for name in shape.columns)
        rows.append((f"{row.source}: {row.label}, {row.dataset}", *(value or "-" for value in known)))
    headings = ("negatives" if name == "negatives_per_query" else heading(name) for name in shape.columns)
    return TextTable(title, ("method", *headings), tuple(rows), tuple(notes))


def cost_table(cells: Sequence[SweepCell], metric: str) -> TextTable:
    """Quality against cost, method by method and the cheapest cell first; budgets may differ.

    An outside program has no counted operations: device time is what its cost and an encoder's have in common.
    """
    order = list(dict.fromkeys(cell.entry for cell in cells))
    scored = [cell for cell in cells if metric in cell.row.metrics]
    rows = []
    for own in sorted(scored, key=lambda cell: (order.index(cell.entry), *_cost(cell))):
        same = [other for other in scored if other.trial.dataset == own.trial.dataset]
        better = [other.entry for other in same if _beats(other, own, metric)]
        mark = ("" if own.entry in better else "method") if better else "all"
        label = own.trial.label + BELOW_POPULAR * is_below_popular(own.row, [other.row for other in same], metric)
        rows.append((label, *(_text(own, name) for name in (metric, *SHOWN_COSTS)), mark))
    headings = ("method", *(heading(name) for name in (metric, *SHOWN_COSTS)), "best of")
    notes = [
        f"best of: no cell of the method, or of all methods, has as good a {metric} for less: in operations,",
        "or in device time where one of two cells has none that are counted, as an outside program",
    ]
    if any(row[0].endswith(BELOW_POPULAR) for row in rows):
        notes.append(f"{BELOW_POPULAR}: trained, yet not better than the most frequent labels (`popular`)")
    return TextTable(f"quality against cost: {metric}", headings, tuple(rows), tuple(notes))


def _cost(cell: SweepCell) -> tuple[float, ...]:
    known = costs(cell.row)
    return tuple(known.get(name, 0.0) for name in COMMON_COSTS)


def _beats(first: SweepCell, second: SweepCell, metric: str) -> bool:
    """Whether the first is as good for less, or better for as much; not without a common cost."""
    gain = first.row.worth(metric) - second.row.worth(metric)
    saved = next((own - its for its, own in zip(_cost(first), _cost(second), strict=True) if own and its), -1.0)
    return gain >= 0 and saved >= 0 and (gain > 0 or saved > 0)


def _text(sweep_cell: SweepCell, name: str) -> str:
    if target := Target.parse(name):
        return time_to_quality(sweep_cell.records, target) if sweep_cell.records else sweep_cell.status
    if "@" in name and name not in sweep_cell.row.metrics:
        return sweep_cell.status
    if name not in sweep_cell.settings:
        return (cell(sweep_cell.row, name) if _is_known(name) else "") or "-"
    value = sweep_cell.settings[name]
    if isinstance(value, dict) and "name" in value:  # an encoder
        value = encoder_text(value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _is_known(name: str) -> bool:
    return "@" in name or name in COLUMNS


# (record, names of metrics) -> each metric on resamples of the test queries, [B]; empty where none are stored
ResampledRecord = Callable[[Record, Sequence[str]], Mapping[str, "np.ndarray"]]


def rank_tables(cells: Sequence[SweepCell], metric: str, resampled: ResampledRecord) -> list[TextTable]:
    """A table for each dataset and budget on which two or more cells have the metric and its values on resamples."""
    scored = (cell for cell in cells if metric in cell.row.metrics)
    groups = grouped(scored, lambda cell: (cell.trial.dataset, str(cell.trial.budget.limits())))
    return [table for group in groups.values() for table in _rank_table(group, metric, resampled)]


def _rank_table(cells: Sequence[SweepCell], metric: str, resampled: ResampledRecord) -> Iterator[TextTable]:
    from xmcbench.evaluation.significance import rank_intervals, samples

    stored = [samples(cell.records, [resampled(record, [metric]) for record in cell.records]) for cell in cells]
    known = [(cell, own[metric]) for cell, own in zip(cells, stored, strict=True) if metric in own]
    if len(known) < 2:
        return
    lower = any(record.is_lower(metric) for cell, _ in known for record in cell.records)
    intervals = rank_intervals([own for _, own in known], lower_is_better=lower)
    means = [cell.row.worth(metric) for cell, _ in known]
    ranked = sorted(zip(means, known, intervals, strict=True), key=lambda row: -row[0])
    rows = tuple(
        (cell.trial.label, f"{100 * abs(mean):.2f}", str(1 + sum(other > mean for other in means)), f"{low} to {high}")
        for mean, (cell, _), (low, high) in ranked
    )
    note = "95 %: the ranks that no pair of rows speaks against, all together (test queries and seeds, Holm)"
    title = f"ranks: {cells[0].trial.dataset}, {metric}"
    yield TextTable(title, ("method", metric, "rank", "95 %"), rows, (note,))


def check_equal_budgets(records: Sequence[Record], limit: str) -> list[str]:
    """A line for each budget, of the records with metrics: what its trials spent of the limit at which all must stop.

    A trial must have spent at least the limit, or have ended before a pass over the data that did not fit, or because
    its curve was flat, and at most one of its own steps more. A line that begins with UNEQUAL names those that did not.
    """
    scored = (record for record in records if record.status in SCORED)
    groups = grouped(scored, lambda record: float(record.trial.budget.limits()[limit]))
    return [_check(group, limit, amount) for amount, group in groups.items()]


def _check(records: Sequence[Record], limit: str, amount: float) -> str:
    name = limit.replace("_", " ")
    trained = [record for record in records if record.spent[limit]]
    early = [record for record in trained if record.spent[limit] < amount]
    ended = grouped(early, lambda record: why_ended(record.spent))
    steps = {record.key: excused_step(limit, record.spent) for record in trained}
    wrong = [record for record in trained if limit in over_budget(record.trial.budget, record.spent)]
    wrong += ended.get(None, [])
    if wrong:
        return f"UNEQUAL {name}: " + "; ".join(
            f"{own.trial.label} spent {own.spent[limit]:,.10g} of {amount:,.10g}, "
            f"one step may take {steps[own.key]:,.10g} more"
            for own in wrong
        )
    if not trained:
        return f"equal {name}: no trial has spent any"
    spent, largest = [record.spent[limit] for record in trained], max(steps.values())
    parts = [
        f"equal {name}: {len(spent)} trials with {amount:,.10g} spent {min(spent):,.10g} to {max(spent):,.10g}, "
        f"none more than one step past it (the largest: {largest:,.10g})"
    ]
    for what, some in {
        "a pass over the data no longer fitted": ended.get(Ended.PASS_TOO_LARGE),
        "a later stage no longer fitted": ended.get(Ended.STAGE_TOO_LARGE),
        "ended when their curves were flat": ended.get(Ended.FLAT),
        "spent none": [record for record in records if not record.spent[limit]],
    }.items():
        if some:
            parts.append(f"{what}: {', '.join(dict.fromkeys(record.trial.label for record in some))}")
    return "; ".join(parts)
