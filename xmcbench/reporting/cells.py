"""The cells of a sweep as tables: batch, pool, what was spent, how good it got. A suite says in which columns.

Time to quality (AlgoPerf's measure): what trials had spent when they first reached a metric on held-out queries. The
curve of a record has a point for each evaluation; the first at or above the target counts. Seeds are averaged, with
Student's 95 % interval. Where a seed did not reach the target there is no mean: the number of seeds that did is shown.

Also whether all cells spent the same budget, to within one step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from xmcbench.reporting.notes import BELOW_POPULAR, POPULAR
from xmcbench.reporting.published import PublishedRow
from xmcbench.reporting.results import encoder_text, measured_rows, newest_versions, printed_row
from xmcbench.reporting.rows import CURVE_COSTS, Row, cell, costs, half_width, heading
from xmcbench.reporting.text_table import TextTable, format_value
from xmcbench.suite.tables import COLUMNS, TableShape, Target
from xmcbench.trial.record import SCORED, Record
from xmcbench.trial.trial import Trial

if TYPE_CHECKING:
    import numpy as np


UNITS = ("encoder_tokens", "device_seconds", "flops")


def time_to_quality(records: Sequence[Record], target: Target) -> str:
    """The cell of trials that differ in their seed alone: "12.1M (11.0M to 13.2M)", "2 of 3 seeds", "not reached".

    "-" where no curve has the metric: without a `selection` nothing is evaluated along the budget.
    """
    if not any(target.metric in point for record in records for point in record.curve):
        return "-"
    reached = (
        [point for point in record.curve if point.get(target.metric, -1.0) >= target.value] for record in records
    )
    costs = [points[0][target.unit] for points in reached if points]
    if len(costs) < len(records):
        return f"{len(costs)} of {len(records)} seeds" if costs else "not reached"
    half = half_width(costs) if len(costs) > 1 else 0.0
    mean, low, high = (
        format_value(cost, COLUMNS[target.unit].kind)
        for cost in (fmean(costs), max(0.0, fmean(costs) - half), fmean(costs) + half)
    )
    return f"{mean} ({low} to {high})" if len(costs) > 1 else mean


def time_to_quality_table(cells: Sequence[SweepCell], target: Target) -> TextTable:
    """What the trials of each cell had spent when they first reached the target: tokens, seconds, operations."""
    text = f"{target.metric}={100 * target.value:g}"
    columns = [f"to {text} in {unit}" for unit in UNITS]
    note = (
        f"spent at the first evaluation with {target.metric} of {100 * target.value:g} or more on held-out training "
        "queries; means over seeds with 95 % intervals; -: without evaluations along the budget"
    )
    table = cell_table(f"spent to {text}", TableShape(columns=columns), cells)
    return replace(table, headings=("method", *(CURVE_COSTS[unit] for unit in UNITS)), notes=(note,))


POOL = "negative_pool"
SHOWN_COSTS = ("encoder_tokens", "flops", "device_seconds", "peak_bytes")
OUTSIDE = ("overrun", "unspent")  # how a trial missed its budget
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

    @property
    def label(self) -> str:
        """The method's label and the point of the sweep."""
        return self.trial.label


def cells(
    outcomes: Iterable[tuple[Trial, Record | None]], entries: Mapping[str, str], idle: Callable[[Trial], frozenset[str]]
) -> list[SweepCell]:
    """The cells of a suite's trials, in its order. `entries` has the method's label of each trial's label.

    `idle` names the settings that mean nothing beside a trial's others.
    """
    seeds: dict[str, list[tuple[Trial, Record | None]]] = defaultdict(list)
    for trial, record in outcomes:
        seeds[trial.but_seed].append((trial, record))
    found = []
    for own in seeds.values():
        trial, unused = own[0][0], idle(own[0][0])
        statuses = [str(record.status) if record else "not run" for _, record in own]
        scored = [record for _, record in own if record and record.status in SCORED]
        rows = [row for _, row in measured_rows(scored, newest_versions(scored))]
        found.append(
            SweepCell(
                entry=entries.get(trial.label, trial.label),
                trial=trial,
                settings={name: value for name, value in trial.config.items() if name not in unused},
                status=", ".join(dict.fromkeys(statuses)),
                records=tuple(scored),
                row=rows[0] if rows else Row("measured", trial.label),
            )
        )
    return found


