"""Fusion rules against their definitions, one query and one label at a time."""

from __future__ import annotations

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st
from sklearn.tree import DecisionTreeClassifier

from xmcbench.errors import XMCBenchError
from xmcbench.evaluation import find_evaluators, find_hits, rank, score
from xmcbench.evaluation.fusion import Candidates, ReciprocalRanks, Tree, Weighted, fit_fusion, restore_fusion
from xmcbench.trial.predictions import Predictions

LABELS = 12


def made(seed: int, queries: int = 9, k: int = 5, levels: int = 4) -> Predictions:
    """Predictions with ties and pads."""
    rng = np.random.default_rng(seed)
    labels = np.array([rng.permutation(LABELS)[:k] for _ in range(queries)]).reshape(queries, k)
    labels[rng.random(labels.shape) < 0.2] = -1
    return rank(labels, rng.integers(-levels, levels, labels.shape) / 3, k)


def listed(part: Predictions, query: int) -> dict[int, float]:
    """The scores of a query's labels, best first."""
    pairs = zip(part.indices[query].tolist(), part.scores[query].tolist(), strict=True)
    return {label: value for label, value in pairs if label >= 0}


def ranking(fused: dict[int, float], k: int) -> list[int]:
    best = sorted(fused, key=lambda label: (-np.float32(fused[label]), label))[:k]
    return best + [-1] * (k - len(best))


@given(seed=st.integers(0, 10_000), parts=st.integers(1, 3), k=st.integers(1, 14))
def test_reciprocal_ranks_are_those_of_a_loop(seed: int, parts: int, k: int) -> None:
    made_parts = [made(seed + 7 * part) for part in range(parts)]
    fused = ReciprocalRanks().fuse(made_parts, k)
    for query in range(len(fused)):
        total: dict[int, float] = {}
        for part in made_parts:
            for place, label in enumerate(listed(part, query), start=1):
                total[label] = total.get(label, 0.0) + 1 / (60 + place)
        assert fused.indices[query, :k].tolist() == ranking(total, k)


@given(seed=st.integers(0, 10_000), share=st.floats(0, 1))
def test_weighted_scores_are_those_of_a_loop(seed: int, share: float) -> None:
    parts, weights = [made(seed), made(seed + 7)], [share, 1 - share]
    candidates = Candidates.of(parts)
    found = Weighted(np.array(weights)).scores(candidates)
    wanted = []
    for query, label in zip(candidates.queries_C, candidates.labels_C, strict=True):
        total = 0.0
        for part, weight in zip(parts, weights, strict=True):
            own = listed(part, int(query))
            if label in own:
                low, high = min(own.values()), max(own.values())
                total += weight * ((own[label] - low) / (high - low) if high > low else 1.0)
        wanted.append(total)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_every_listed_pair_is_one_candidate() -> None:
    parts = [made(1), made(2, k=3)]
    found = Candidates.of(parts)
    pairs = list(zip(found.queries_C.tolist(), found.labels_C.tolist(), strict=True))
    assert pairs == sorted({(q, label) for part in parts for q in range(9) for label in listed(part, q)})


def truth_of(part: Predictions, place: int) -> scipy.sparse.csr_array:
    """The label at one place of each query is true, as far as there is one."""
    rows = np.flatnonzero(part.indices[:, place] >= 0)
    ones = np.ones(len(rows), np.float32)
    return scipy.sparse.csr_array((ones, (rows, part.indices[rows, place])), shape=(len(part), LABELS))


def test_chosen_weights_are_the_best_of_the_grid() -> None:
    parts = [made(seed, queries=40, levels=50) for seed in (1, 2, 3)]
    truth, weights_L = truth_of(parts[1], 1), np.ones(LABELS)
    found = fit_fusion("weighted", parts, truth, weights_L, "nDCG@3")
    assert isinstance(found, Weighted)

    def value(weights: tuple[float, ...]) -> float:
        fused = Weighted(np.array(weights)).fuse(parts, 5)
        return score(find_hits(fused, truth, weights_L), ["nDCG@3"], find_evaluators(["nDCG@3"]))["nDCG@3"]

    grid = [(a / 20, b / 20, (20 - a - b) / 20) for a in range(21) for b in range(21 - a)]
    assert len(grid) == 231
    assert value(tuple(found.weights_P)) == max(map(value, grid))
    assert found.weights_P[1] > 0.5


def test_equal_methods_get_equal_weights() -> None:
    part = made(4, queries=30)
    found = fit_fusion("weighted", [part, part], truth_of(part, 0), np.ones(LABELS), "P@1")
    assert found.arrays()["weights_P"].tolist() == [0.5, 0.5]


def test_the_trees_probabilities_are_those_of_scikit_learn() -> None:
    parts = [made(seed, queries=200, levels=30) for seed in (5, 6)]
    weights_L = np.linspace(1, 9, LABELS)
    truth = truth_of(parts[0], 0)
    found = fit_fusion("tree", parts, truth, weights_L, "P@1")
    assert isinstance(found, Tree)
    candidates = Candidates.of(parts)
    features = np.column_stack([candidates.scores_CP, weights_L[candidates.labels_C]]).astype(np.float32)
    true = np.array(
        [truth[[q], [label]][0] > 0 for q, label in zip(candidates.queries_C, candidates.labels_C, strict=True)]
    )
    tree = DecisionTreeClassifier(max_depth=7, random_state=0).fit(features, true)
    wanted = tree.predict_proba(features)[:, 1]
    assert tree.get_depth() == 7
    np.testing.assert_allclose(found.probabilities(candidates), wanted, rtol=1e-12)
    np.testing.assert_allclose(found.scores(candidates), wanted + candidates.scaled_CP.sum(axis=1))
    again = restore_fusion("tree", found.arrays())
    assert np.array_equal(again.fuse(parts, 4).indices, found.fuse(parts, 4).indices)


def test_a_label_that_a_method_does_not_list_has_its_lowest_score_of_the_query() -> None:
    first = Predictions(np.array([[3, 1], [2, -1]], np.int32), np.array([[0.9, 0.4], [0.7, -np.inf]], np.float32))
    second = Predictions(np.array([[5, 3], [-1, -1]], np.int32), np.array([[8, 2], [-np.inf] * 2], np.float32))
    found = Candidates.of([first, second])
    assert found.labels_C.tolist() == [1, 3, 5, 2]
    np.testing.assert_allclose(found.scores_CP, [[0.4, 2], [0.9, 2], [0.4, 8], [0.7, 2]], rtol=1e-6)
    assert found.scaled_CP.tolist() == [[0, 0], [1, 0], [0, 1], [1, 0]]
    assert found.ranks_CP.tolist() == [[2, np.inf], [1, 2], [np.inf, 1], [1, np.inf]]


def test_what_cannot_be_fitted_is_one_line() -> None:
    part = made(4, queries=30)
    nothing = scipy.sparse.csr_array((30, LABELS), dtype=np.float32)
    with pytest.raises(XMCBenchError, match=r"tree: 0 of \d+ held-out pairs are true"):
        fit_fusion("tree", [part, part], nothing, np.ones(LABELS), "P@1")
    with pytest.raises(XMCBenchError, match="found 5 methods, expected at most 4"):
        fit_fusion("weighted", [part] * 5, truth_of(part, 0), np.ones(LABELS), "P@1")
