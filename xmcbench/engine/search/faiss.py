"""Search with faiss, an optional dependency: a flat index, or a graph or clusters that find most of the best labels.

Faiss nominates labels; `exact.rank` scores and sorts them, so that all backends return the same scores.

Legend: N queries, L labels, D dimensions; B queries of a chunk, M nominated labels of a query.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from xmcbench.data.pairs import binary, contains
from xmcbench.engine.search import exact
from xmcbench.engine.search.order import predictions
from xmcbench.engine.search.twins import SPARE
from xmcbench.errors import XMCBenchError
from xmcbench.trial.predictions import Predictions

MIN_MEMBERS = 39  # labels per cluster, below which faiss warns


@dataclass(frozen=True)
class HNSW:
    """Settings of the graph (Malkov and Yashunin, 2018): `m` links per label, and the candidates of a search.

    With several threads, the graph depends on their timing.
    """

    m: int = 32
    ef_construction: int = 200
    ef_search: int = 200  # raised to the number of requested labels


@dataclass(frozen=True)
class IVF:
    """Settings of an inverted file (Sivic and Zisserman, 2003): labels in k-means clusters, of which a query sees few.

    With several threads, the clusters depend on rounding.
    """

    per_root: float = 4.0  # clusters per square root of the number of labels
    probes: int = 64  # clusters that are searched
    rounds: int = 10  # of k-means
    sample: int = 64  # labels per cluster that k-means sees

    def clusters(self, num_labels: int) -> int:
        """The number of clusters; they have at least `MIN_MEMBERS` labels on average."""
        return max(1, min(round(self.per_root * math.sqrt(num_labels)), num_labels // MIN_MEMBERS))

    def flops(self, num_queries: int, num_labels: int, dimension: int) -> int:
        """Operations of building the index and of searching it, if all clusters are equally large."""
        clusters = self.clusters(num_labels)
        built = self.rounds * min(num_labels, self.sample * clusters) * clusters + num_labels * clusters
        searched = num_queries * (clusters + min(self.probes, clusters) * num_labels // clusters)
        return 2 * dimension * (built + searched)


class FaissIndex:
    """Float32 label vectors in faiss: a flat index or clusters, on the GPUs if faiss has any, or a graph on the CPU."""

    def __init__(self, labels_LD: Tensor, approximate: HNSW | IVF | None = None) -> None:
        faiss = import_faiss()
        self.labels_LD, self.approximate = labels_LD.detach(), approximate
        self.greatest = exact.greatest(self.labels_LD)
        num_labels, dimension = labels_LD.shape
        vectors_LD = _array(labels_LD)
        if isinstance(approximate, HNSW):
            self.index = faiss.IndexHNSWFlat(dimension, approximate.m, faiss.METRIC_INNER_PRODUCT)
            self.index.hnsw.efConstruction = approximate.ef_construction
        else:
            self.index = faiss.IndexFlatIP(dimension)
            if isinstance(approximate, IVF):
                clusters = approximate.clusters(num_labels)
                self.index = faiss.IndexIVFFlat(self.index, dimension, clusters, faiss.METRIC_INNER_PRODUCT)
                self.index.cp.niter, self.index.cp.max_points_per_centroid = approximate.rounds, approximate.sample
                self.index.nprobe = min(approximate.probes, clusters)
            if getattr(faiss, "get_num_gpus", int)():
                self.index = faiss.index_cpu_to_all_gpus(self.index)
            self.index.train(vectors_LD)
        self.index.add(vectors_LD)
        self.longest = float(self.labels_LD.norm(dim=1, dtype=torch.float32).max())

    @torch.no_grad()
    def top_k(self, queries_ND: Tensor, k: int, *, exclude: sp.csr_array | None = None) -> Predictions:
        """The `k` best labels of each query, as from `exact.ExactIndex`; graph and clusters may miss some.

        Pairs in `exclude` [N, L] are left out; faiss searches for that many more labels. -1 pads short rows.
        """
        exact.check(queries_ND, self.labels_LD, self.greatest, k, exclude)
        results = Predictions(np.empty((len(queries_ND), k), np.int32), np.empty((len(queries_ND), k), np.float32))
        rows = exact.SIZES[self.labels_LD.device.type].rows
        for start in range(0, len(queries_ND), rows):
            part = slice(start, start + rows)
            queries_BD = queries_ND[part].to(self.labels_LD.device, torch.float32)
            best = self._search(queries_BD, k, None if exclude is None else exclude[part])
            results.indices[part], results.scores[part] = best.indices, best.scores
        return results

    def _search(self, queries_BD: Tensor, k: int, exclude: sp.csr_array | None) -> Predictions:
        excluded = None if exclude is None else binary(exclude)
        most = 0 if excluded is None else int(np.diff(excluded.indptr).max())
        wanted = min(len(self.labels_LD), k + SPARE + most)
        if isinstance(self.approximate, HNSW):
            self.index.hnsw.efSearch = max(self.approximate.ef_search, wanted)
        scores_BM, labels_BM = self.index.search(_array(queries_BD), wanted)
        if excluded is not None:
            labels_BM[contains(excluded, labels_BM)] = -1
        device = self.labels_LD.device
        best = predictions(exact.rank(queries_BD, self.labels_LD, torch.from_numpy(labels_BM).to(device), k))
        if self.approximate is None and wanted < len(self.labels_LD):
            unsure = np.flatnonzero(best.scores[:, -1] <= scores_BM[:, -1] + self._rounding(queries_BD))
            if len(unsure):  # labels beyond the last may tie with it, and faiss does not order ties by id
                of_unsure = None if exclude is None else exclude[unsure]
                better = exact.top_k(queries_BD[unsure], self.labels_LD, k, exclude=of_unsure)
                best.indices[unsure], best.scores[unsure] = better.indices, better.scores
        return best

    def _rounding(self, queries_BD: Tensor) -> np.ndarray:
        """[B] the largest difference of two float32 computations of a score: the error of each is D eps |q| |l|."""
        unit = queries_BD.shape[1] * torch.finfo(torch.float32).eps
        return _array(2 * unit * self.longest * queries_BD.norm(dim=1))


def _array(vectors: Tensor) -> np.ndarray:
    return np.ascontiguousarray(vectors.detach().float().cpu().numpy())


def import_faiss() -> Any:
    """The module `faiss`. Raises `XMCBenchError` with the command that installs it if it is missing."""
    try:
        return import_module("faiss")
    except ImportError as error:
        command = "pip install 'xmcbench[cpu]'"
        raise XMCBenchError(
            f"faiss is not installed, expected it for this search: {command} ([gpu] on a GPU)"
        ) from error