def cell_table(
    title: str, shape: TableShape, cells: Sequence[SweepCell], published: Sequence[PublishedRow] = ()
) -> TextTable:
    """The table of a suite: its cells, and below them the rows of the paper's table that it is shaped like."""
    shown = [cell for cell in cells if shape.methods is None or cell.entry in shape.methods]
    rows = [(cell.label, *(_text(cell, name) for name in shape.columns)) for cell in shown]
    theirs = [row for row in published if row.source == shape.beside]
    for row in theirs:
        name_of_row = f"{row.source}: {row.label}, {row.dataset}"
        printed = printed_row(row)
        values = (
            cell(printed, name) if "@" in name or name in COLUMNS else str(row.settings.get(name, ""))
            for name in shape.columns
        )
        rows.append((name_of_row, *(value or "-" for value in values)))
    notes = []
    if POOL in shape.columns:
        notes.append("pool: labels that a step's queries are scored against, mean over steps")
    if theirs:
        notes.append(f"rows of {shape.beside} are as printed there, on the datasets and budgets of the paper")
    headings = ("method", *(_heading(name) for name in shape.columns))
    return TextTable(title, headings, tuple(rows), tuple(notes))


def cost_table(cells: Sequence[SweepCell], metric: str) -> TextTable:
    """Quality against cost, method by method and the cheapest cell first; budgets may differ.

    An outside program has no counted operations: device time is what its cost and an encoder's have in common.
    """
    order = {entry: place for place, entry in enumerate(dict.fromkeys(cell.entry for cell in cells))}
    scored = sorted((cell for cell in cells if metric in cell.row.metrics), key=lambda e: (order[e.entry], *_cost(e)))
    rows = []
    for candidate in scored:
        rivals = [other for other in scored if other.entry == candidate.entry]
        of_method = _undominated(candidate, rivals, metric)
        mark = "all" if _undominated(candidate, scored, metric) else "method" if of_method else ""
        label = candidate.label + BELOW_POPULAR * _below_popular(candidate, scored, metric)
        rows.append((label, *(_text(candidate, name) for name in (metric, *SHOWN_COSTS, *OUTSIDE)), mark))
    headings = ("method", metric, *(_heading(name) for name in (*SHOWN_COSTS, *OUTSIDE)), "best of")
    notes = [
        f"best of: no cell of the method, or of all methods, has as high a {metric} for less: in operations,",
        "or in device time where one of two cells has none that are counted, as an outside program",
    ]
    if any(row[0].endswith(BELOW_POPULAR) for row in rows):
        notes.append(f"{BELOW_POPULAR}: trained, yet not better than the most frequent labels (`popular`)")
    return TextTable(f"quality against cost: {metric}", headings, tuple(rows), tuple(notes))


def _below_popular(cell: SweepCell, others: Sequence[SweepCell], metric: str) -> bool:
    """Whether a trained cell could be, and is not, above the labels ranked by frequency alone, on the same dataset."""
    same = [other for other in others if other.trial.dataset == cell.trial.dataset]
    popular = [other.row.metrics[metric] for other in same if other.trial.method == POPULAR]
    value = cell.row.metrics[metric]
    return bool(cell.row.facts.get("steps") and popular) and value <= max(popular) and value < 1


def _cost(cell: SweepCell) -> tuple[float, ...]:
    known = costs(cell.row)
    return tuple(known.get(name, 0.0) for name in COMMON_COSTS)


def _undominated(cell: SweepCell, others: Sequence[SweepCell], metric: str) -> bool:
    """Whether no other on the same dataset is as good for less, or better for as much."""

    def beats(other: SweepCell) -> bool:
        gain = other.row.metrics[metric] - cell.row.metrics[metric]
        both_known = (own - its for own, its in zip(_cost(cell), _cost(other), strict=True) if own and its)
        saved = next(both_known, -1.0)  # without a common cost neither beats the other
        return gain >= 0 and saved >= 0 and (gain > 0 or saved > 0)

    return not any(beats(other) for other in others if other.trial.dataset == cell.trial.dataset)


