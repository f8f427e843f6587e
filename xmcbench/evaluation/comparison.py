"""Two trials on one test split, or two configurations over seeds: how their metrics differ, with what significance.

N test queries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from xmcbench.data.dataset import Dataset
from xmcbench.evaluation.bootstrap import resample
from xmcbench.evaluation.breakdown import LabelBins
from xmcbench.evaluation.evaluator import Evaluator, dataset_hits, metric_terms
from xmcbench.evaluation.metrics import Hits, MetricTerms
from xmcbench.evaluation.significance import Estimate, Sample, difference
from xmcbench.trial.predictions import Predictions


@dataclass(frozen=True)
class ComparedMetric:
    """A metric of two trials or configurations, as fractions; the difference is the first value minus the second."""

    name: str
    first: float  # mean over seeds
    second: float
    difference: Estimate


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


def compare_rows(first: Mapping[str, Sample], second: Mapping[str, Sample]) -> tuple[ComparedMetric, ...]:
    """Compare the metrics that two configurations share; needs neither predictions nor dataset."""
    return tuple(
        ComparedMetric(name, sample.mean, second[name].mean, difference(sample, second[name]))
        for name, sample in first.items()
        if name in second
    )


def _compared(first: Mapping[str, MetricTerms], second: Mapping[str, MetricTerms]) -> tuple[ComparedMetric, ...]:
    return compare_rows(_of_one_trial(first), _of_one_trial(second))


def _of_one_trial(terms: Mapping[str, MetricTerms]) -> dict[str, Sample]:
    """The metrics of a trial as samples of one seed, whichever that is."""
    replicates = resample(terms)
    return {name: Sample((0,), np.array([own.value]), replicates[name][None]) for name, own in terms.items()}


def _parts(hits: Hits, bins: LabelBins, k: int) -> list[tuple[str, MetricTerms]]:
    """The terms of each bin's contribution to P@k, by the bin's name."""
    top = hits.ranks < k
    queries, own = hits.queries[top], bins.assignment[hits.labels[top]]
    possible = k * hits.ones
    return [
        (name, MetricTerms(np.bincount(queries[own == i], minlength=hits.num_queries).astype(np.float64), possible))
        for i, name in enumerate(bins.names)
    ]
