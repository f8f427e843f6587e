"""What a sampler's look at embeddings takes, the embedding itself left out: clustering, and shortlists of near labels.

Clustering is balanced 2-means of queries into clusters of `--size`, as NGAME batches have them, beside scikit-learn's
`BisectingKMeans` (into as many clusters as it does in reasonable time, `--peer-clusters`, which balanced 2-means makes
too) and `MiniBatchKMeans`. "inside" is the mean similarity to the centre of one's cluster, "largest" the largest
cluster. Mining is `Embeddings.nearest`, true pairs left out, beside the bare matrix products. Vectors are unit vectors
around random centres.

    GOMP_SPINCOUNT=3000 python benchmarks/mining.py --queries 57000 --labels 16384
    GOMP_SPINCOUNT=3000 python benchmarks/mining.py --queries 4000 --labels 2000 --peer-clusters 64  # a quick look
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from report import least_seconds, options, report
from search import products, vectors
from sklearn.cluster import BisectingKMeans, MiniBatchKMeans
from torch import Tensor
from torch.nn.functional import normalize

from xmcbench.engine.sampling import Embeddings, balanced_clusters


def inside(vectors_ND: Tensor, clusters_N: np.ndarray) -> float:
    """The mean similarity of a vector to its cluster's normalised mean."""
    ids = torch.from_numpy(clusters_N).long().to(vectors_ND.device)
    sums = vectors_ND.new_zeros(int(ids.max()) + 1, vectors_ND.shape[1]).index_add_(0, ids, vectors_ND)
    return float((normalize(sums, dim=1)[ids] * vectors_ND).sum(1).mean())


def clustering_rows(queries_ND: Tensor, size: int, peer_clusters: int) -> Iterator[dict[str, Any]]:
    def balanced(number: int) -> Callable[[], np.ndarray]:
        return lambda: balanced_clusters(queries_ND, number, np.random.default_rng(0))

    on_host = queries_ND.cpu().numpy()
    peers = {
        "BisectingKMeans": BisectingKMeans(peer_clusters, random_state=0),
        "MiniBatchKMeans": MiniBatchKMeans(peer_clusters, random_state=0, n_init=1),
    }
    finest = 1 << math.ceil(math.log2(len(queries_ND) / size))
    cases = [("balanced 2-means", finest, balanced(finest))]
    if peer_clusters:
        cases.append(("balanced 2-means", peer_clusters, balanced(peer_clusters)))
        cases += [(name, peer_clusters, lambda peer=peer: peer.fit_predict(on_host)) for name, peer in peers.items()]
    for name, number, cluster in cases:
        start = time.perf_counter()
        clusters_N = cluster()
        seconds = time.perf_counter() - start
        yield {
            "case": name,
            "N": len(queries_ND),
            "D": queries_ND.shape[1],
            "clusters": number,
            "seconds": seconds,
            "queries/s": len(queries_ND) / seconds,
            "inside": inside(queries_ND, clusters_N),
            "largest": int(np.bincount(clusters_N).max()),
        }


def mining_rows(queries_ND: Tensor, labels_LD: Tensor, k: int, repeats: int) -> Iterator[dict[str, Any]]:
    """Three true pairs a query are left out."""
    shape = len(queries_ND), len(labels_LD)
    true = np.random.default_rng(0).integers(shape[1], size=3 * shape[0])
    known = sp.csr_array((np.ones(len(true), np.float32), (np.repeat(np.arange(shape[0]), 3), true)), shape=shape)
    embeddings = Embeddings(lambda: queries_ND, lambda: labels_LD)
    cases: dict[str, Callable[[], Any]] = {
        "products": lambda: products(queries_ND, labels_LD),
        f"nearest {k}": lambda: embeddings.nearest(k, known),
    }
    seconds = least_seconds(cases, repeats)
    for name, taken in seconds.items():
        row = {"case": name, "N": shape[0], "D": queries_ND.shape[1], "L": shape[1], "seconds": taken}
        yield {**row, "queries/s": shape[0] / taken, "to products": taken / seconds["products"]}


def main() -> None:
    args = options(
        __doc__, queries=57_000, labels=16_384, dimension=384, size=(4, "most queries of a cluster"),
        peer_clusters=(1_024, "a power of two; 0 leaves the peers out"), k=(100, "labels of a shortlist"),
        repeats=(3, "of mining"), threads=torch.get_num_threads(),
        device="cuda" if torch.cuda.is_available() else "cpu",
    ).parse_args()  # fmt: skip
    torch.set_num_threads(args.threads)
    centres_CD = torch.randn(2_000, args.dimension, generator=torch.Generator().manual_seed(0))
    queries_ND = vectors(args.queries, args.dimension, centres_CD, 1).to(args.device)
    labels_LD = vectors(args.labels, args.dimension, centres_CD, 2).to(args.device)
    report("clustering", list(clustering_rows(queries_ND, args.size, args.peer_clusters)), args.out)
    report("mining", list(mining_rows(queries_ND, labels_LD, args.k, args.repeats)), args.out)


if __name__ == "__main__":
    main()
