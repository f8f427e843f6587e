"""The cells of a sweep as tables: batch, pool, what was spent, how good it got. A suite says in which columns.

Time to quality (AlgoPerf's measure): what trials had spent when they first reached a metric on held-out queries. The
curve of a record has a point for each evaluation; the first at or above the target counts. Seeds are averaged, with
Student's 95 % interval. Where a seed did not reach the target there is no mean: the number of seeds that did is shown.

Also whether all cells spent the same budget, to within one step; and where a smaller one would have done.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from xmcbench.reporting.notes import BELOW_POPULAR, POPULAR
from xmcbench.reporting.published import PublishedRow
from xmcbench.reporting.results import encoder_text, measured_rows, newest_versions, printed_row
from xmcbench.reporting.rows import CURVE_COSTS, Row, cell, costs, half_width, heading
from xmcbench.reporting.text_table import TextTable, format_value
from xmcbench.suite.tables import COLUMNS, TableShape, Target
from xmcbench.trial.budget import CAPS
from xmcbench.trial.record import SCORED, Record
from xmcbench.trial.trial import Trial

if TYPE_CHECKING:
    import numpy as np


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
    half = half_width(costs)
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
    outcomes: Iterable[tuple[Trial, Record | None]],
    entries: Mapping[str, str],
    idle: Callable[[Trial], frozenset[str]],
) -> list[SweepCell]:
    """The cells of a suite's trials, in its order. `entries` has the method's label of each trial's label.

    `idle` names the settings that mean nothing beside a trial's others.
    """
    seeds: dict[str, list[tuple[Trial, Record | None]]] = defaultdict(list)
    for trial, record in outcomes:
        seeds[trial.but_seed].append((trial, record))
    return [_cell(outcomes, entries, idle) for outcomes in seeds.values()]


def _cell(
    outcomes: Sequence[tuple[Trial, Record | None]], entries: Mapping[str, str], idle: Callable[[Trial], frozenset[str]]
) -> SweepCell:
    trial = outcomes[0][0]
    statuses = [str(record.status) if record else "not run" for _, record in outcomes]
    scored = [record for _, record in outcomes if record and record.status in SCORED]
    rows = [row for _, row in measured_rows(scored, newest_versions(scored))]
    unused = idle(trial)
    return SweepCell(
        entry=entries.get(trial.label, trial.label),
        trial=trial,
        settings={name: value for name, value in trial.config.items() if name not in unused},
        status=", ".join(dict.fromkeys(statuses)),
        records=tuple(scored),
        row=rows[0] if rows else Row("measured", trial.label),
    )


def cell_table(
    title: str, shape: TableShape, cells: Sequence[SweepCell], published: Sequence[PublishedRow] = ()
) -> TextTable:
    """The table of a suite: its cells, and below them the rows of the paper's table that it is shaped like."""
    shown = [cell for cell in cells if shape.methods is None or cell.entry in shape.methods]
    rows = [(cell.label, *(_text(cell, name) for name in shape.columns)) for cell in shown]
    theirs = [row for row in published if row.source == shape.beside]
    for row in theirs:
        name_of_row = f"{row.source}: {row.label}, {row.dataset}"
        rows.append((name_of_row, *(_printed(row, name) or "-" for name in shape.columns)))
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


def _printed(row: PublishedRow, name: str) -> str:
    """The printed value of a metric or a fact in a paper."""
    return cell(printed_row(row), name) if "@" in name or name in COLUMNS else str(row.settings.get(name, ""))


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
    tables = [_rank_table(dataset, some, metric, resampled) for (dataset, _), some in groups.items()]
    return [table for table in tables if table is not None]


