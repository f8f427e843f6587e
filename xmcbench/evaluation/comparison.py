"""Two trials on one test split: in what they differ, how sure that is, and for which queries.

N test queries, K predicted labels, H hits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from xmcbench.data.dataset import Dataset
from xmcbench.evaluation.bootstrap import Difference, difference, resample
from xmcbench.evaluation.breakdown import LabelBins
from xmcbench.evaluation.evaluator import Evaluator, dataset_hits
from xmcbench.evaluation.metrics import Hits, Terms
from xmcbench.evaluation.significance import figure_terms
from xmcbench.trial.predictions import Predictions


@dataclass(frozen=True)
class Compared:
    """A figure of two trials; the difference is the first's less the second's. Fractions."""

    name: str
    first: float
    second: float
    difference: Difference


@dataclass(frozen=True)
class Comparison:
    """What two trials' predictions tell of each other."""

    k: int
    figures: tuple[Compared, ...]
    breakdowns: dict[str, tuple[Compared, ...]]  # contributions of each bin of labels to P@k
    hits: tuple[np.ndarray, np.ndarray]  # of each query among the first k, [N] each

    @property
    def change(self) -> np.ndarray:
        """Hits of each query that the first has more than the second [N]."""
        more: np.ndarray = self.hits[0] - self.hits[1]
        return more

    def most_changed(self, count: int) -> tuple[list[int], list[int]]:
        """The queries of which the first finds most more, and those of which the second does: `count` each at most."""
        gained, lost = (np.argsort(-sign * self.change, kind="stable")[:count] for sign in (1, -1))
        return [int(i) for i in gained if self.change[i] > 0], [int(i) for i in lost if self.change[i] < 0]


def compare(
    predictions: tuple[Predictions, Predictions],
    dataset: Dataset,
    metrics: Sequence[str],
    evaluators: Mapping[str, Evaluator],
    bins: Mapping[str, LabelBins],
    k: int,
) -> Comparison:
    """Compare checked `predictions` for the dataset's test split; `bins` are ways to part its labels.

    Metrics whose evaluator does not say what a query adds are left out.
    """
    hits = dataset_hits(predictions[0], dataset), dataset_hits(predictions[1], dataset)
    figures = [figure_terms(each, metrics, evaluators) for each in hits]
    parts = [{(name, own): terms for name, each in bins.items() for own, terms in _parts(h, each, k)} for h in hits]
    return Comparison(
        k=k,
        figures=tuple(_compared(figures[0], figures[1])),
        breakdowns={
            name: tuple(_compared(*({own: part[name, own] for own in each.names} for part in parts)))
            for name, each in bins.items()
        },
        hits=(hits[0].per_query(None, k), hits[1].per_query(None, k)),
    )


def compare_resampled(
    figures: tuple[Mapping[str, float], Mapping[str, float]],
    resampled: tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]],
) -> tuple[Compared, ...]:
    """Compare figures of which both trials keep values on resamples, without predictions or dataset."""
    shared = [name for name in figures[0] if all(name in own for own in (figures[1], *resampled))]
    return tuple(
        Compared(
            name,
            figures[0][name],
            figures[1][name],
            difference(figures[0][name] - figures[1][name], resampled[0][name], resampled[1][name]),
        )
        for name in shared
    )


def _compared(first: Mapping[str, Terms], second: Mapping[str, Terms]) -> tuple[Compared, ...]:
    figures = tuple({name: terms.figure for name, terms in each.items()} for each in (first, second))
    return compare_resampled((figures[0], figures[1]), (resample(first), resample(second)))


def _parts(hits: Hits, bins: LabelBins, k: int) -> list[tuple[str, Terms]]:
    """What the labels of each bin add to P@k."""
    top = hits.ranks < k
    queries, own = hits.queries[top], bins.assignment[hits.labels[top]]
    possible = k * hits.ones
    return [
        (name, Terms(np.bincount(queries[own == i], minlength=hits.num_queries).astype(np.float64), possible))
        for i, name in enumerate(bins.names)
    ]
