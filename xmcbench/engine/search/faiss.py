"""Search with faiss, an optional dependency: a flat index, or a graph that finds most of the best labels.

Faiss nominates labels; `exact.rank` scores and sorts them, so that all backends return the same scores.

Legend: N queries, L labels, D dimensions; B queries of a chunk, M nominated labels of a query.
"""

from __future__ import annotations

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
from xmcbench.errors import XMCBenchError
from xmcbench.trial.predictions import Predictions


@dataclass(frozen=True)
class HNSW:
    """Settings of the graph (Malkov and Yashunin, 2018): `m` links per label, and the candidates of a search.

    With several threads, the graph depends on their timing.
    """

    m: int = 32
    ef_construction: int = 200
    ef_search: int = 200  # raised to the number of requested labels


class FaissIndex:
    """Float32 label vectors in faiss: a flat index on the GPUs, if faiss has any, or with `hnsw` a graph on the CPU."""

    def __init__(self, labels_LD: Tensor, hnsw: HNSW | None = None) -> None:
        faiss = import_faiss()
        self.labels_LD, self.hnsw = labels_LD.detach(), hnsw
        dimension = labels_LD.shape[1]
        if hnsw is None:
            self.index = faiss.IndexFlatIP(dimension)
            if getattr(faiss, "get_num_gpus", int)():
                self.index = faiss.index_cpu_to_all_gpus(self.index)
        else:
            self.index = faiss.IndexHNSWFlat(dimension, hnsw.m, faiss.METRIC_INNER_PRODUCT)
            self.index.hnsw.efConstruction = hnsw.ef_construction
        self.index.add(_array(labels_LD))
        self.longest = float(self.labels_LD.norm(dim=1, dtype=torch.float32).max())

    @torch.no_grad()
    def top_k(self, queries_ND: Tensor, k: int, *, exclude: sp.csr_array | None = None) -> Predictions:
        """The `k` best labels of each query, as from `exact.ExactIndex`; a graph may miss some.

        Pairs in `exclude` [N, L] are left out; faiss searches for that many more labels. -1 pads short rows.
        """
        exact.check(queries_ND, self.labels_LD, k, exclude)
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
        wanted = min(len(self.labels_LD), k + exact.SPARE + most)
        if self.hnsw is not None:
            self.index.hnsw.efSearch = max(self.hnsw.ef_search, wanted)
        scores_BM, labels_BM = self.index.search(_array(queries_BD), wanted)
        if excluded is not None:
            labels_BM[contains(excluded, labels_BM)] = -1
        device = self.labels_LD.device
        best = predictions(exact.rank(queries_BD, self.labels_LD, torch.from_numpy(labels_BM).to(device), k))
        if self.hnsw is None and wanted < len(self.labels_LD):
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
