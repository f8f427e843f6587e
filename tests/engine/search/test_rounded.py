"""Searches among rounded label vectors: exact ones find the best rounded vectors, others most of them."""

from __future__ import annotations

from typing import Any, get_args

import faiss
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from xmcbench import XMCBenchError, registry
from xmcbench.data import find_source
from xmcbench.data.source import FEWEST_TRAIN, SIZES
from xmcbench.engine.search import Backend, VectorKind, build_index
from xmcbench.engine.search.faiss import num_clusters
from xmcbench.engine.search.index import index_bytes
from xmcbench.engine.search.rounded import RoundedIndex
from xmcbench.trial.predictions import Predictions

from .cases import Case, clustered

BACKENDS: tuple[Backend, ...] = get_args(Backend)
ROUNDED: tuple[VectorKind, ...] = tuple(kind for kind in get_args(VectorKind) if kind != "float32")


def decoded(index: Any) -> Tensor:
    """[L, D] the vectors that faiss has kept."""
    return torch.from_numpy(index.index.reconstruct_n(0, index.index.ntotal))


def best(case: Case, labels_LD: Tensor) -> Predictions:
    """The answer by float64 products with these vectors."""
    return Case(case.queries_ND, labels_LD, case.k, case.exclude).solution()


def shared(found: Predictions, expected: Predictions) -> float:
    hits = [len(np.intersect1d(*rows)) for rows in zip(found.indices, expected.indices, strict=True)]
    return float(np.mean(hits) / found.k)


@pytest.mark.parametrize("vectors", ROUNDED)
def test_an_exact_search_finds_the_best_rounded_vectors_and_has_their_scores(vectors: VectorKind) -> None:
    case = clustered()
    index = build_index(case.labels_LD, "exact", vectors=vectors)
    found = index.top_k(case.queries_ND, case.k, exclude=case.exclude)
    expected = best(case, decoded(index))
    np.testing.assert_allclose(found.scores, expected.scores, atol=2e-5)
    assert shared(found, expected) > 0.9, "labels with equal rounded vectors change places"
    assert not case.exclude[np.repeat(np.arange(len(found)), found.k), found.indices.ravel()].any()


def test_bf16_vectors_are_those_that_torch_rounds() -> None:
    case = clustered()
    index = build_index(case.labels_LD, "exact", vectors="bf16")
    np.testing.assert_array_equal(decoded(index).numpy(), case.labels_LD.bfloat16().float().numpy())


@pytest.mark.parametrize("backend", ["faiss-hnsw", "faiss-ivf"])
@pytest.mark.parametrize("vectors", ROUNDED)
def test_graph_and_clusters_find_most_of_what_an_exact_search_finds(backend: Backend, vectors: VectorKind) -> None:
    case = clustered(k=10)
    exact, other = (
        build_index(case.labels_LD, each, vectors=vectors).top_k(case.queries_ND, 10) for each in ("exact", backend)
    )
    assert np.mean(np.sort(other.scores) >= np.sort(exact.scores) - 0.02) > 0.9


@pytest.mark.parametrize("copies", [1, 20])
def test_a_rounded_index_holds_no_float32_vectors_also_where_many_are_equal(copies: int) -> None:
    labels_LD = torch.randn(500, 32).repeat(copies, 1)
    outer = build_index(labels_LD, vectors="int8")
    inner = getattr(outer, "index", None) if copies > 1 else outer
    held = [value for index in (outer, inner) for value in vars(index).values() if isinstance(value, Tensor)]
    assert isinstance(inner, RoundedIndex)
    assert sum(tensor.untyped_storage().nbytes() for tensor in held) < 100


def test_fewer_bytes_find_fewer_of_the_best_labels() -> None:
    case = clustered(num_queries=200, k=10)
    exact = build_index(case.labels_LD).top_k(case.queries_ND, 10)
    found = {kind: build_index(case.labels_LD, vectors=kind).top_k(case.queries_ND, 10) for kind in ROUNDED}
    assert shared(found["bf16"], exact) > shared(found["int8"], exact) > shared(found["pq"], exact) > 0.2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("vectors", ROUNDED)
