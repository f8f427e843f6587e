"""Approximate search with faiss, an optional dependency: a graph or clusters, which find most of the best labels.

Faiss nominates labels; `exact.rank` scores and sorts them, so that all backends return the same scores.

Legend: L labels, D dimensions; B queries of a chunk, M nominated labels of a query.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from xmcbench.data.pairs import binary, contains
from xmcbench.engine.search.exact import SPARE, Index, rank
from xmcbench.errors import XMCBenchError, import_extra

# Of the graph (HNSW; Malkov and Yashunin, 2018), which with several threads depends on their timing.
LINKS, CONSTRUCTION = 32, 200  # links per label, and the candidates that it chooses them from
BREADTH = 200  # candidates of a search; raised to the number of requested labels
# Of the clusters (IVF; Sivic and Zisserman, 2003), which with several threads depend on rounding.
PER_ROOT = 4.0  # clusters per square root of the number of labels
PROBES = 64  # clusters that are searched
ROUNDS = 10  # of k-means
SAMPLE = 64  # labels per cluster that k-means sees
MIN_MEMBERS = 39  # labels per cluster, below which faiss warns
MOST_ON_GPU = 2048  # labels that faiss finds for a query on a GPU


def num_clusters(num_labels: int) -> int:
    """The number of clusters; they have at least `MIN_MEMBERS` labels on average."""
    return max(1, min(round(PER_ROOT * math.sqrt(num_labels)), num_labels // MIN_MEMBERS))


def cluster_flops(num_queries: int, num_labels: int, dimension: int) -> int:
    """Operations of making the clusters and of searching them, if all are equally large."""
    clusters = num_clusters(num_labels)
    built = ROUNDS * min(num_labels, SAMPLE * clusters) * clusters + num_labels * clusters
    searched = num_queries * (clusters + min(PROBES, clusters) * num_labels // clusters)
    return 2 * dimension * (built + searched)


class InFaiss(Index):
    """Labels that faiss searches: in `index`, a graph or not, of which it finds at most `most` for a query."""

    index: Any
    graph: bool
    most: int

    def found(self, queries_BD: Tensor, k: int, exclude: sp.csr_array | None) -> tuple[np.ndarray, np.ndarray]:
        """[B, M] the scores and labels that faiss finds; -1 for no label, or an excluded one.

        It searches for as many more labels as are excluded.
        """
        excluded = None if exclude is None else binary(exclude)
        more = 0 if excluded is None else int(np.diff(excluded.indptr).max())
        wanted = min(self.most, k + SPARE + more)
        if self.graph:
            self.index.hnsw.efSearch = max(BREADTH, wanted)
        scores_BM, labels_BM = self.index.search(array(queries_BD), wanted)
        if excluded is not None:
            labels_BM[contains(excluded, labels_BM)] = -1
        return scores_BM, labels_BM


class FaissIndex(InFaiss):
    """Float32 label vectors in a graph on the CPU, or in clusters, on the GPUs if faiss has any.

    On GPUs it finds at most `MOST_ON_GPU` labels of a query, those that are excluded among them.
    """

    def __init__(self, labels_LD: Tensor, *, graph: bool) -> None:
        faiss = import_extra("faiss", "cpu", "an approximate search")  # or `gpu`
        super().__init__(labels_LD)
        self.graph, vectors_LD = graph, array(labels_LD)
        num_labels, dimension = labels_LD.shape
        self.most = num_labels
        if graph:
            self.index = with_links(faiss.IndexHNSWFlat(dimension, LINKS, faiss.METRIC_INNER_PRODUCT))
        else:
            clusters, centres = num_clusters(num_labels), faiss.IndexFlatIP(dimension)
            self.index = faiss.IndexIVFFlat(centres, dimension, clusters, faiss.METRIC_INNER_PRODUCT)
            with_probes(self.index)
            if getattr(faiss, "get_num_gpus", int)():
                self.index = faiss.index_cpu_to_all_gpus(self.index)
                self.most = min(num_labels, MOST_ON_GPU)
            self.index.train(vectors_LD)
        self.index.add(vectors_LD)

    def _search(self, queries_BD: Tensor, k: int, exclude: sp.csr_array | None) -> Tensor:
        """Raises XMCBenchError if faiss cannot find `k` labels on a GPU."""
        if k > self.most:
            raise XMCBenchError(f"faiss finds at most {self.most:,} labels of a query on a GPU, asked for {k:,}")
        _, labels_BM = self.found(queries_BD, k, exclude)
        nominated_BM = torch.from_numpy(labels_BM).to(self.labels_LD.device)
        return rank(queries_BD, self.labels_LD, nominated_BM, k)


def with_links(graph: Any) -> Any:
    """A graph of faiss, which will choose links as thoroughly as all graphs here."""
    graph.hnsw.efConstruction = CONSTRUCTION
    return graph


def with_probes(clusters: Any) -> Any:
    """Clusters of faiss, which will be made and searched as thoroughly as all clusters here."""
    clusters.cp.niter, clusters.cp.max_points_per_centroid = ROUNDS, SAMPLE
    clusters.cp.min_points_per_centroid = 1  # else faiss warns where labels are fewer than those of one cluster
    clusters.nprobe = min(PROBES, clusters.nlist)
    return clusters


def array(vectors: Tensor) -> np.ndarray:
    """Vectors in float32, as faiss takes them."""
    return np.ascontiguousarray(vectors.detach().float().cpu().numpy())
