"""Exact search against faiss's flat index, and clustering against scikit-learn's.

Searches are timed in CPU seconds of one thread, or in seconds if ours is on a GPU. Clustering is balanced 2-means.
Vectors are unit vectors around random centres.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from peers import Places, Result
from report import in_turns
from threadpoolctl import threadpool_limits
from torch import Tensor

from xmcbench.engine.device import default_device
from xmcbench.engine.sampling import balanced_clusters
from xmcbench.engine.search import ExactIndex

K, REPEATS = 100, 6
CENTRES = 2000


def vectors(number: int, dimension: int, seed: int) -> Tensor:
    """[number, dimension] unit vectors around the centres."""
    centres_CD = torch.randn(CENTRES, dimension, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randint(CENTRES, (number,), generator=generator)
    noise = torch.randn(number, dimension, generator=generator)
    return torch.nn.functional.normalize(centres_CD[centre] + noise, dim=1).to(default_device())


def results(places: Places) -> Iterator[Result]:
    import faiss
    from sklearn.cluster import BisectingKMeans

    queries, labels, clustered, clusters = (64, 2000, 2000, 64) if places.quick else (2048, 131_072, 20_000, 1024)
    clock, unit = (time.process_time, "CPU s") if default_device().type == "cpu" else (time.perf_counter, "s")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    for dimension in (384, 768):
        labels_LD, queries_ND = vectors(labels, dimension, 1), vectors(queries, dimension, 2)
        flat = faiss.IndexFlatIP(dimension)
        flat.add(labels_LD.cpu().numpy())
        index, of_float32 = ExactIndex(labels_LD), ExactIndex(labels_LD)
        of_float32.screens = False  # as on a processor without bf16 products
        cases: dict[str, Callable[[], object]] = {
            "": partial(index.top_k, queries_ND, K),
            ", float32 products": partial(of_float32.top_k, queries_ND, K),
            "faiss": partial(flat.search, queries_ND.cpu().numpy(), K),
        }
        if not index.screens:
            del cases[", float32 products"]
        with threadpool_limits(1):  # numpy multiplies too
            seconds = in_turns(cases, REPEATS, clock)
        peer = "faiss's flat index", seconds.pop("faiss")
        for products, taken in seconds.items():
            yield Result(f"search, exact, D = {dimension}{products}", taken, unit, "1 x", *peer)
    torch.set_num_threads(threads)
    points_ND = vectors(clustered, 384, 3)
    peer, on_host = BisectingKMeans(clusters, random_state=0), points_ND.cpu().numpy()
    seconds = in_turns(
        {
            "ours": lambda: balanced_clusters(points_ND, clusters, np.random.default_rng(0)),
            "theirs": lambda: peer.fit_predict(on_host),
        },
        1,
    )
    name = "scikit-learn's BisectingKMeans"
    yield Result("clustering, 20k x 384", seconds["ours"], "s", "met", name, seconds["theirs"])
