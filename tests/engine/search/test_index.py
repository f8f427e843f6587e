"""The backends of an index, against exact search."""

from __future__ import annotations

import sys
from typing import get_args

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from xmcbench import XMCBenchError
from xmcbench.engine.search import Backend, build_index, faiss, top_k
from xmcbench.trial.predictions import Predictions

from .cases import clustered

BACKENDS: tuple[Backend, ...] = get_args(Backend)


def recall(found: Predictions, expected: Predictions) -> float:
    return float(
        np.mean([len(np.intersect1d(*rows)) for rows in zip(found.indices, expected.indices, strict=True)]) / found.k
    )


@pytest.mark.parametrize("backend", ["faiss-hnsw", "faiss-ivf"])
def test_graph_and_clusters_find_most_of_the_best_labels_and_score_them_alike(backend: Backend) -> None:
    case = clustered()
    exact = top_k(case.queries_ND, case.labels_LD, case.k, exclude=case.exclude)
    index = build_index(case.labels_LD, backend)
    found = index.top_k(case.queries_ND, case.k, exclude=case.exclude)
    assert recall(found, exact) > 0.95
    assert (found.indices >= 0).all()
    scores = (case.queries_ND[:, None] * case.labels_LD[torch.from_numpy(found.indices).long()]).sum(2)
    np.testing.assert_array_equal(found.scores, scores)


@pytest.mark.parametrize(("backend", "width"), [("faiss-hnsw", "BREADTH"), ("faiss-ivf", "PROBES")])
def test_a_wider_search_finds_more(backend: Backend, width: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = clustered(k=10)
    exact, wide = (build_index(case.labels_LD, each).top_k(case.queries_ND, 10) for each in ("exact", backend))
    for name, few in (("LINKS", 4), ("CONSTRUCTION", 8), (width, 1)):
        monkeypatch.setattr(faiss, name, few)
    narrow = build_index(case.labels_LD, backend).top_k(case.queries_ND, 10)
    assert recall(narrow, exact) < recall(wide, exact)


@pytest.mark.parametrize("backend", BACKENDS)
def test_excluded_pairs_are_refilled_and_what_is_missing_is_padded(backend: Backend) -> None:
    labels_LD = torch.arange(40.0)[:, None]
    exclude = sp.csr_array(np.arange(40)[None, :] >= np.array([[30], [2], [0]]))
    found = build_index(labels_LD, backend).top_k(torch.ones(3, 1), 4, exclude=exclude)
    assert found.indices.tolist() == [[29, 28, 27, 26], [1, 0, -1, -1], [-1, -1, -1, -1]]
    assert found.scores.tolist() == [[29, 28, 27, 26], [1, 0, -np.inf, -np.inf], [-np.inf] * 4]


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_has_no_answer_is_refused_by_all(backend: Backend) -> None:
    index = build_index(torch.ones(5, 2), backend)
    with pytest.raises(ValueError, match="top 6 of 5 labels"):
        index.top_k(torch.ones(1, 2), 6)
    with pytest.raises(ValueError, match="a query vector contains nan"):
        index.top_k(torch.full((1, 2), torch.nan), 1)


def test_without_faiss_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(XMCBenchError, match=r"pip install 'xmcbench\[cpu\]'"):
        build_index(torch.ones(2, 2), "faiss-ivf")
    assert len(build_index(torch.ones(2, 2), "exact").top_k(torch.ones(1, 2), 1)) == 1


def test_on_a_gpu_faiss_is_asked_for_no_more_than_it_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    import faiss as library

    class OnGPUs:
        def __init__(self, index: library.IndexIVFFlat) -> None:
            self.train, self.add, self.index = index.train, index.add, index

        def search(self, queries_BD: np.ndarray, wanted: int) -> object:
            assert wanted <= 8, "what faiss raises there"
            return self.index.search(queries_BD, wanted)

    monkeypatch.setattr(faiss, "MOST_ON_GPU", 8)
    monkeypatch.setattr(library, "get_num_gpus", lambda: 1, raising=False)
    monkeypatch.setattr(library, "index_cpu_to_all_gpus", OnGPUs, raising=False)
    index = build_index(torch.arange(40.0)[:, None], "faiss-ivf")
    exclude = sp.csr_array(np.arange(40)[None, :] >= np.array([[35]]))
    assert index.top_k(torch.ones(1, 1), 4, exclude=exclude).indices.tolist() == [[34, 33, 32, -1]]
    with pytest.raises(XMCBenchError, match="at most 8 labels of a query on a GPU, asked for 9"):
        index.top_k(torch.ones(1, 1), 9)
