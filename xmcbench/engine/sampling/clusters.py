"""Clustered batches (NGAME): similar queries form a batch; the positives of each are hard negatives of others.

Clusters of equal size come from repeated halving (balanced 2-means; sizes differ by at most one):

1. All clusters of a level are split at once. The centres of a cluster's halves start as two random members.
2. The members are ordered by how much closer they are to the second centre than to the first, and cut in half.
3. The normalised mean of each half becomes its centre. Steps 2 and 3 repeat until the mean similarity of members to
   their centres grows by less than `MIN_GAIN`. Neither step can lower it, so this ends.

Legend: N training queries or other vectors, B queries of a batch, Q queries with a label, D dimensions, S clusters of a
level, A clusters that are still moving, M members of the largest.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from xmcbench.engine import flops
from xmcbench.engine.device import upload
from xmcbench.engine.passes import stop_point
from xmcbench.engine.sampling.batch import Batch
from xmcbench.engine.sampling.embeddings import Embeddings
from xmcbench.engine.sampling.sampler import Order

MIN_GAIN = 1e-4

AT_ONCE = 2**28  # values: clusters of more are not split at once


def clustering_bytes(num_vectors: int, num_clusters: int, dimension: int) -> float:
    """Memory beside the given vectors: those of length 1, by cluster, with what makes them or their halves; and of each
    cluster that is split its sum, that of a half, and its two centres, old, new and being normalised.
    """
    values = num_vectors * dimension
    split = min(values, AT_ONCE) * min(1.0, num_clusters / 2 / max(1, num_vectors))  # values of one vector a cluster
    return 4.0 * (max(1.5 * values, 2 * min(values, AT_ONCE)) + 8 * split)  # the first split, a later one


@flops.by_formula()
def balanced_clusters(
    vectors_ND: Tensor, num_clusters: int, rng: np.random.Generator, rows: np.ndarray | None = None
) -> np.ndarray:
    """[N] int64 the cluster of each vector, by cosine; only of those in `rows`, ascending, where they are given.

    If there are no more vectors than clusters, each gets its own. Raises ValueError if `num_clusters` is not a power
    of two.

    Example:
        >>> corners = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1], [0.1, 1.0]])
        >>> clusters_N = balanced_clusters(corners, 2, np.random.default_rng(0))
        >>> bool(clusters_N[0] == clusters_N[2] != clusters_N[1] == clusters_N[3])
        True
    """
    if num_clusters < 1 or num_clusters & (num_clusters - 1):
        raise ValueError(f"expected a power of two as number of clusters, found {num_clusters}")
    rows = np.arange(len(vectors_ND)) if rows is None else rows
    if num_clusters >= len(rows):
        return np.arange(len(rows))
    members_SM = torch.from_numpy(rows).to(vectors_ND.device)[None]
    while len(members_SM) < num_clusters:
        starts_S2 = _two_of((members_SM >= 0).sum(1), rng)
        at_once = max(1, AT_ONCE // (members_SM.shape[1] * vectors_ND.shape[1]))
        parts = zip(torch.split(members_SM, at_once), torch.split(starts_S2, at_once), strict=True)
        members_SM = torch.cat([_halved(vectors_ND, *part) for part in parts])
    clusters_N = np.empty(len(vectors_ND), np.int64)
    members = members_SM.cpu().numpy()
    clusters, places = np.nonzero(members >= 0)
    clusters_N[members[clusters, places]] = clusters
    return clusters_N[rows]


def _halved(vectors_ND: Tensor, members_SM: Tensor, starts_S2: Tensor) -> Tensor:
    """[2S, ceil(M/2)] the members of both halves of each cluster; -1 pads the end of a row.

    A cluster has M or M - 1 members; floor(M/2) of them go to its first half. `starts_S2` are the halves' first places.
    """
    filler_SM = members_SM < 0
    sizes_S = (~filler_SM).sum(1)
    # Of the moving clusters and some settled ones; 0 pads.
    vectors_AMD = _of_length_1(vectors_ND[members_SM.clamp(min=0)])
    vectors_AMD[filler_SM] = 0
    sums_AD = vectors_AMD.sum(1)
    rows_A = torch.arange(len(members_SM), device=members_SM.device)
    centres_A2D = vectors_AMD[rows_A[:, None], starts_S2]
    fit_A = torch.full_like(sizes_S, -torch.inf, dtype=torch.float32)
    half_SM = filler_SM.long() * 2  # 0 and 1 are the halves, 2 is padding
    moving_A = torch.ones_like(rows_A, dtype=torch.bool)
    while bool(moving_A.any()):
        stop_point()
        second_AM, centres_A2D, fits_A = _moved(vectors_AMD, sums_AD, filler_SM[rows_A], centres_A2D)
        fits_A /= sizes_S[rows_A]
        ids_A = rows_A[moving_A]
        half_SM[ids_A] = torch.where(filler_SM[ids_A], 2, second_AM[moving_A].long())
        moving_A &= fits_A - fit_A >= MIN_GAIN
        fit_A = fits_A
        # Removing settled clusters copies the others: it pays once half of them are settled.
        if 2 * int(moving_A.sum()) <= len(moving_A):
            of_all = rows_A, fit_A, sums_AD, vectors_AMD, centres_A2D, moving_A
            rows_A, fit_A, sums_AD, vectors_AMD, centres_A2D, moving_A = (tensor[moving_A] for tensor in of_all)
    sorted_SM = members_SM.gather(1, half_SM.argsort(dim=1, stable=True))
    first = members_SM.shape[1] // 2
    halves = torch.nn.functional.pad(sorted_SM[:, :first], (0, members_SM.shape[1] % 2), value=-1), sorted_SM[:, first:]
    return torch.stack(halves, dim=1).flatten(0, 1)


def _of_length_1(vectors_AMD: Tensor) -> Tensor:
    """In float32; written over the vectors where they are float32 already."""
    vectors_AMD = vectors_AMD.float()
    return vectors_AMD.div_(vectors_AMD.norm(dim=2, keepdim=True).clamp_min_(1e-12))


def _two_of(sizes_S: Tensor, rng: np.random.Generator) -> Tensor:
    """[S, 2] two different random places below each size."""
    random = torch.from_numpy(rng.random((len(sizes_S), 2))).to(sizes_S.device)
    one_S = (random[:, 0] * sizes_S).long()
    return torch.stack((one_S, (one_S + 1 + (random[:, 1] * (sizes_S - 1)).long()) % sizes_S), dim=1)


def _moved(
    vectors_AMD: Tensor, sums_AD: Tensor, filler_AM: Tensor, centres_A2D: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One iteration: which members are in the second half [A, M], the centres, the sum of similarities to them [A].

    The cut needs no sort: members below the first half's largest value are in it, and of equal ones the earliest.
    """
    first = vectors_AMD.shape[1] // 2
    similar_AM2 = vectors_AMD @ centres_A2D.mT
    leaning_AM = (similar_AM2[:, :, 1] - similar_AM2[:, :, 0]).masked_fill_(filler_AM, torch.inf)
    bar_A1 = leaning_AM.kthvalue(first, dim=1, keepdim=True).values
    below_AM, equal_AM = leaning_AM < bar_A1, leaning_AM == bar_A1
    first_AM = below_AM | (equal_AM & (equal_AM.cumsum(1) <= first - below_AM.sum(1, keepdim=True)))
    first_AD = (first_AM[:, None].to(vectors_AMD.dtype) @ vectors_AMD)[:, 0]
    totals_A2D = torch.stack((first_AD, sums_AD - first_AD), dim=1)
    flops.current().flops += 6 * vectors_AMD.numel()  # a product with two centres, and one with a half's members
    # The product of a sum with its normalised self is its norm.
    return ~first_AM, normalize(totals_A2D, dim=2), totals_A2D.norm(dim=2).sum(1)


