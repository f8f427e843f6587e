"""Ties: the rows that are not significantly different from the best row of their group, by the paired bootstrap.

Every trial stores its metrics on the same resamples of the test queries, so rows are compared without predictions and
without the dataset. B resamples, R rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from xmcbench.reporting.rows import Row

if TYPE_CHECKING:
    import numpy as np

# (key of a trial, names of metrics) -> the stored replicates [B] of each metric; empty where none are stored
Resampled = Callable[[str, Sequence[str]], Mapping[str, "np.ndarray"]]


def with_ties(rows: Sequence[Row], metrics: Sequence[str], resampled: Resampled) -> list[Row]:
    """The `rows` of a group, with the `metrics` in which each ties with the best, and intervals of means over seeds."""
    ranked = [row for row in rows if row.rank is not None]
    if len(ranked) < 2 and not any(row.std for row in ranked):
        return list(rows)
    replicates = _Replicates(metrics, resampled)
    known = [replace(row, intervals=replicates.intervals(row)) if row.std and row.rank else row for row in rows]
    tied: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for metric in metrics:
        for row in _tied(metric, [row for row in known if row.rank and metric in row.intervals], replicates):
            tied[row.keys].add(metric)
    return [replace(row, tied=frozenset(tied[row.keys])) if row.rank and row.keys in tied else row for row in known]


def _tied(metric: str, rows: Sequence[Row], replicates: _Replicates) -> list[Row]:
    """The `rows`, all with an interval, that are not significantly different from the best of them in `metric`."""
    from xmcbench.evaluation.bootstrap import indistinguishable

    if len(rows) < 2:
        return []
    best = max(rows, key=lambda row: row.metrics[metric])
    lowest = best.intervals[metric][0]
    # If two intervals do not overlap, the interval of the difference does not hold 0: such rows need not be read.
    near = [row for row in rows if row is not best and row.intervals[metric][1] >= lowest]
    of_best = replicates.mean(best, metric)
    compared = [(row, own) for row in near if (own := replicates.mean(row, metric)) is not None]
    if of_best is None or not compared:
        return []
    answers = indistinguishable(of_best, [own for _, own in compared])
    return [row for (row, _), same in zip(compared, answers, strict=True) if same]


class _Replicates:
    """The stored replicates of rows; each trial is read once."""

    def __init__(self, metrics: Sequence[str], resampled: Resampled) -> None:
        self._metrics = metrics
        self._resampled = resampled
        self._read: dict[str, Mapping[str, np.ndarray]] = {}

    def mean(self, row: Row, metric: str) -> np.ndarray | None:
        """The means over the seeds of a row, [B]; None if a seed has no replicates."""
        total: np.ndarray | None = None
        for key in row.keys:
            if key not in self._read:
                self._read[key] = self._resampled(key, self._metrics)
            own = self._read[key].get(metric)
            if own is None or (total is not None and len(total) != len(own)):
                return None
            total = own if total is None else total + own
        return None if total is None else total / len(row.keys)

    def intervals(self, row: Row) -> dict[str, tuple[float, float]]:
        """The interval of each metric that has replicates of every seed."""
        from xmcbench.evaluation.bootstrap import intervals

        own = {metric: self.mean(row, metric) for metric in self._metrics if metric in row.metrics}
        return intervals({metric: values for metric, values in own.items() if values is not None})
