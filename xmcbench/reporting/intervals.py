"""The uncertainty of a group's rows: intervals of means over seeds, and rows not significantly below the best.

Every trial stores its metrics on the same resamples of the test queries, so rows are compared without predictions and
without the dataset. The rule is that of `xmcbench/evaluation/significance.py`. B resamples.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from xmcbench.reporting.rows import Row
from xmcbench.trial.record import Record

if TYPE_CHECKING:
    import numpy as np

    from xmcbench.evaluation.significance import Sample

# (key of a trial, names of metrics) -> the stored replicates [B] of each metric; empty where none are stored
Resampled = Callable[[str, Sequence[str]], Mapping[str, "np.ndarray"]]


def with_uncertainty(
    rows: Sequence[Row], metrics: Sequence[str], records: Mapping[str, Record], resampled: Resampled
) -> list[Row]:
    """The `rows` of a group, with intervals of means over seeds and the `metrics` in which each ties with the best.

    Rows without rank, and rows of which a trial has no replicates, are not compared. Nor are rows with fewer replicates
    than others: an installed xmcbench has those of accepted trials in fewer numbers. `records` are by key.
    """
    ranked = [row for row in rows if row.rank is not None]
    if len(ranked) < 2 and not any(row.std for row in ranked):
        return list(rows)
    from xmcbench.evaluation.significance import estimate, samples, tied_with_best

    of_row: dict[tuple[str, ...], Mapping[str, Sample]] = {
        row.keys: samples([records[key] for key in row.keys], [resampled(key, metrics) for key in row.keys])
        for row in ranked
    }
    tied: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for metric in metrics:
        found = {row.keys: of_row[row.keys].get(metric) for row in ranked if metric in row.metrics}
        sizes = {keys: sample.replicates_SB.shape[1] for keys, sample in found.items() if sample}
        compared = [keys for keys, size in sizes.items() if size == max(sizes.values())]
        if len(compared) > 1:
            marks = tied_with_best([of_row[keys][metric] for keys in compared])
            for keys, same in zip(compared, marks, strict=True):
                tied[keys] |= {metric} if same else set()

    def known(row: Row) -> Row:
        if row.rank is None:
            return row
        own = of_row[row.keys].items() if row.std else ()
        intervals = {metric: estimate(sample).interval for metric, sample in own if metric in row.metrics}
        return replace(row, tied=frozenset(tied[row.keys]), intervals=row.intervals | intervals)

    return [known(row) for row in rows]