def _rank_table(dataset: str, cells: Sequence[SweepCell], metric: str, resampled: ResampledRecord) -> TextTable | None:
    from xmcbench.evaluation.significance import rank_intervals, samples

    stored = [(cell, samples(cell.records, [resampled(record, [metric]) for record in cell.records])) for cell in cells]
    known = [(cell, own[metric]) for cell, own in stored if metric in own]
    if len(known) < 2:
        return None
    intervals = rank_intervals([own for _, own in known])
    ranked = sorted(
        zip((cell for cell, _ in known), intervals, strict=True), key=lambda pair: -pair[0].row.metrics[metric]
    )
    means = [cell.row.metrics[metric] for cell, _ in ranked]
    rows = tuple(
        (cell.label, f"{100 * mean:.2f}", str(1 + sum(other > mean for other in means)), f"{low} to {high}")
        for (cell, (low, high)), mean in zip(ranked, means, strict=True)
    )
    note = "95 %: the ranks that no pair of rows speaks against, all together (test queries and seeds, Holm)"
    return TextTable(f"ranks: {dataset}, {metric}", ("method", metric, "rank", "95 %"), rows, (note,))


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
    steps = {record.key: float(record.spent["largest_step"].get(limit, 0.0)) for record in trained}
    violations = [
        f"{record.trial.label} spent {record.spent[limit]:,.10g} of {allowed:,.10g}, its largest step "
        f"{steps[record.key]:,.10g}"
        for record in trained
        if not (allowed <= record.spent[limit] or record.spent.get("refused_pass") or record.spent.get("ended"))
        or record.spent[limit] > allowed + steps[record.key]
    ]
    if violations:
        return f"UNEQUAL {name}: " + "; ".join(violations)
    if not trained:
        return f"equal {name}: no trial has spent any"
    spent = [float(record.spent[limit]) for record in trained]
    early = [record for record in trained if record.spent[limit] < allowed]
    parts = [
        f"equal {name}: {len(spent)} trials with {allowed:,.10g} spent {min(spent):,.10g} to {max(spent):,.10g}, "
        f"none more than one step past it (the largest: {max(steps.values()):,.10g})"
    ]
    for what, some in {
        "a pass over the data no longer fitted": [record for record in early if not record.spent.get("ended")],
        "ended when their curves were flat": [record for record in early if record.spent.get("ended")],
        "spent none": [record for record in records if not record.spent[limit]],
    }.items():
        if some:
            parts.append(f"{what}: {', '.join(dict.fromkeys(record.trial.label for record in some))}")
    return "; ".join(parts)


TOLERANCE = 1e-9


def smaller_budget_tables(cells: Sequence[SweepCell], metric: str, evaluations: int) -> list[TextTable]:
    """One table per dataset and budget: `metric` of each cell at `evaluations` equally spaced fractions of the budget.

    A value is that of the first evaluation at or after the fraction, which is within one step. Ranks are in brackets.
    """
    groups: dict[tuple[str, tuple[tuple[str, float], ...]], list[SweepCell]] = defaultdict(list)
    for own in cells:
        groups[own.trial.dataset, tuple(own.trial.budget.limits().items())].append(own)
    fractions = [(i + 1) / evaluations for i in range(evaluations)]
    return [_table(dataset, dict(budget), group, metric, fractions) for (dataset, budget), group in groups.items()]


def value_at(curve: Sequence[dict[str, float]], fraction: float, metric: str) -> float | None:
    """`metric` at the first evaluation after `fraction` of the budget, in 0..1; None if there is none.

    >>> value_at([{"fraction": 0.26, "P@1": 0.3}, {"fraction": 0.51, "P@1": 0.4}], 0.5, "P@1")
    0.4
    """
    return next((point.get(metric) for point in curve if point.get("fraction", 0.0) >= fraction - TOLERANCE), None)


def _table(
    dataset: str, budget: dict[str, float], cells: list[SweepCell], metric: str, fractions: list[float]
) -> TextTable:
    rows: list[tuple[str, list[float]]] = []
    incomplete = []
    for own in cells:
        means = [_mean(own, fraction, metric) for fraction in fractions]
        values = [mean for mean in means if mean is not None]
        if len(values) < len(fractions):
            incomplete.append(own)
        else:
            rows.append((own.label, values))
    rows.sort(key=lambda row: (-row[1][-1], row[0]))
    columns = list(zip(*(values for _, values in rows), strict=True))
    ranked = (
        (label, *(_ranked(value, column) for value, column in zip(values, columns, strict=True)))
        for label, values in rows
    )
    notes = [
        f"{metric} on held-out training queries after the first step past each budget, rank in brackets.",
        "At the smaller budgets the learning rate has not decayed yet; in a run with that budget it would have.",
    ]
    if incomplete:
        notes.append(
            "without an evaluation at each budget: " + ", ".join(f"{c.label} ({c.status})" for c in incomplete)
        )
    title = f"leaderboard at each budget: {dataset}"
    return TextTable(
        title, ("method", *(_amounts(budget, fraction) for fraction in fractions)), tuple(ranked), tuple(notes)
    )


def _ranked(value: float, column: Sequence[float]) -> str:
    return f"{100 * value:.2f} ({1 + sum(other > value for other in column)})"


def _mean(cell: SweepCell, fraction: float, metric: str) -> float | None:
    """The mean over the seeds of a cell; None if a seed has no value."""
    values = [value_at(record.curve, fraction, metric) for record in cell.records]
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _amounts(budget: dict[str, float], fraction: float) -> str:
    """A fraction of each limit of a budget, as text.

    >>> _amounts({"encoder_tokens": 400_000, "peak_bytes": 1e9}, 0.25)
    '100.0k encoder tokens'
    """
    limits = ((name, limit) for name, limit in budget.items() if name not in CAPS)
    return ", ".join(f"{format_value(limit * fraction, 'count')} {name.replace('_', ' ')}" for name, limit in limits)
