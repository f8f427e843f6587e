"""Fusion: the predictions of several methods for the same queries as one ranking.

A fusion is a rule that scores candidates: the pairs of a query and a label that some method lists. Reciprocal ranks
need nothing else. Weights and the decision tree are fitted on queries that no method was trained on.

Legend: N queries, L labels, P methods (parts), C candidates, F features (the P scores and the inverse propensity),
M nodes of a tree.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import ClassVar, Literal

import numpy as np
import scipy

from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.evaluator import find_evaluators, lower_is_better, score
from xmcbench.evaluation.metrics import find_hits
from xmcbench.evaluation.ranking import rank_sparse
from xmcbench.trial.facts import worth
from xmcbench.trial.predictions import Predictions

RuleName = Literal["reciprocal-ranks", "weighted", "tree"]
CONSTANT = 60.0  # of reciprocal ranks (Cormack et al., 2009)
STEPS = 20  # the weights are multiples of 1 / STEPS
MAX_PARTS = 4  # whose weights are chosen: 1,771 points of the grid
DEPTH = 7  # of the tree, as in NGAME's public code


@dataclass(frozen=True)
class Candidates:
    """Pairs of a query and a label that some of P methods list, by query and then by label."""

    num_queries: int
    queries_C: np.ndarray
    labels_C: np.ndarray
    ranks_CP: np.ndarray  # from 1; infinite where the method does not list the label
    scores_CP: np.ndarray  # the method's lowest score of the query where it does not list the label
    scaled_CP: np.ndarray  # scores of the query from 0 (the lowest) to 1 (the best); 0 where not listed

    @classmethod
    def of(cls, parts: Sequence[Predictions]) -> Candidates:
        """The candidates of `parts`, which answer the same N queries in the same order."""
        num_queries = len(parts[0])
        stride = 1 + max(int(part.indices.max(initial=0)) for part in parts)
        keys = [np.arange(num_queries)[:, None] * stride + part.indices for part in parts]
        held = [part.indices >= 0 for part in parts]
        found_C = np.unique(np.concatenate([pairs[is_held] for pairs, is_held in zip(keys, held, strict=True)]))
        queries_C = found_C // stride
        ranks_CP = np.full((len(found_C), len(parts)), np.inf)
        scores_CP, scaled_CP = np.zeros((2, *ranks_CP.shape))
        for number, (part, pairs, is_held) in enumerate(zip(parts, keys, held, strict=True)):
            places = np.searchsorted(found_C, pairs[is_held])
            scores_NK = _finite(part, is_held)
            lowest_N1 = scores_NK.min(axis=1, keepdims=True, initial=np.inf, where=is_held)
            spread_N1 = scores_NK.max(axis=1, keepdims=True, initial=-np.inf, where=is_held) - lowest_N1
            with np.errstate(divide="ignore", invalid="ignore"):
                scaled_NK = np.where(spread_N1 > 0, (scores_NK - lowest_N1) / spread_N1, 1.0)
            empty_N1 = ~is_held.any(axis=1, keepdims=True)
            scores_CP[:, number] = np.where(empty_N1, scores_NK[:, :1], lowest_N1)[queries_C, 0]
            ranks_CP[places, number] = 1 + np.broadcast_to(np.arange(part.k), is_held.shape)[is_held]
            scores_CP[places, number] = scores_NK[is_held]
            scaled_CP[places, number] = scaled_NK[is_held]
        return cls(num_queries, queries_C, found_C % stride, ranks_CP, scores_CP, scaled_CP)

    def ranked(self, fused_C: np.ndarray, k: int) -> Predictions:
        """The best `k` labels of each query by these scores of its candidates."""
        ends = np.searchsorted(self.queries_C, np.arange(self.num_queries + 1))
        width = 1 + int(self.labels_C.max(initial=0))
        return rank_sparse(scipy.sparse.csr_array((fused_C, self.labels_C, ends), shape=(self.num_queries, width)), k)

    def truth(self, targets: scipy.sparse.csr_array) -> np.ndarray:
        """Which candidates are true by `targets` [N, L] of ones: bool [C]."""
        rows, labels = targets.nonzero()
        width = targets.shape[1]
        return np.isin(self.queries_C * width + self.labels_C, rows.astype(np.int64) * width + labels)


class Fusion(ABC):
    """A rule with its fitted numbers. Its arrays are all that has to be stored."""

    name: ClassVar[RuleName]

    @abstractmethod
    def scores(self, candidates: Candidates) -> np.ndarray:
        """[C] the fused score of each candidate."""

    def fuse(self, parts: Sequence[Predictions], k: int) -> Predictions:
        """The best `k` of the labels that `parts` list for each query."""
        candidates = Candidates.of(parts)
        return candidates.ranked(self.scores(candidates), k)

    def arrays(self) -> dict[str, np.ndarray]:
        """What `restore_fusion` takes: the fitted numbers by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]


@dataclass(frozen=True)
class ReciprocalRanks(Fusion):
    """The sum of 1 / (60 + rank) over the methods that list the label (Cormack et al., SIGIR 2009)."""

    name: ClassVar[RuleName] = "reciprocal-ranks"

    def scores(self, candidates: Candidates) -> np.ndarray:
        total_C: np.ndarray = (1 / (CONSTANT + candidates.ranks_CP)).sum(axis=1)
        return total_C


