from __future__ import annotations

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from xmcbench.data import pairs
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation import rank, rank_sparse

EDGES = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, 1e-45, -1e-45, 3.4e38, -3.4e38]
finite = st.floats(width=32, allow_nan=False)


@given(
    scores=hnp.arrays(
        np.float32, st.tuples(st.integers(0, 4), st.integers(0, 7)), elements=st.sampled_from(EDGES) | finite
    ),
    k=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_ranking_sorts_by_score_descending_then_label_ascending(scores: np.ndarray, k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    indices = np.array([rng.permutation(12)[: scores.shape[1]] for _ in scores]).reshape(scores.shape)
    indices[rng.random(scores.shape) < 0.2] = -1
    ranked = rank(indices, scores, k)
    for row in range(len(scores)):
        known = [(label, score) for label, score in zip(indices[row], scores[row], strict=True) if label >= 0]
        expected = sorted(known, key=lambda pair: (-pair[1], pair[0]))[:k]
        expected += [(-1, -np.inf)] * (ranked.k - len(expected))
        assert ranked.indices[row].tolist() == [label for label, _ in expected]
        assert ranked.scores[row].tolist() == [score for _, score in expected]


def test_labels_that_tie_as_float32_rank_by_label() -> None:
    ranked = rank(np.array([[9, 3]]), np.array([[0.1 + 1e-12, 0.1]]), 2)
    assert ranked.indices.tolist() == [[3, 9]]


def test_labels_up_to_the_largest_int32_survive() -> None:
    largest = np.iinfo(np.int32).max
    assert rank(np.array([[0, largest]]), np.array([[0.0, 1.0]]), 2).indices.tolist() == [[largest, 0]]


def test_chunks_do_not_change_the_ranking(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    indices, scores = rng.permuted(np.tile(np.arange(20), (9, 1)), axis=1), rng.integers(0, 5, (9, 20))
    whole = rank(indices, scores, 7)
    monkeypatch.setattr(pairs, "CHUNK_ENTRIES", 40)
    parts = rank(indices, scores, 7)
    assert np.array_equal(whole.indices, parts.indices)
    assert np.array_equal(whole.scores, parts.scores)


def test_a_score_that_is_nan_cannot_be_ranked_but_one_of_a_pad_may_be() -> None:
    with pytest.raises(XMCBenchError, match="NaN"):
        rank(np.array([[0, 1]]), np.array([[1.0, np.nan]]), 2)
    assert rank(np.array([[0, -1]]), np.array([[1.0, np.nan]]), 2).indices.tolist() == [[0, -1]]


def test_shapes_must_agree() -> None:
    with pytest.raises(XMCBenchError, match="must be equal"):
        rank(np.array([[0, 1]]), np.array([[1.0]]), 2)


@given(
    scores=hnp.arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 7)), elements=st.integers(-2, 2)),
    k=st.integers(1, 9),
)
def test_sparse_scores_rank_as_their_stored_entries_do(scores: np.ndarray, k: int) -> None:
    stored = scores != 0
    labels = np.where(stored, np.arange(scores.shape[1]), -1)
    labels = np.pad(labels, ((0, 0), (0, max(0, k - labels.shape[1]))), constant_values=-1)
    wanted = rank(labels, np.pad(scores, ((0, 0), (0, labels.shape[1] - scores.shape[1]))), k)
    found = rank_sparse(scipy.sparse.csr_array(scores), k)
    assert np.array_equal(found.indices, wanted.indices)
    assert np.array_equal(found.scores, wanted.scores)
