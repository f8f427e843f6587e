"""Whether all cells of a sweep spent the same budget, to within one step; and where a smaller one would have done."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from xmcbench.reporting.cells import SweepCell
from xmcbench.reporting.numbers import format_value
from xmcbench.reporting.text_table import TextTable
from xmcbench.trial.budget import CAPS
from xmcbench.trial.record import SCORED, Record


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
    for cell in cells:
        groups[cell.trial.dataset, tuple(cell.trial.budget.limits().items())].append(cell)
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
    for cell in cells:
        means = [_mean(cell, fraction, metric) for fraction in fractions]
        values = [mean for mean in means if mean is not None]
        if len(values) < len(fractions):
            incomplete.append(cell)
        else:
            rows.append((cell.label, values))
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
