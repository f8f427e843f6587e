"""The ranks of a suite's cells on each dataset, with intervals over test queries and seeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from xmcbench.reporting.cells import SweepCell
from xmcbench.reporting.text_table import TextTable
from xmcbench.trial.record import Record

if TYPE_CHECKING:
    import numpy as np

Replicates = Callable[[Record], "np.ndarray | None"]  # a metric on resamples of the test queries, [B]; None: not stored


def rank_tables(cells: Sequence[SweepCell], metric: str, replicates: Replicates) -> list[TextTable]:
    """A table for each dataset and budget on which two or more cells have the metric and its values on resamples."""
    groups: dict[tuple[str, str], list[SweepCell]] = defaultdict(list)
    for cell in cells:
        if metric in cell.row.metrics:
            groups[cell.trial.dataset, str(cell.trial.budget.limits())].append(cell)
    tables = [_table(dataset, cells, metric, replicates) for (dataset, _), cells in groups.items()]
    return [table for table in tables if table is not None]


def _table(dataset: str, cells: Sequence[SweepCell], metric: str, replicates: Replicates) -> TextTable | None:
    import numpy as np

    from xmcbench.evaluation.power import rank_intervals

    known, values = [], []
    for cell in cells:
        of_seeds = [replicates(record) for record in cell.records]
        stored = [replicates_B for replicates_B in of_seeds if replicates_B is not None]
        if len(stored) == len(of_seeds):
            known.append(cell)
            values.append(np.stack(stored))
    if len(known) < 2:
        return None
    ranked = sorted(zip(known, rank_intervals(values), strict=True), key=lambda pair: -pair[0].row.metrics[metric])
    means = [cell.row.metrics[metric] for cell, _ in ranked]
    rows = tuple(
        (cell.label, f"{100 * mean:.2f}", str(1 + sum(other > mean for other in means)), f"{low} to {high}")
        for (cell, (low, high)), mean in zip(ranked, means, strict=True)
    )
    note = "95 %: of the rank, over resamples of the test queries and of the seeds"
    return TextTable(f"ranks: {dataset}, {metric}", ("method", metric, "rank", "95 %"), rows, (note,))
