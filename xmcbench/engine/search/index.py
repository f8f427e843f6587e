"""An index of label vectors, built by the name of its search backend; shortlists of training queries are searched
exactly, or approximately where there are many pairs.

Legend: N queries, L labels, D dimensions, S queries of a sample.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from xmcbench.engine.search.kinds import Backend, VectorKind, is_approximate

if TYPE_CHECKING:
    from collections.abc import Callable

    import scipy
    from torch import Tensor

    from xmcbench.engine.losses.own_scores import Score
    from xmcbench.engine.search.exact import Index
    from xmcbench.trial.predictions import Predictions

LARGE_SEARCH = 10**12  # pairs of a query and a label: a search for shortlists among more is approximate
SAMPLE = 256  # queries that are also searched exactly, to measure the recall


def build_index(
    labels_LD: Tensor, backend: Backend = "exact", score: Score | None = None, vectors: VectorKind = "float32"
) -> Index:
    """An index of the labels, by their distinct vectors where more than `SPARE` labels have one.

    With `score` it finds the labels of the highest scores in place of inner products, exactly. Raises `XMCBenchError`
    if it needs faiss and faiss is missing, or if there are too few labels for `vectors`.
    """
    import torch

    from xmcbench.engine.search.exact import SPARE, ExactIndex
    from xmcbench.engine.search.faiss import FaissIndex
    from xmcbench.engine.search.rounded import RoundedIndex
    from xmcbench.engine.search.scored import ScoredIndex
    from xmcbench.engine.search.twins import TwinIndex, distinct

    if score is not None:
        return ScoredIndex(labels_LD, score)
    build: Callable[[Tensor], Index] = ExactIndex
    if vectors != "float32":
        build = partial(RoundedIndex, backend=backend, vectors=vectors)
    elif backend != "exact":
        build = partial(FaissIndex, graph=backend == "faiss-hnsw")
    # Equal vectors begin alike: one value of each is read before all are compared.
    alike = labels_LD.numel() and int(torch.unique(labels_LD[:, 0], return_counts=True)[1].max())
    if alike > SPARE and int((groups_L := distinct(labels_LD)).bincount().max()) > SPARE:
        return TwinIndex(labels_LD, groups_L, build)
    return build(labels_LD)


def top_k(
    queries_ND: Tensor, labels_LD: Tensor, k: int, *, exclude: scipy.sparse.csr_array | None = None
) -> Predictions:
    """The `k` labels of highest inner product for each query [N, k]; ties rank by lower label id. See `ExactIndex`."""
    return build_index(labels_LD).top_k(queries_ND, k, exclude=exclude)


def backend_for(num_queries: int, num_labels: int) -> Backend:
    """The backend of a search for shortlists. It follows from the size alone, so that all machines use the same."""
    return "exact" if num_queries * num_labels <= LARGE_SEARCH else "faiss-ivf"


def search_flops(num_queries: int, num_labels: int, dimension: int) -> int:
    """Operations of a search for shortlists; of an approximate one, with those of building its index."""
    from xmcbench.engine.search.faiss import cluster_flops

    if backend_for(num_queries, num_labels) == "exact":
        return 2 * num_queries * num_labels * dimension
    return cluster_flops(num_queries, num_labels, dimension)


def index_bytes(backend: Backend, num_labels: int, dimension: int, vectors: VectorKind = "float32") -> int:
    """Bytes that an index holds beside the label vectors: faiss has a copy of them, and links or ids of labels."""
    from xmcbench.engine.search.faiss import LINKS
    from xmcbench.engine.search.rounded import vector_bytes

    if not is_approximate(backend, vectors):
        return 0
    beside = {"exact": 0, "faiss-hnsw": 4 * 2 * LINKS, "faiss-ivf": 8}[backend]
    return num_labels * (vector_bytes(dimension, vectors) + beside)


def measured_recall(
    index: Index, queries_ND: Tensor, labels_LD: Tensor, k: int, exclude: scipy.sparse.csr_array
) -> float:
    """The share of the exact `k` nearest labels that `index` finds, of a sample of queries; counts no operations."""
    from xmcbench.engine import flops

    sample = np.unique(np.linspace(0, len(queries_ND) - 1, SAMPLE).astype(int))
    queries_SD, excluded = queries_ND[sample], exclude[sample]
    with flops.counting():
        exact = top_k(queries_SD, labels_LD, k, exclude=excluded)
        answered = index.top_k(queries_SD, k, exclude=excluded)
    hits = (np.isin(*rows).sum() for rows in zip(exact.indices, answered.indices, strict=True))
    return float(sum(hits)) / exact.indices.size
