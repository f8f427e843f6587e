"""Two trials on one test split, by their predictions: how metrics, bins of labels and queries differ.

Legend: N test queries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from xmcbench.data.dataset import Dataset
from xmcbench.evaluation.analysis import LabelBins
from xmcbench.evaluation.bootstrap import resample
from xmcbench.evaluation.comparison import ComparedMetric, compare_rows, stored_samples
from xmcbench.evaluation.evaluator import Evaluator, dataset_hits, metric_terms
from xmcbench.evaluation.metrics import Hits, MetricTerms
from xmcbench.evaluation.significance import Sample
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.record import Record
from xmcbench.trial.store import Store


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
    return Comparison(
        k=k,
        metrics=compare_rows(*(_of_one_trial(metric_terms(of_trial, metrics, evaluators)) for of_trial in hits)),
        breakdowns={
            name: compare_rows(*(_of_one_trial(_parts(of_trial, bin, k)) for of_trial in hits))
            for name, bin in bins.items()
        },
        hits=(hits[0].sum_per_query(None, k), hits[1].sum_per_query(None, k)),
    )


def _of_one_trial(terms: Mapping[str, MetricTerms]) -> dict[str, Sample]:
    """The metrics of a trial as samples of one seed, whichever that is."""
    replicates = resample(terms)
    return {name: Sample((0,), np.array([term.value]), replicates[name][None]) for name, term in terms.items()}


def _parts(hits: Hits, bins: LabelBins, k: int) -> dict[str, MetricTerms]:
    """The terms of each bin's contribution to P@k, by the bin's name."""
    top = hits.ranks < k
    queries, bin_of_hit = hits.queries[top], bins.assignment[hits.labels[top]]
    possible = k * hits.ones
    return {
        name: MetricTerms(
            np.bincount(queries[bin_of_hit == i], minlength=hits.num_queries).astype(np.float64), possible
        )
        for i, name in enumerate(bins.names)
    }


def compare_stored(
    store: Store, first: Sequence[Record], second: Sequence[Record], metrics: Sequence[str]
) -> tuple[ComparedMetric, ...]:
    """Compare two configurations, one record for each seed, without their predictions and the dataset."""
    return compare_rows(stored_samples(store, first, metrics), stored_samples(store, second, metrics))
