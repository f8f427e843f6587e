"""The ranks of a suite's cells on each dataset, with intervals from the comparisons of all pairs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from xmcbench.reporting.cells import SweepCell
from xmcbench.reporting.text_table import TextTable
from xmcbench.trial.record import Record

if TYPE_CHECKING:
    import numpy as np

# (record, names of metrics) -> each metric on resamples of the test queries, [B]; empty where none are stored
Resampled = Callable[[Record, Sequence[str]], Mapping[str, "np.ndarray"]]


def rank_tables(cells: Sequence[SweepCell], metric: str, resampled: Resampled) -> list[TextTable]:
    """A table for each dataset and budget on which two or more cells have the metric and its values on resamples."""
    groups: dict[tuple[str, str], list[SweepCell]] = defaultdict(list)
    for cell in cells:
        if metric in cell.row.metrics:
            groups[cell.trial.dataset, str(cell.trial.budget.limits())].append(cell)
    tables = [_table(dataset, cells, metric, resampled) for (dataset, _), cells in groups.items()]
    return [table for table in tables if table is not None]


def _table(dataset: str, cells: Sequence[SweepCell], metric: str, resampled: Resampled) -> TextTable | None:
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
