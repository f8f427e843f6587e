"""Exact search against a sort of every score."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from xmcbench.search import exact, top_k


def brute_force(scores: np.ndarray, k: int, excluded: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Per row: score descending, then label ascending, excluded pairs last and shown as -1."""
    indices = np.full((len(scores), k), -1)
    best = np.full((len(scores), k), -np.inf)
    for row, of_row in enumerate(scores):
        order = [label for label in np.lexsort((np.arange(len(of_row)), -of_row)) if not excluded[row, label]][:k]
        indices[row, : len(order)], best[row, : len(order)] = order, of_row[order]
    return indices, best


@st.composite
def searches(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int, np.ndarray]:
    """Queries, labels, k and excluded pairs; vectors of small integers tie often."""
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    queries, labels, dimension = draw(st.integers(1, 6)), draw(st.integers(1, 30)), draw(st.integers(1, 3))
    most = draw(st.integers(0, 2))
    vectors = (rng.integers(-most, most + 1, (rows, dimension)) for rows in (queries, labels))
    excluded = rng.random((queries, labels)) < draw(st.sampled_from([0.0, 0.3, 0.9, 1.0]))
    return *vectors, draw(st.integers(1, labels)), excluded


@given(case=searches(), chunk=st.integers(1, 100))
def test_top_k_is_a_sort_by_score_then_label(case: tuple[np.ndarray, np.ndarray, int, np.ndarray], chunk: int) -> None:
    queries, labels, k, excluded = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "CHUNK_SCORES", chunk)
        found = top_k(torch.from_numpy(queries), torch.from_numpy(labels), k, exclude=sp.csr_array(excluded))
    indices, scores = brute_force(queries @ labels.T, k, excluded)
    np.testing.assert_array_equal(found.indices, indices)
    np.testing.assert_array_equal(found.scores, scores)
    assert (found.indices.dtype, found.scores.dtype) == (np.int32, np.float32)


def test_without_excluded_pairs() -> None:
    found = top_k(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 5.0], [2.0, 0.0], [1.0, -3.0]]), 3)
    assert found.indices.tolist() == [[1, 0, 2]]
    assert found.scores.tolist() == [[2.0, 1.0, 1.0]]


def test_half_precision_vectors_are_scored_in_float32() -> None:
    queries, labels = torch.randn(3, 8).bfloat16(), torch.randn(9, 8).bfloat16()
    np.testing.assert_array_equal(top_k(queries, labels, 4).scores, top_k(queries.float(), labels.float(), 4).scores)


def test_no_queries_give_no_rows() -> None:
    found = top_k(torch.empty(0, 4), torch.randn(5, 4), 3)
    assert found.indices.shape == found.scores.shape == (0, 3)


def test_more_than_there_are_labels_is_an_error() -> None:
    with pytest.raises(ValueError, match="top 6 of 5 labels"):
        top_k(torch.randn(2, 4), torch.randn(5, 4), 6)
