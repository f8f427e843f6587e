"""Balanced 2-means (NGAME): vectors in a power of two of clusters, whose sizes differ by at most one.

1. All clusters of a level are split at once, from two random members each as centres.
2. A cluster's members are put in order by how much nearer they are to the second centre than to the first, and cut in
   half.
3. A half's normalised mean is its next centre; once the mean similarity of members to their centres gains less than
   `LEAST_GAIN`, the cluster is split. Both steps can only raise that similarity, so this comes to an end.

Legend: N vectors, D dimensions, S clusters of a level, A of them at work, M members of the largest.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from xmcbench.engine import flops

LEAST_GAIN = 1e-4


def balanced_clusters(vectors_ND: Tensor, num_clusters: int, rng: np.random.Generator) -> np.ndarray:
    """[N] int64 the cluster of each vector, by cosine; with no more vectors than clusters each has its own.

    Raises ValueError where `num_clusters` is not a power of two.

    Example:
        >>> corners = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1], [0.1, 1.0]])
        >>> clusters_N = balanced_clusters(corners, 2, np.random.default_rng(0))
        >>> bool(clusters_N[0] == clusters_N[2] != clusters_N[1] == clusters_N[3])
        True
    """
    if num_clusters < 1 or num_clusters & (num_clusters - 1):
        raise ValueError(f"expected a power of two of clusters, found {num_clusters}")
    total = len(vectors_ND)
    if num_clusters >= total:
        return np.arange(total)
    vectors_ND = normalize(vectors_ND.float(), dim=1)
    members_SM = torch.arange(total, device=vectors_ND.device)[None]
    while len(members_SM) < num_clusters:
        members_SM = _halved(vectors_ND, members_SM, rng)
    clusters_N = np.empty(total, np.int64)
    members = members_SM.cpu().numpy()
    rows, places = np.nonzero(members >= 0)
    clusters_N[members[rows, places]] = rows
    return clusters_N


def _halved(vectors_ND: Tensor, members_SM: Tensor, rng: np.random.Generator) -> Tensor:
    """[2S, ceil(M/2)] the members of the halves of each cluster; -1 fills up, at the end of a row.

    Clusters have M members or M - 1; floor(M/2) go to the first half of either.
    """
    filler_SM = members_SM < 0
    sizes_S = (~filler_SM).sum(1)
    # Of the clusters that move, and some that came to rest; 0 fills up.
    vectors_AMD = vectors_ND[members_SM.clamp(min=0)]
    vectors_AMD[filler_SM] = 0
    sums_AD = vectors_AMD.sum(1)
    rows_A = torch.arange(len(members_SM), device=members_SM.device)
    centres_A2D = vectors_AMD[rows_A[:, None], _two_of(sizes_S, rng)]
    fit_A = torch.full_like(sizes_S, -torch.inf, dtype=torch.float32)
    half_SM = filler_SM.long() * 2  # 0 and 1 are the halves, 2 fills up
    moving_A = torch.ones_like(rows_A, dtype=torch.bool)
    while bool(moving_A.any()):
        second_AM, centres_A2D, fits_A = _moved(vectors_AMD, sums_AD, filler_SM[rows_A], centres_A2D)
        fits_A /= sizes_S[rows_A]
        ids_A = rows_A[moving_A]
        half_SM[ids_A] = torch.where(filler_SM[ids_A], 2, second_AM[moving_A].long())
        moving_A &= fits_A - fit_A >= LEAST_GAIN
        fit_A = fits_A
        # Taking out those that came to rest costs a copy of the others: once they are half of all, it pays.
        if 2 * int(moving_A.sum()) <= len(moving_A):
            rows_A, fit_A, sums_AD, vectors_AMD, centres_A2D, moving_A = (
                each[moving_A] for each in (rows_A, fit_A, sums_AD, vectors_AMD, centres_A2D, moving_A)
            )
    sorted_SM = members_SM.gather(1, half_SM.argsort(dim=1, stable=True))
    first = members_SM.shape[1] // 2
    halves = torch.nn.functional.pad(sorted_SM[:, :first], (0, members_SM.shape[1] % 2), value=-1), sorted_SM[:, first:]
    return torch.stack(halves, dim=1).flatten(0, 1)


def _two_of(sizes_S: Tensor, rng: np.random.Generator) -> Tensor:
    """[S, 2] two places below each size, at random and not the same."""
    random = torch.from_numpy(rng.random((len(sizes_S), 2))).to(sizes_S.device)
    one_S = (random[:, 0] * sizes_S).long()
    return torch.stack((one_S, (one_S + 1 + (random[:, 1] * (sizes_S - 1)).long()) % sizes_S), dim=1)


def _moved(
    vectors_AMD: Tensor, sums_AD: Tensor, filler_AM: Tensor, centres_A2D: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One move: which members are in the second half [A, M], the halves' centres, the sum of similarities to them [A].

    Cutting needs no sort: whoever leans less than the first half's last is in it, and of equals the earliest are.
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
    # A normalised sum's product with the sum is its length.
    return ~first_AM, normalize(totals_A2D, dim=2), totals_A2D.norm(dim=2).sum(1)