class Clusters(Order):
    """Clusters of at most `size` queries, in random order, concatenated and cut into batches.

    The larger the clusters, the more similar the queries of a batch. Queries are clustered before epoch `start` and
    every `every` epochs from then on; the size doubles at the first clustering in or after each epoch of `growth`. The
    number of clusters is a power of two. Before the first clustering the order is random.

    `vectors` says which vectors are clustered: `bank`, those of each query's last training step, which cost no encoder
    pass; or `fresh`, those of the current model, which are charged to the stage `cluster`. The bank holds every query
    after the first epoch, in float16, which halves its memory: the vectors are only compared.
    """

    def __init__(
        self,
        size: int = 4,
        start: int = 10,
        every: int = 5,
        growth: tuple[int, ...] = (),
        vectors: Literal["bank", "fresh"] = "bank",
    ) -> None:
        if vectors == "bank" and start < 1:
            raise ValueError("the bank is empty before the first epoch: start at 1 or later, or cluster fresh vectors")
        self.size, self.start, self.every, self.growth, self.vectors = size, start, every, growth, vectors
        self.observes = vectors == "bank"
        self.clusters_Q: np.ndarray | None = None
        self.bank_ND: Tensor | None = None

    def num_clusters(self, epoch: int) -> int:
        """The smallest power of two that keeps clusters within this epoch's size."""
        size = self.size * 2 ** sum(grown <= epoch for grown in self.growth)
        return _power_of_two(len(self.sampler.query_ids) / size)

    def arrange(self, epoch: int) -> np.ndarray:
        clusters_Q = np.arange(len(self.sampler.query_ids)) if self.clusters_Q is None else self.clusters_Q
        rng = self.sampler.rng("order", epoch)
        order = rng.permutation(clusters_Q.max() + 1)
        # Members are shuffled too: a cluster that spans two batches is not always cut at the same place.
        return self.sampler.query_ids[np.lexsort((rng.random(len(clusters_Q)), order[clusters_Q]))]

    def refresh(self, epoch: int, embeddings: Embeddings) -> None:
        if epoch < self.start or (epoch - self.start) % self.every:
            return
        workers = embeddings.workers
        with embeddings.stage("cluster"):
            vectors_ND = embeddings.queries() if self.bank_ND is None else self.bank_ND
            # One worker clusters for all: with different rounding the workers would get different orders.
            clusters_Q = torch.empty(0, dtype=torch.int64, device=vectors_ND.device)
            if workers.rank == 0:
                rng = self.sampler.rng("clusters", epoch)
                computed_Q = balanced_clusters(vectors_ND, self.num_clusters(epoch), rng, self.sampler.query_ids)
                clusters_Q = torch.from_numpy(computed_Q).to(vectors_ND.device)
            self.clusters_Q = workers.gather(clusters_Q).cpu().numpy()

    def refresh_bytes(self, num_queries: int, num_labels: int, dimension: int) -> float:  # noqa: ARG002
        given = 4 * num_queries * dimension * (self.vectors == "fresh")  # a bank is there anyway
        return given + clustering_bytes(num_queries, _power_of_two(num_queries / self.size), dimension)

    def observe(self, batch: Batch, queries_BD: Tensor, labels_SD: Tensor) -> None:  # noqa: ARG002
        if self.bank_ND is None:
            shape = self.sampler.train.targets.shape[0], queries_BD.shape[1]
            self.bank_ND = torch.zeros(shape, dtype=torch.float16, device=queries_BD.device)
        self.bank_ND = self.bank_ND.to(queries_BD.device)  # after loading it is on the CPU
        self.bank_ND[upload(batch.query_ids, queries_BD.device)] = queries_BD.to(torch.float16)

    def state(self) -> dict[str, Tensor]:
        tensors = {} if self.clusters_Q is None else {"clusters": torch.from_numpy(self.clusters_Q)}
        return tensors if self.bank_ND is None else tensors | {"bank": self.bank_ND}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.clusters_Q = state["clusters"].numpy() if "clusters" in state else None
        self.bank_ND = state.get("bank")


def _power_of_two(least: float) -> int:
    """The smallest that is not below `least`."""
    return 1 << max(0, math.ceil(math.log2(least)))
