"""Labels with equal vectors, of which more tie than a search nominates."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given

from xmcbench.engine.search import build_index
from xmcbench.engine.search.exact import ExactIndex
from xmcbench.engine.search.twins import TwinIndex, distinct
from xmcbench.trial.predictions import Predictions

from .cases import Case, assert_same, tied

QUERIES, VECTORS = 700, 30


@pytest.fixture(scope="module")
def queries_ND() -> torch.Tensor:
    vectors_ND = torch.randn(QUERIES, 48, generator=torch.Generator().manual_seed(1))
    return torch.nn.functional.normalize(vectors_ND, dim=1)


@pytest.fixture(scope="module")
def labels_LD() -> torch.Tensor:
    """30 vectors, of which some are those of 60 labels and one that of 400."""
    draw = torch.Generator().manual_seed(0)
    vectors_GD = torch.nn.functional.normalize(torch.randn(VECTORS, 48, generator=draw), dim=1)
    groups_L = torch.cat([torch.arange(VECTORS), torch.full((400,), 3), torch.arange(10).repeat(60)])
    return vectors_GD[groups_L[torch.randperm(len(groups_L), generator=draw)]]


def solution(queries_ND: torch.Tensor, labels_LD: torch.Tensor, k: int, exclude: sp.csr_array) -> Predictions:
    scores_NL = torch.stack([(labels_LD * query_D).sum(1) for query_D in queries_ND]).numpy()
    scores_NL[exclude.toarray() != 0] = -np.inf
    best_NK = np.argsort(-scores_NL, axis=1, kind="stable")[:, :k]
    scores_NK = np.take_along_axis(scores_NL, best_NK, 1)
    return Predictions(np.where(scores_NK == -np.inf, -1, best_NK).astype(np.int32), scores_NK)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("k", [1, 17, 450, 1030])
def test_twins_rank_by_their_ids_in_every_batch(
    queries_ND: torch.Tensor, labels_LD: torch.Tensor, k: int, share: float
) -> None:
    index = build_index(labels_LD)
    shape = QUERIES, len(labels_LD)
    exclude = sp.random_array(shape, density=share, rng=np.random.default_rng(2), format="csr")
    found = index.top_k(queries_ND, k, exclude=exclude)
    assert_same(found, solution(queries_ND, labels_LD, k, exclude))
    for size in (32, 500):
        rows = [slice(start, start + size) for start in range(0, QUERIES, size)]
        parts = [index.top_k(queries_ND[part], k, exclude=exclude[part]) for part in rows]
        assert np.array_equal(found.indices, np.concatenate([part.indices for part in parts]))


@given(case=tied())
def test_other_vectors_with_the_same_score_rank_by_the_ids_of_their_labels(case: Case) -> None:
    index = TwinIndex(case.labels_LD, distinct(case.labels_LD), ExactIndex)
    assert_same(index.top_k(case.queries_ND, case.k, exclude=case.exclude), case.solution())


def test_only_labels_with_many_twins_are_searched_by_their_vectors(labels_LD: torch.Tensor) -> None:
    assert isinstance(build_index(labels_LD), TwinIndex)
    assert isinstance(build_index(labels_LD.unique(dim=0).repeat(8, 1)), ExactIndex)


def test_vectors_of_equal_sums_are_not_taken_for_equal() -> None:
    labels_LD = torch.tensor([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0], [2.0, 1.0], [0.0, 0.5]])
    found = TwinIndex(labels_LD, distinct(labels_LD), ExactIndex).top_k(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), 3)
    assert found.indices.tolist() == [[1, 3, 0], [0, 2, 1]]


def test_more_labels_than_there_are_cannot_be_asked_for(labels_LD: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="top 1031 of 1030 labels"):
        build_index(labels_LD).top_k(labels_LD[:1], 1031)
