"""Search among label vectors that faiss keeps in fewer bytes: bf16, int8, or product-quantised.

The float32 vectors are not kept, so an answer has the score of the rounded vector.

Legend: L labels, D dimensions; B queries of a chunk, K results, M nominated labels of a query.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from xmcbench.engine.search.exact import keys
from xmcbench.engine.search.faiss import LINKS, InFaiss, array, num_clusters, with_links, with_probes
from xmcbench.engine.search.kinds import CODES, Backend, VectorKind
from xmcbench.errors import XMCBenchError, import_extra

NUMBERS = 4  # of a vector that one byte of a product-quantised vector stands for (Jegou, Douze and Schmid, 2011)
BYTES = {"float32": 4, "bf16": 2, "int8": 1}  # of a number


class RoundedIndex(InFaiss):
    """All labels, a graph or clusters of them, with vectors that are rounded to `vectors`, on the CPU.

    Raises `XMCBenchError` without faiss, and where fewer than `CODES` labels should be product-quantised.
    """

    def __init__(self, labels_LD: Tensor, *, backend: Backend, vectors: VectorKind) -> None:
        faiss = import_extra("faiss", "cpu", "a search among rounded vectors")  # or `gpu`
        super().__init__(labels_LD)
        self.give_up_vectors()
        if vectors == "pq" and len(labels_LD) < CODES:
            raise XMCBenchError(
                f"vectors: pq needs at least {CODES} labels with different vectors, found {len(labels_LD)}"
            )
        self.graph, self.most, vectors_LD = backend == "faiss-hnsw", len(labels_LD), array(labels_LD)
        self.index = _empty(faiss, backend, vectors, *labels_LD.shape)
        self.index.train(vectors_LD)
        self.index.add(vectors_LD)

    def _search(self, queries_BD: Tensor, k: int, exclude: sp.csr_array | None) -> Tensor:
        scores_BM, labels_BM = self.found(queries_BD, k, exclude)
        scores_BM[labels_BM < 0] = -np.inf
        device = self.labels_LD.device
        keys_BM = keys(torch.from_numpy(scores_BM).to(device), torch.from_numpy(labels_BM).to(device))
        return keys_BM.topk(k, dim=1).values


def _empty(faiss: Any, backend: Backend, vectors: VectorKind, num_labels: int, dimension: int) -> Any:
    """An index of faiss without labels."""
    product, clusters = faiss.METRIC_INNER_PRODUCT, num_clusters(num_labels)
    if vectors == "pq":
        parts, graph = num_parts(dimension), backend == "faiss-hnsw"
        if backend == "exact":
            index = faiss.IndexPQ(dimension, parts, 8, product)
        elif graph:
            index = with_links(faiss.IndexHNSWPQ(dimension, parts, LINKS, 8, product))
        else:
            centres = faiss.IndexFlatIP(dimension)
            index = with_probes(faiss.IndexIVFPQ(centres, dimension, clusters, parts, 8, product))
        coded = faiss.downcast_index(index.storage) if graph else index
        coded.pq.cp.min_points_per_centroid = 1  # else faiss warns of each byte where labels are few
        return index
    kind = {"bf16": faiss.ScalarQuantizer.QT_bf16, "int8": faiss.ScalarQuantizer.QT_8bit}[vectors]
    if backend == "exact":
        return faiss.IndexScalarQuantizer(dimension, kind, product)
    if backend == "faiss-hnsw":
        return with_links(faiss.IndexHNSWSQ(dimension, kind, LINKS, product))
    centres = faiss.IndexFlatIP(dimension)
    return with_probes(faiss.IndexIVFScalarQuantizer(centres, dimension, clusters, kind, product))


def num_parts(dimension: int) -> int:
    """The bytes of a product-quantised vector: at most one for `NUMBERS` numbers, and each for as many."""
    return max(parts for parts in range(1, max(1, dimension // NUMBERS) + 1) if dimension % parts == 0)


def vector_bytes(dimension: int, vectors: VectorKind) -> int:
    """The bytes of one vector."""
    return num_parts(dimension) if vectors == "pq" else BYTES[vectors] * dimension
