"""The leaderboard at each smaller budget, from what a run saw along its way: quality on held-out training queries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from xmcbench.reporting.cells import SweepCell
from xmcbench.reporting.numbers import format_value
from xmcbench.reporting.text_table import TextTable

TOLERANCE = 1e-9


def smaller_budget_tables(found: Sequence[SweepCell], metric: str, evaluations: int) -> list[TextTable]:
    """A grid for each dataset and budget: what each cell had reached at each of the `evaluations` parts of the budget.

    A figure is that of the first look at or past the level, which is within one step of it. Ranks are in brackets.
    """
    groups: dict[tuple[str, tuple[tuple[str, float], ...]], list[SweepCell]] = defaultdict(list)
    for cell in found:
        groups[cell.trial.dataset, tuple(cell.trial.budget.limits().items())].append(cell)
    levels = [(i + 1) / evaluations for i in range(evaluations)]
    return [_table(dataset, dict(budget), alike, metric, levels) for (dataset, budget), alike in groups.items()]


def reached(curve: Sequence[dict[str, float]], level: float, metric: str) -> float | None:
    """The figure of the first look that had spent `level` of the budget, a fraction in 0..1; None where none had.

    >>> reached([{"fraction": 0.26, "P@1": 0.3}, {"fraction": 0.51, "P@1": 0.4}], 0.5, "P@1")
    0.4
    """
    return next((point.get(metric) for point in curve if point.get("fraction", 0.0) >= level - TOLERANCE), None)


def _table(
    dataset: str, budget: dict[str, float], found: list[SweepCell], metric: str, levels: list[float]
) -> TextTable:
    rows: list[tuple[str, list[float]]] = []
    unseen = []
    for cell in found:
        figures = [_mean(cell, level, metric) for level in levels]
        if None in figures:
            unseen.append(cell)
        else:
            rows.append((cell.label, [figure for figure in figures if figure is not None]))
    rows.sort(key=lambda row: (-row[1][-1], row[0]))
    columns = list(zip(*(figures for _, figures in rows), strict=True))
    ranked = (
        (label, *(_ranked(figure, column) for figure, column in zip(figures, columns, strict=True)))
        for label, figures in rows
    )
    notes = [
        f"{metric} on held-out training queries, rank in brackets; each figure at the first step past its part of the "
        "budget.",
        "A part of the way has the learning rate of that part of the way: a run of that budget would have decayed it.",
    ]
    if unseen:
        notes.append("without a look at every level: " + ", ".join(f"{c.label} ({c.status})" for c in unseen))
    title = f"leaderboard at each budget: {dataset}"
    return TextTable(title, ("method", *(_level(budget, level) for level in levels)), tuple(ranked), tuple(notes))


def _ranked(figure: float, column: Sequence[float]) -> str:
    return f"{100 * figure:.2f} ({1 + sum(other > figure for other in column)})"


def _mean(cell: SweepCell, level: float, metric: str) -> float | None:
    found = [reached(record.curve, level, metric) for record in cell.records]
    known = [figure for figure in found if figure is not None]
    return fmean(known) if known and len(known) == len(found) else None


def _level(budget: dict[str, float], level: float) -> str:
    """How much of each limit a part of the budget is.

    >>> _level({"encoder_tokens": 400_000, "peak_bytes": 1e9}, 0.25)
    '100.0k encoder tokens'
    """
    spent = ((name, limit) for name, limit in budget.items() if name != "peak_bytes")
    return ", ".join(f"{format_value(limit * level, 'count')} {name.replace('_', ' ')}" for name, limit in spent)
