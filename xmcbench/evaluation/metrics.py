"""P, nDCG, PSP, PSnDCG and R at k, query by query.

N queries, L labels, H hits (predicted and true pairs), T true pairs. Every figure is a fraction in 0..1, computed in
float64. The definitions are those of the extreme classification repository's own tools; `docs/metrics.md` states them.
One that changes raises `METRIC_VERSION`. Each is a ratio of two sums over queries, so that queries can be drawn again
(`significance.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from xmcbench.data.pairs import binary, contains
from xmcbench.errors import XMCBenchError
from xmcbench.trial.predictions import Predictions


@dataclass(frozen=True)
class Terms:
    """A figure as what each query adds to either side of a ratio: `gained` and `possible`, float64 [N] each."""

    gained: np.ndarray
    possible: np.ndarray

    @property
    def figure(self) -> float:
        """The ratio of the sums; 0 where nothing is possible (no query has a true label)."""
        possible = float(self.possible.sum())
        return float(self.gained.sum()) / possible if possible > 0 else 0.0


@dataclass(frozen=True)
class Hits:
    """Where the predictions are right: found once by `find_hits`, shared by all figures."""

    predictions: Predictions
    truth: sp.csr_array  # [N, L] of ones, labels ascending within a row
    inverse_propensity: np.ndarray  # float64 [L]
    queries: np.ndarray  # [H] row of each hit, ascending
    ranks: np.ndarray  # [H] position of each hit among its row's predictions, 0 for the best
    labels: np.ndarray  # [H]

    @property
    def num_queries(self) -> int:
        return len(self.predictions)

    @cached_property
    def num_true(self) -> np.ndarray:
        """True labels of each query [N]."""
        counts: np.ndarray = np.diff(self.truth.indptr)
        return counts

    @cached_property
    def ones(self) -> np.ndarray:
        """One for each query [N]."""
        return np.ones(self.num_queries)

    @cached_property
    def weights(self) -> np.ndarray:
        """Inverse propensity of each hit [H]."""
        weights: np.ndarray = self.inverse_propensity[self.labels]
        return weights

    def per_query(self, amounts: np.ndarray | None, k: int) -> np.ndarray:
        """What the hits among the first `k` add to each query [N]: `amounts` of them, or one each."""
        sums: np.ndarray = np.bincount(self.queries[self.ranks < k], amounts, self.num_queries).astype(np.float64)
        return sums

    @cached_property
    def best(self) -> Hits:
        """The hits of predictions that nothing could beat: all true labels [T], the heaviest first."""
        queries = np.repeat(np.arange(self.num_queries), self.num_true)
        order = np.lexsort((-self.inverse_propensity[self.truth.indices], queries))
        ranks = np.arange(len(order)) - self.truth.indptr[queries]
        return replace(self, queries=queries, ranks=ranks, labels=self.truth.indices[order])


def find_hits(predictions: Predictions, truth: sp.csr_array, inverse_propensity: np.ndarray) -> Hits:
    """Look the predictions [N, K] up in the truth [N, L]; raises `XMCBenchError` where their shapes do not fit."""
    if not len(predictions):
        raise XMCBenchError("there is no query to score, expected at least one")
    if len(inverse_propensity) != truth.shape[1]:
        raise XMCBenchError(f"found {len(inverse_propensity)} propensities, expected one a label ({truth.shape[1]})")
    pairs = binary(truth)
    queries, ranks = np.nonzero(contains(pairs, predictions.indices))
    return Hits(predictions, pairs, inverse_propensity, queries, ranks, predictions.indices[queries, ranks])


def precision(hits: Hits, k: int) -> Terms:
    """P@k: the share of the k predictions that are true; a short row still divides by k."""
    return Terms(hits.per_query(None, k), k * hits.ones)


def ndcg(hits: Hits, k: int) -> Terms:
    """nDCG@k: discounted gain over that of the best ranking of the row; a row without labels gives 0."""
    return Terms(hits.per_query(_discounted(hits, k), k), hits.ones)


def propensity_scored_precision(hits: Hits, k: int) -> Terms:
    """PSP@k: weighted hits over those of the best ranking, a ratio of means."""
    gained, possible = (side.per_query(side.weights[side.ranks < k], k) for side in (hits, hits.best))
    return Terms(gained, possible)


def propensity_scored_ndcg(hits: Hits, k: int) -> Terms:
    """PSnDCG@k: as PSP@k with discounted gains, both sides normalised a row as in nDCG (without weights)."""
    gained, possible = (
        side.per_query(side.weights[side.ranks < k] * _discounted(side, k), k) for side in (hits, hits.best)
    )
    return Terms(gained, possible)


def recall(hits: Hits, k: int) -> Terms:
    """R@k: the share of a row's true labels found; a row without labels counts as 0."""
    found = hits.queries[hits.ranks < k]
    return Terms(hits.per_query(1.0 / hits.num_true[found], k), hits.ones)


def _discounted(hits: Hits, k: int) -> np.ndarray:
    """What each hit among the first k adds to its row's nDCG@k."""
    top = hits.ranks < k
    discounts = 1.0 / np.log2(np.arange(2, k + 2))
    ideal = np.cumsum(discounts)[np.minimum(hits.num_true[hits.queries[top]], k) - 1]  # a row with a hit has a label
    gains: np.ndarray = discounts[hits.ranks[top]] / ideal
    return gains
