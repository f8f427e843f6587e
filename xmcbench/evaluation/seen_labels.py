"""Recall of labels with and without training queries: two parts of R that a dataset with new labels tells apart.

Both look at the whole ranking: a new label has to come before the labels that were trained on.

N queries, L labels.
"""

from __future__ import annotations

import numpy as np

from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.metrics import Hits, MetricTerms, cached


@cached
def recall_of_seen(hits: Hits, k: int) -> MetricTerms:
    """R-seen@k: the share of a query's true labels with a training query that are among its k predictions."""
    return _recall(hits, _counts(hits) > 0, k)


@cached
def recall_of_unseen(hits: Hits, k: int) -> MetricTerms:
    """R-unseen@k: the same of true labels without a training query."""
    return _recall(hits, _counts(hits) == 0, k)


def _counts(hits: Hits) -> np.ndarray:
    if hits.train_counts is None:
        raise XMCBenchError("R-seen and R-unseen need the training queries of a dataset")
    return hits.train_counts


def _recall(hits: Hits, group_L: np.ndarray, k: int) -> MetricTerms:
    """The mean over the queries that have a label of the group."""
    top = (hits.ranks < k) & group_L[hits.labels]
    found_N = np.bincount(hits.queries[top], minlength=hits.num_queries)
    rows = np.repeat(np.arange(hits.num_queries), hits.num_true)
    true_N = np.bincount(rows[group_L[hits.truth.indices]], minlength=hits.num_queries)
    return MetricTerms(found_N / np.maximum(true_N, 1), (true_N > 0).astype(np.float64))
