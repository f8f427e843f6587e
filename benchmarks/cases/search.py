"""Exact search against the bare matrix products, and clustering against scikit-learn's.

Products are what no exact search can do without: every query with every label, in chunks, into memory that is there
already. Clustering is balanced 2-means. Vectors are unit vectors around random centres.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from peers import Places, Result
from report import in_turns
from torch import Tensor

from xmcbench.engine.device import default_device
from xmcbench.engine.sampling import balanced_clusters
from xmcbench.engine.search import ExactIndex, exact

K, REPEATS = 100, 3
CENTRES = 2000


def vectors(number: int, dimension: int, seed: int) -> Tensor:
    """[number, dimension] unit vectors around the centres."""
    centres_CD = torch.randn(CENTRES, dimension, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randint(CENTRES, (number,), generator=generator)
    noise = torch.randn(number, dimension, generator=generator)
    return torch.nn.functional.normalize(centres_CD[centre] + noise, dim=1).to(default_device())


def products(queries_ND: Tensor, labels_LD: Tensor) -> None:
    """The scores of each chunk, in memory that is used again."""
    sizes = exact.SIZES[labels_LD.device.type]
    scores = torch.empty(sizes.rows * sizes.columns, device=labels_LD.device)
    for queries_BD in torch.split(queries_ND, sizes.rows):
        for labels_CD in torch.split(labels_LD, sizes.columns):
            shape = len(queries_BD), len(labels_CD)
            torch.mm(queries_BD, labels_CD.T, out=scores[: shape[0] * shape[1]].view(shape))


def results(places: Places) -> Iterator[Result]:
    from sklearn.cluster import BisectingKMeans

    queries, labels, clustered, clusters = (64, 2000, 2000, 64) if places.quick else (2048, 131_072, 20_000, 1024)
    for dimension in (384, 768):
        labels_LD, queries_ND = vectors(labels, dimension, 1), vectors(queries, dimension, 2)
        cases = {
            "search": partial(ExactIndex(labels_LD).top_k, queries_ND, K),
            "products": partial(products, queries_ND, labels_LD),
        }
        seconds = in_turns(cases, REPEATS)
        what = f"search, exact, D = {dimension}"
        yield Result(what, seconds["search"], "s", "1.15 x", "the matrix products", seconds["products"])
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