@dataclass(frozen=True)
class Weighted(Fusion):
    """The weighted sum of the methods' scores, each scaled to 0..1 within a query's list."""

    weights_P: np.ndarray
    name: ClassVar[RuleName] = "weighted"

    def scores(self, candidates: Candidates) -> np.ndarray:
        total_C: np.ndarray = candidates.scaled_CP @ self.weights_P
        return total_C


@dataclass(frozen=True)
class Tree(Fusion):
    """A decision tree's probability that the label is true, plus the sum of the scaled scores (NGAME, DEXA).

    The tree sees the methods' scores and the label's inverse propensity. The sum orders the labels of one leaf.
    """

    inverse_propensity_L: np.ndarray
    features_M: np.ndarray  # feature that a node compares; negative for a leaf
    thresholds_M: np.ndarray  # at most this: to the left
    children_M2: np.ndarray
    shares_M: np.ndarray  # of the candidates in the node that are true
    name: ClassVar[RuleName] = "tree"

    def scores(self, candidates: Candidates) -> np.ndarray:
        total_C: np.ndarray = self.probabilities(candidates) + candidates.scaled_CP.sum(axis=1)
        return total_C

    def probabilities(self, candidates: Candidates) -> np.ndarray:
        """[C] how likely the tree holds each candidate to be true."""
        features_CF = _features(candidates, self.inverse_propensity_L)
        rows, nodes_C = np.arange(len(features_CF)), np.zeros(len(features_CF), np.int64)
        for _ in range(DEPTH):
            tested_C = self.features_M[nodes_C]
            right_C = features_CF[rows, tested_C] > self.thresholds_M[nodes_C]
            nodes_C = np.where(tested_C < 0, nodes_C, self.children_M2[nodes_C, right_C.astype(np.int64)])
        shares_C: np.ndarray = self.shares_M[nodes_C]
        return shares_C


def fit_fusion(
    rule: RuleName,
    parts: Sequence[Predictions],
    targets: scipy.sparse.csr_array,
    inverse_propensity_L: np.ndarray,
    metric: str,
) -> Fusion:
    """The rule fitted to `parts`, predictions for N queries that were not trained on, with `targets` [N, L] of ones.

    Weights are the best by `metric`, the more even ones among equals. Raises XMCBenchError where nothing can be fitted.
    """
    if rule == "reciprocal-ranks":
        return ReciprocalRanks()
    candidates = Candidates.of(parts)
    true_C = candidates.truth(targets)
    if not true_C.any() or true_C.all():
        raise XMCBenchError(
            f"fusion by {rule}: {int(true_C.sum())} of {len(true_C)} held-out pairs are true, expected true and false "
            "ones to fit it on"
        )
    if rule == "tree":
        return _fit_tree(candidates, true_C, inverse_propensity_L)
    if len(parts) > MAX_PARTS:
        raise XMCBenchError(f"fusion by weighted: found {len(parts)} methods, expected at most {MAX_PARTS}")
    evaluators, k = find_evaluators([metric]), max(part.k for part in parts)
    lower = lower_is_better(evaluators)
    points = (point for point in product(range(STEPS + 1), repeat=len(parts)) if sum(point) == STEPS)
    even_first = sorted(points, key=lambda point: sum(x * x for x in point))

    def value(weights_P: np.ndarray) -> float:
        ranked = candidates.ranked(Weighted(weights_P).scores(candidates), k)
        reached = score(find_hits(ranked, targets, inverse_propensity_L), [metric], evaluators)[metric]
        return worth(metric, reached, lower)

    return Weighted(max((np.array(point) / STEPS for point in even_first), key=value))


def restore_fusion(rule: RuleName, arrays: dict[str, np.ndarray]) -> Fusion:
    """The fusion whose `arrays` these are."""
    return {kind.name: kind for kind in (ReciprocalRanks, Weighted, Tree)}[rule](**arrays)


def _finite(part: Predictions, held_NK: np.ndarray) -> np.ndarray:
    """[N, K] the scores in float64; pads, and labels with the score -inf, get the lowest one of all."""
    known_NK = held_NK & np.isfinite(part.scores)
    lowest = float(part.scores[known_NK].min()) if known_NK.any() else 0.0
    return np.where(known_NK, part.scores.astype(np.float64), lowest)


def _features(candidates: Candidates, inverse_propensity_L: np.ndarray) -> np.ndarray:
    """[C, F] what the tree sees, in float32, the type in which it was fitted."""
    weights_C = inverse_propensity_L[candidates.labels_C]
    return np.column_stack([candidates.scores_CP, weights_C]).astype(np.float32)


def _fit_tree(candidates: Candidates, true_C: np.ndarray, inverse_propensity_L: np.ndarray) -> Tree:
    from sklearn.tree import DecisionTreeClassifier

    features_CF = _features(candidates, inverse_propensity_L)
    tree = DecisionTreeClassifier(max_depth=DEPTH, random_state=0).fit(features_CF, true_C).tree_
    counts_M2 = tree.value[:, 0]  # of false and true candidates, or their shares
    return Tree(
        inverse_propensity_L,
        np.where(tree.children_left < 0, -1, tree.feature),
        tree.threshold,
        np.column_stack([tree.children_left, tree.children_right]),
        counts_M2[:, 1] / counts_M2.sum(axis=1),
    )
