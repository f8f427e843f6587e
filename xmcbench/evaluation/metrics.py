"""P, nDCG, PSP, PSnDCG, R, F1, micro-F1 and LRAP at k as ratios of two sums over queries.

N queries, L labels, H hits (predicted and true pairs), T true pairs. Every metric is a fraction in 0..1, computed in
float64. The definitions are those of the extreme classification repository's own tools; `docs/metrics.md` states them.
A changed definition raises `METRIC_VERSION`. The bootstrap (`bootstrap.py`) resamples the terms of the two sums.

Weights are those of the propensity model of Jain et al. (2016): how likely it is that a true label was recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import scipy

from xmcbench.data.dataset import DatasetCard, Texts
from xmcbench.data.pairs import binary, find, map_chunks
from xmcbench.errors import XMCBenchError
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.record import METRIC_VERSION


@dataclass(frozen=True)
class MetricTerms:
    """A metric as the ratio of two sums over queries: the terms of each query, float64 [N] each.

    A metric that is a mean over labels has the terms of each label instead, [L] each.
    """

    numerator: np.ndarray
    denominator: np.ndarray

    @property
    def value(self) -> float:
        """The ratio of the sums; 0 where the denominator is 0 (no query has a true label)."""
        denominator = float(self.denominator.sum())
        return float(self.numerator.sum()) / denominator if denominator > 0 else 0.0


@dataclass(frozen=True)
class RatioMetric:
    """An `Evaluator` whose metric is a ratio of two sums over queries or labels, for the function of their terms."""

    name: str
    summary: str
    definition: Callable[[Hits, int], MetricTerms]
    version: int = METRIC_VERSION

    def terms(self, hits: Hits, k: int) -> MetricTerms:
        """The terms of the two sums, cached in the hits: the metric and its replicates are computed from the same."""
        if (self.name, k) not in hits._terms:
            hits._terms[self.name, k] = self.definition(hits, k)
        return hits._terms[self.name, k]

    def compute(self, hits: Hits, k: int) -> float:
        return self.terms(hits, k).value


@dataclass(frozen=True)
class TopHits:
    """The hits among the first k predictions of each query: row, rank (0 is the best) and weight of each, [h]."""

    queries: np.ndarray
    ranks: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True)
class Hits:
    """The hits (true positives) of ranked predictions: found once by `find_hits`, shared by all metrics."""

    predictions: Predictions
    truth: scipy.sparse.csr_array  # [N, L] of ones, labels ascending within a row
    inverse_propensity: np.ndarray  # float64 [L]
    queries: np.ndarray  # [H] row of each hit, ascending
    ranks: np.ndarray  # [H] position of each hit among its row's predictions, 0 for the best
    labels: np.ndarray  # [H]
    train_counts: np.ndarray | None = None  # float64 [L] training queries of each label; None without a dataset
    card: DatasetCard | None = None  # of the dataset; None without one
    texts: Texts | None = None  # of the N queries; None without a dataset
    label_texts: Texts | None = None  # of the L labels; None without a dataset
    _top: dict[int, TopHits] = field(default_factory=dict, repr=False, compare=False)
    _terms: dict[tuple[str, int], MetricTerms] = field(default_factory=dict, repr=False, compare=False)

    @property
    def num_queries(self) -> int:
        return len(self.predictions)

    @cached_property
    def num_true(self) -> np.ndarray:
        """Number of true labels of each query [N]."""
        counts: np.ndarray = np.diff(self.truth.indptr)
        return counts

    @cached_property
    def ones(self) -> np.ndarray:
        """1.0 for each query [N]; read-only, without memory of its own."""
        return np.broadcast_to(np.float64(1), self.num_queries)

    def top(self, k: int) -> TopHits:
        """The hits among the first `k` predictions of each query; cached."""

        def select(chunk: slice) -> tuple[np.ndarray, ...]:
            within = np.flatnonzero(self.ranks[chunk] < k) + chunk.start
            return self.queries[within], self.ranks[within], self.inverse_propensity[self.labels[within]]

        if k not in self._top:
            parts = map_chunks(select, len(self.ranks), 1) or [select(slice(0, 0))]
            self._top[k] = TopHits(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
        return self._top[k]

    def sum_per_query(self, values: np.ndarray | None, k: int) -> np.ndarray:
        """The sum of `values`, one for each hit of `top(k)`, per query [N]; without `values` the number of hits."""
        sums: np.ndarray = np.bincount(self.top(k).queries, values, self.num_queries).astype(np.float64, copy=False)
        return sums

    @cached_property
    def ideal(self) -> Hits:
        """The hits of the best possible ranking: all true labels [T], those of the largest weight first."""
        num_labels = self.truth.shape[1]
        heaviest_first = np.argsort(-self.inverse_propensity, kind="stable")
        position = np.empty(num_labels, np.int64)
        position[heaviest_first] = np.arange(num_labels)
        indptr, num_pairs = self.truth.indptr, self.truth.nnz
        queries, ranks = np.empty((2, num_pairs), np.int64)
        labels = np.empty(num_pairs, self.truth.indices.dtype)

        def order(chunk: slice) -> None:
            pairs = slice(indptr[chunk.start], indptr[chunk.stop])
            rows = np.repeat(np.arange(chunk.start, chunk.stop), self.num_true[chunk])
            keys = rows * num_labels + position[self.truth.indices[pairs]]
            keys.sort()
            queries[pairs] = rows
            ranks[pairs] = np.arange(pairs.start, pairs.stop) - indptr[rows]
            labels[pairs] = heaviest_first[keys - rows * num_labels]

        map_chunks(order, self.num_queries, max(1, num_pairs // self.num_queries))
        return replace(self, queries=queries, ranks=ranks, labels=labels, _top={}, _terms={})


def find_hits(
    predictions: Predictions,
    truth: scipy.sparse.csr_array,
    inverse_propensity: np.ndarray,
    train_counts: np.ndarray | None = None,
    card: DatasetCard | None = None,
) -> Hits:
    """The predictions [N, K] that are true in `truth` [N, L]; raises `XMCBenchError` where the shapes do not fit.

    `train_counts` [L] and `card` are for evaluators that need them, such as metrics of tail labels.
    """
    if not len(predictions):
        raise XMCBenchError("there is no query to score, expected at least one")
    if len(inverse_propensity) != truth.shape[1]:
        raise XMCBenchError(f"found {len(inverse_propensity)} propensities, expected one per label ({truth.shape[1]})")
    pairs = binary(truth)
    positions = find(pairs, predictions.indices)
    queries, ranks = np.divmod(positions, max(1, predictions.k))
    labels = predictions.indices.ravel()[positions]
    return Hits(predictions, pairs, inverse_propensity, queries, ranks, labels, train_counts, card)


@partial(RatioMetric, "P", "share of the k predictions that are true")
def precision(hits: Hits, k: int) -> MetricTerms:
    """P@k: the share of the k predictions that are true; a row with fewer than k predictions still divides by k."""
    return MetricTerms(hits.sum_per_query(None, k), np.broadcast_to(np.float64(k), hits.num_queries))


@partial(RatioMetric, "nDCG", "discounted gain over that of the best ranking")
def ndcg(hits: Hits, k: int) -> MetricTerms:
    """nDCG@k: discounted gain over that of the best ranking of the row; a row without true labels counts as 0."""
    return MetricTerms(hits.sum_per_query(_discounted_gains(hits, k), k), hits.ones)


@partial(RatioMetric, "PSP", "P weighted by inverse propensity, over the best attainable")
def propensity_scored_precision(hits: Hits, k: int) -> MetricTerms:
    """PSP@k: weighted hits over those of the best possible ranking, a ratio of means."""
    return MetricTerms(*(side.sum_per_query(side.top(k).weights, k) for side in (hits, hits.ideal)))


@partial(RatioMetric, "PSnDCG", "nDCG weighted by inverse propensity, over the best attainable")
def propensity_scored_ndcg(hits: Hits, k: int) -> MetricTerms:
    """PSnDCG@k: PSP@k with discounted gains; both sides are normalised per row as in nDCG, without weights."""
    sides = hits, hits.ideal
    return MetricTerms(*(side.sum_per_query(side.top(k).weights * _discounted_gains(side, k), k) for side in sides))


@partial(RatioMetric, "R", "share of a query's true labels among the k predictions")
def recall(hits: Hits, k: int) -> MetricTerms:
    """R@k: the share of a row's true labels among its first k predictions; a row without true labels counts as 0."""
    return MetricTerms(hits.sum_per_query(1.0 / hits.num_true[hits.top(k).queries], k), hits.ones)


