"""Two trials on one test split, or two configurations over seeds: how their metrics differ, with what significance.

N test queries, B resamples of them, S seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from xmcbench.data.dataset import Dataset
from xmcbench.evaluation.bootstrap import Difference, difference, resample
from xmcbench.evaluation.breakdown import LabelBins
from xmcbench.evaluation.evaluator import Evaluator, dataset_hits
from xmcbench.evaluation.metrics import Hits, MetricTerms
from xmcbench.evaluation.power import uncertainty
from xmcbench.evaluation.significance import metric_terms
from xmcbench.trial.predictions import Predictions


@dataclass(frozen=True)
class ComparedMetric:
    """A metric of two trials or configurations, as fractions; the difference is the first value minus the second."""

    name: str
    first: float  # mean over seeds
    second: float
    difference: Difference
    detectable: float  # the smallest true difference that the comparison would show with 80 % power


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


@dataclass(frozen=True)
class Measured:
    """The metrics of one trial, as fractions, and their values on resamples of the test queries, [B] each."""

    metrics: Mapping[str, float]
    replicates: Mapping[str, np.ndarray]


def compare_seeds(first: Sequence[Measured], second: Sequence[Measured]) -> tuple[ComparedMetric, ...]:
    """Compare the metrics of which all trials have replicates; needs neither predictions nor dataset.

    Args:
        first: the trials of one configuration, one for each seed.
        second: those of the other, with the same seeds in the same order.
    """
    trials = [*first, *second]
    shared = [name for name in trials[0].metrics if all(name in t.metrics and name in t.replicates for t in trials)]
    return tuple(_of_seeds(name, first, second) for name in shared)


def _of_seeds(name: str, first: Sequence[Measured], second: Sequence[Measured]) -> ComparedMetric:
    """One metric. With one seed the interval is the percentile bootstrap's, else that of queries and seeds together."""
    values = [trial.metrics[name] for trial in first], [trial.metrics[name] for trial in second]
    replicates = [trial.replicates[name] for trial in first], [trial.replicates[name] for trial in second]
    spread = uncertainty(*replicates, values)
    means = fmean(values[0]), fmean(values[1])
    change = means[0] - means[1]
    found = difference(change, replicates[0][0], replicates[1][0]) if len(first) == 1 else spread.difference(change)
    return ComparedMetric(name, *means, found, spread.detectable())


def _compared(first: Mapping[str, MetricTerms], second: Mapping[str, MetricTerms]) -> tuple[ComparedMetric, ...]:
    measured = [Measured({name: terms.value for name, terms in t.items()}, resample(t)) for t in (first, second)]
    return compare_seeds(measured[:1], measured[1:])


def _parts(hits: Hits, bins: LabelBins, k: int) -> list[tuple[str, MetricTerms]]:
    """The terms of each bin's contribution to P@k, by the bin's name."""
    top = hits.ranks < k
    queries, own = hits.queries[top], bins.assignment[hits.labels[top]]
    possible = k * hits.ones
    return [
        (name, MetricTerms(np.bincount(queries[own == i], minlength=hits.num_queries).astype(np.float64), possible))
        for i, name in enumerate(bins.names)
    ]
