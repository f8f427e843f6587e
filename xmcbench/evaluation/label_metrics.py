"""Metrics that tell labels apart: macro-averaged P and F1, coverage, recall of labels with and without training.

N queries, L labels. The mean is over the labels that some test query has; a label that is never predicted counts as 0,
it is not left out (Schultheis et al., "Generalized test utilities for long-tail performance in extreme multi-label
classification", NeurIPS 2023, arXiv 2311.05081). Every query's first k predictions count.

Intervals: the terms are those of labels, so a resample (`bootstrap.py`) draws labels where it draws queries for the
other metrics. A resample of queries would not do: it leaves out the only test query of many a label.

Recall of labels with and without training queries, two parts of R that a dataset with new labels tells apart, is a mean
over queries. Both look at the whole ranking: a new label has to come before the labels that were trained on.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.metrics import Hits, MetricTerms, RatioMetric


@partial(RatioMetric, "macro-P", "precision of a label's predictions, mean over labels")
def macro_precision(hits: Hits, k: int) -> MetricTerms:
    """macro-P@k: of a label, the share of the queries with it among their k predictions that truly have it."""
    return _mean(hits, _hit(hits, k), _predicted(hits, k))


@partial(RatioMetric, "macro-F1", "harmonic mean of a label's precision and recall, mean over labels")
def macro_f1(hits: Hits, k: int) -> MetricTerms:
    """macro-F1@k: of a label, the harmonic mean of that precision and of the share of its queries that are found."""
    return _mean(hits, 2 * _hit(hits, k), _predicted(hits, k) + _true(hits))


@partial(RatioMetric, "coverage", "share of labels that are predicted rightly at least once")
def coverage(hits: Hits, k: int) -> MetricTerms:
    return _mean(hits, np.minimum(_hit(hits, k), 1.0), 1.0)


def _mean(hits: Hits, numerator_L: np.ndarray, denominator_L: np.ndarray | float) -> MetricTerms:
    """The mean of the ratios over the labels that some test query has; a ratio with the denominator 0 is 0."""
    tested_L = (_true(hits) > 0).astype(np.float64)
    values_L = np.divide(numerator_L, denominator_L, out=np.zeros_like(numerator_L), where=denominator_L > 0)
    return MetricTerms(values_L * tested_L, tested_L)


def _true(hits: Hits) -> np.ndarray:
    """The number of test queries of each label [L]."""
    return _counts(hits, hits.truth.indices)


def _predicted(hits: Hits, k: int) -> np.ndarray:
    """The number of test queries that have each label among their first k predictions [L]."""
    labels = hits.predictions.indices[:, :k].ravel()
    return _counts(hits, labels[labels >= 0])


def _hit(hits: Hits, k: int) -> np.ndarray:
    """How many of these predictions are true, of each label [L]."""
    return _counts(hits, hits.labels[hits.ranks < k])


def _counts(hits: Hits, labels: np.ndarray) -> np.ndarray:
    counts: np.ndarray = np.bincount(labels, minlength=hits.truth.shape[1]).astype(np.float64)
    return counts


@partial(RatioMetric, "R-seen", "R of labels with a training query, over queries that have one")
def recall_of_seen(hits: Hits, k: int) -> MetricTerms:
    """R-seen@k: the share of a query's true labels with a training query that are among its k predictions."""
    return _recall(hits, True, k)


@partial(RatioMetric, "R-unseen", "R of labels without a training query, likewise")
def recall_of_unseen(hits: Hits, k: int) -> MetricTerms:
    """R-unseen@k: the same of true labels without a training query."""
    return _recall(hits, False, k)


def _recall(hits: Hits, seen: bool, k: int) -> MetricTerms:
    """The mean over the queries that have a label with, or without, a training query."""
    if hits.train_counts is None:
        raise XMCBenchError("R-seen and R-unseen need the training queries of a dataset")
    group_L = (hits.train_counts > 0) == seen
    top = (hits.ranks < k) & group_L[hits.labels]
    found_N = np.bincount(hits.queries[top], minlength=hits.num_queries)
    rows = np.repeat(np.arange(hits.num_queries), hits.num_true)
    true_N = np.bincount(rows[group_L[hits.truth.indices]], minlength=hits.num_queries)
    return MetricTerms(found_N / np.maximum(true_N, 1), (true_N > 0).astype(np.float64))


LABEL_EVALUATORS = (macro_precision, macro_f1, coverage)
SEEN_EVALUATORS = (recall_of_seen, recall_of_unseen)
