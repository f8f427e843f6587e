"""Two trials on one test split: how their metrics differ, how significant that is, and for which queries.

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
from xmcbench.evaluation.metrics import Hits, MetricTerms
from xmcbench.evaluation.significance import metric_terms
from xmcbench.trial.predictions import Predictions


@dataclass(frozen=True)
class ComparedMetric:
    """A metric of two trials, as fractions; the difference is the first trial's value minus the second's."""

    name: str
    first: float
    second: float
    difference: Difference


@dataclass(frozen=True)
class Comparison:
    """The metrics, breakdowns and queries in which the predictions of two trials differ."""

    k: int
    metrics: tuple[ComparedMetric, ...]
    breakdowns: dict[str, tuple[ComparedMetric, ...]]  # contributions of each bin of labels to P@k
    hits: tuple[np.ndarray, np.ndarray]  # per query among the first k, [N] each

    @property
    def change(self) -> np.ndarray:
        """Hits of the first trial minus hits of the second, per query [N]."""
        more: np.ndarray = self.hits[0] - self.hits[1]
        return more

    def most_changed(self, count: int) -> tuple[list[int], list[int]]:
        """Queries where the first trial has most hits more, and where the second has: at most `count` of each."""
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
    """Compare checked `predictions` for the dataset's test split; `bins` are ways to partition its labels.

    Metrics whose evaluator has no `terms` are left out.
    """
    hits = dataset_hits(predictions[0], dataset), dataset_hits(predictions[1], dataset)
    terms = [metric_terms(h, metrics, evaluators) for h in hits]
    parts = [{(name, own): part for name, bin in bins.items() for own, part in _parts(h, bin, k)} for h in hits]
    return Comparison(
        k=k,
        metrics=_compared(terms[0], terms[1]),
        breakdowns={
            name: _compared(*({own: part[name, own] for own in bin.names} for part in parts))
            for name, bin in bins.items()
        },
        hits=(hits[0].sum_per_query(None, k), hits[1].sum_per_query(None, k)),
    )


def compare_resampled(
    metrics: tuple[Mapping[str, float], Mapping[str, float]],
    resampled: tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]],
) -> tuple[ComparedMetric, ...]:
    """Compare the metrics whose replicates both trials have; needs neither predictions nor dataset."""
    shared = [name for name in metrics[0] if all(name in own for own in (metrics[1], *resampled))]
    return tuple(
        ComparedMetric(
            name,
            metrics[0][name],
            metrics[1][name],
            difference(metrics[0][name] - metrics[1][name], resampled[0][name], resampled[1][name]),
        )
        for name in shared
    )


def _compared(first: Mapping[str, MetricTerms], second: Mapping[str, MetricTerms]) -> tuple[ComparedMetric, ...]:
    metrics = tuple({name: terms.value for name, terms in trial.items()} for trial in (first, second))
    return compare_resampled((metrics[0], metrics[1]), (resample(first), resample(second)))


def _parts(hits: Hits, bins: LabelBins, k: int) -> list[tuple[str, MetricTerms]]:
    """The terms of each bin's contribution to P@k, by the bin's name."""
    top = hits.ranks < k
    queries, own = hits.queries[top], bins.assignment[hits.labels[top]]
    possible = k * hits.ones
    return [
        (name, MetricTerms(np.bincount(queries[own == i], minlength=hits.num_queries).astype(np.float64), possible))
        for i, name in enumerate(bins.names)
    ]