def _text(sweep_cell: SweepCell, name: str) -> str:
    if target := Target.parse(name):
        return time_to_quality(sweep_cell.records, target) if sweep_cell.records else sweep_cell.status
    if "@" in name and name not in sweep_cell.row.metrics:
        return sweep_cell.status
    if name not in sweep_cell.settings:
        return cell(sweep_cell.row, name) or "-" if "@" in name or name in COLUMNS else "-"
    value = sweep_cell.settings[name]
    if isinstance(value, dict) and "name" in value:  # an encoder
        value = encoder_text(value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _heading(name: str) -> str:
    return "negatives" if name == "negatives_per_query" else heading(name)


# (record, names of metrics) -> each metric on resamples of the test queries, [B]; empty where none are stored
ResampledRecord = Callable[[Record, Sequence[str]], Mapping[str, "np.ndarray"]]


def rank_tables(cells: Sequence[SweepCell], metric: str, resampled: ResampledRecord) -> list[TextTable]:
    """A table for each dataset and budget on which two or more cells have the metric and its values on resamples."""
    groups: dict[tuple[str, str], list[SweepCell]] = defaultdict(list)
    for own in cells:
        if metric in own.row.metrics:
            groups[own.trial.dataset, str(own.trial.budget.limits())].append(own)
    return [table for group in groups.values() for table in _rank_table(group, metric, resampled)]


def _rank_table(cells: Sequence[SweepCell], metric: str, resampled: ResampledRecord) -> Iterator[TextTable]:
    from xmcbench.evaluation.significance import rank_intervals, samples

    stored = [samples(cell.records, [resampled(record, [metric]) for record in cell.records]) for cell in cells]
    known = [(cell, own[metric]) for cell, own in zip(cells, stored, strict=True) if metric in own]
    if len(known) < 2:
        return
    intervals = rank_intervals([own for _, own in known])
    means = [cell.row.metrics[metric] for cell, _ in known]
    ranked = sorted(zip(means, known, intervals, strict=True), key=lambda row: -row[0])
    rows = tuple(
        (cell.label, f"{100 * mean:.2f}", str(1 + sum(other > mean for other in means)), f"{low} to {high}")
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
    groups: dict[float, list[Record]] = {}
    for record in records:
        if record.status in SCORED:
            groups.setdefault(float(record.trial.budget.limits()[limit]), []).append(record)
    return [_check(group, limit, allowed) for allowed, group in groups.items()]


def _check(records: Sequence[Record], limit: str, allowed: float) -> str:
    name = limit.replace("_", " ")
    trained = [record for record in records if record.spent[limit]]
    early = [record for record in trained if record.spent[limit] < allowed]
    flat = [record for record in early if record.spent.get("ended")]
    refused = [record for record in early if not record.spent.get("ended")]
    wrong = [record for record in trained if record.spent[limit] > allowed + _largest_step(record, limit)]
    wrong += [record for record in refused if not record.spent.get("refused_pass")]
    if wrong:
        return f"UNEQUAL {name}: " + "; ".join(
            f"{record.trial.label} spent {record.spent[limit]:,.10g} of {allowed:,.10g}, its largest step "
            f"{_largest_step(record, limit):,.10g}"
            for record in wrong
        )
    if not trained:
        return f"equal {name}: no trial has spent any"
    spent, largest = [record.spent[limit] for record in trained], max(_largest_step(own, limit) for own in trained)
    parts = [
        f"equal {name}: {len(spent)} trials with {allowed:,.10g} spent {min(spent):,.10g} to {max(spent):,.10g}, "
        f"none more than one step past it (the largest: {largest:,.10g})"
    ]
    for what, some in {
        "a pass over the data no longer fitted": refused,
        "ended when their curves were flat": flat,
        "spent none": [record for record in records if not record.spent[limit]],
    }.items():
        if some:
            parts.append(f"{what}: {', '.join(dict.fromkeys(record.trial.label for record in some))}")
    return "; ".join(parts)


def _largest_step(record: Record, limit: str) -> float:
    return float(record.spent["largest_step"].get(limit, 0.0))