@partial(RatioMetric, "F1", "harmonic mean of a query's precision and recall, mean over queries")
def f1(hits: Hits, k: int) -> MetricTerms:
    """F1@k: the mean over rows of 2 hits / (predicted labels, at most k, + true labels); 0 without any of both."""
    predicted = np.count_nonzero(hits.predictions.indices[:, :k] >= 0, axis=1)
    return MetricTerms(2 * hits.sum_per_query(None, k) / np.maximum(predicted + hits.num_true, 1), hits.ones)


@partial(RatioMetric, "micro-F1", "harmonic mean of precision and recall over all pairs together")
def micro_f1(hits: Hits, k: int) -> MetricTerms:
    """micro-F1@k: 2 hits over (predicted labels, at most k a row, + true labels), each summed over all rows."""
    predicted = np.count_nonzero(hits.predictions.indices[:, :k] >= 0, axis=1)
    return MetricTerms(2 * hits.sum_per_query(None, k), (predicted + hits.num_true).astype(np.float64))


@partial(RatioMetric, "LRAP", "mean precision at the ranks of a query's true labels")
def label_ranking_average_precision(hits: Hits, k: int) -> MetricTerms:
    """LRAP@k: of each true label the precision at its rank, 0 below rank k, mean over a row's true labels.

    Schapire and Singer, Machine Learning 39, 2000. Ranks are those of the predictions: scores that tie rank by label.
    A row without true labels counts as 0.
    """
    top = hits.top(k)
    first = np.searchsorted(top.queries, top.queries)  # the first hit of the row, as hits are in the order of ranks
    precision_at = (np.arange(len(top.queries)) - first + 1) / (top.ranks + 1)
    return MetricTerms(hits.sum_per_query(precision_at / hits.num_true[top.queries], k), hits.ones)