def test_an_index_holds_the_bytes_that_a_plan_counts(backend: Backend, vectors: VectorKind) -> None:
    small, large = clustered(num_labels=1_000), clustered(num_labels=4_000)
    sizes = [
        faiss.serialize_index(build_index(case.labels_LD, backend, vectors=vectors).index).nbytes
        for case in (small, large)
    ]
    counted = [index_bytes(backend, len(case.labels_LD), 48, vectors) for case in (small, large)]
    # Clusters have centres, more among more labels; a graph has few links above its lowest level.
    centres = 4 * 48 * (num_clusters(4_000) - num_clusters(1_000)) if backend == "faiss-ivf" else 0
    assert (sizes[1] - sizes[0] - centres) / (counted[1] - counted[0]) == pytest.approx(1, abs=0.1)


def test_the_float32_vectors_are_not_kept() -> None:
    index = build_index(clustered().labels_LD, "exact", vectors="int8")
    assert index.labels_LD.untyped_storage().nbytes() == 4


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("vectors", ["bf16", "int8"])
def test_excluded_pairs_are_refilled_and_what_is_missing_is_padded(backend: Backend, vectors: VectorKind) -> None:
    labels_LD = torch.arange(40.0)[:, None]
    exclude = sp.csr_array(np.arange(40)[None, :] >= np.array([[30], [2], [0]]))
    found = build_index(labels_LD, backend, vectors=vectors).top_k(torch.ones(3, 1), 4, exclude=exclude)
    assert found.indices.tolist() == [[29, 28, 27, 26], [1, 0, -1, -1], [-1, -1, -1, -1]]
    np.testing.assert_allclose(found.scores[0], [29, 28, 27, 26], rtol=0.01)
    assert np.isneginf(found.scores[found.indices < 0]).all()


def test_many_equal_labels_are_searched_by_their_distinct_vectors() -> None:
    labels_LD = clustered(num_labels=400).labels_LD.repeat(20, 1)
    index = build_index(labels_LD, "exact", vectors="int8")
    found = index.top_k(labels_LD[:3], 15)
    assert (found.indices[:, 1:] - found.indices[:, :-1] > 0).all(), "those of one vector, by their numbers"


def test_too_few_labels_for_product_quantisation_are_one_line() -> None:
    with pytest.raises(XMCBenchError, match="vectors: pq needs at least 256 labels with different vectors, found 255"):
        build_index(torch.randn(255, 8), vectors="pq")


@pytest.mark.parametrize("labels", [255, 256])
def test_a_trial_with_too_few_labels_for_product_quantisation_is_skipped(labels: int) -> None:
    dexml = registry().thing("method", "dexml")
    draft = find_source("catalog-1k").draft.model_copy(update=dict.fromkeys(SIZES))
    card = draft.card(FEWEST_TRAIN, 1, labels, where="here")
    told = {vectors: dexml(dexml.Config(vectors=vectors)).skip(card) for vectors in ("pq", "int8")}
    few = "vectors: pq needs at least 256 labels, found 255" if labels < 256 else None
    assert told == {"pq": few, "int8": None}


@pytest.mark.parametrize("backend", BACKENDS)
def test_few_labels_make_an_index_without_a_warning_of_faiss(
    backend: Backend, capfd: pytest.CaptureFixture[str]
) -> None:
    build_index(torch.randn(300, 8), backend, vectors="pq")
    build_index(torch.randn(12, 8), backend)
    assert tuple(capfd.readouterr()) == ("", "")


@pytest.mark.parametrize(("dimension", "parts"), [(512, 128), (48, 12), (50, 10), (7, 1), (3, 1), (1, 1)])
def test_vectors_of_any_length_are_product_quantised(dimension: int, parts: int) -> None:
    assert index_bytes("exact", 1, dimension, "pq") == parts
    labels_LD = torch.randn(300, dimension, generator=torch.Generator().manual_seed(0))
    assert len(build_index(labels_LD, vectors="pq").top_k(labels_LD[:2], 3)) == 2


def test_keys_of_settings_that_do_not_name_it_are_as_before() -> None:
    config = registry().method("dexml").thing.Config
    assert "vectors" not in config().model_dump()
    assert config(vectors="int8").model_dump()["vectors"] == "int8"