EVALUATORS = (
    precision,
    ndcg,
    propensity_scored_precision,
    propensity_scored_ndcg,
    recall,
    f1,
    micro_f1,
    label_ranking_average_precision,
)


def _discounted_gains(hits: Hits, k: int) -> np.ndarray:
    """What each hit of `top(k)` adds to its row's nDCG@k."""
    top = hits.top(k)
    discounts = 1.0 / np.log2(np.arange(2, k + 2))
    ideal = np.cumsum(discounts)[np.minimum(hits.num_true[top.queries], k) - 1]  # a row with a hit has a true label
    gains: np.ndarray = discounts[top.ranks] / ideal
    return gains


def label_counts(targets: scipy.sparse.csr_array) -> np.ndarray:
    """The sum of each column of the training targets [N, L], float64 [L]: of ones, the queries that have the label."""
    counts: np.ndarray = np.bincount(targets.indices, targets.data, minlength=targets.shape[1])
    return counts


def inverse_propensity(targets: scipy.sparse.csr_array, a: float, b: float) -> np.ndarray:
    """The weight of each label, float64 [L], from the training targets [N, L] of ones: rare labels weigh more.

    w_l = 1 + C (n_l + B)^-A with C = (ln N - 1)(B + 1)^A and n_l the number of training queries with label l.
    """
    num_queries = targets.shape[0]
    if num_queries < 3:  # ln N < 1 inverts the model: rare labels would weigh less than 1
        raise XMCBenchError(f"propensities need at least 3 training queries, found {num_queries}")
    scale = (np.log(num_queries) - 1.0) * (b + 1.0) ** a
    weights: np.ndarray = 1.0 + scale * (label_counts(targets) + b) ** -a
    return weights
