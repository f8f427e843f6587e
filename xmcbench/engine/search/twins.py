"""Twins: labels with equal vectors, as those of texts in a script that the tokenizer cannot read.

Twins tie. A search nominates only somewhat more labels than it returns, and by products whose rounding depends on the
queries that are searched together: of a hundred twins at the last place, it would return other ones in another batch.
So where there are many, distinct vectors are searched, and the labels of each follow in the order of their ids.

Legend: N queries, L labels, G distinct vectors, R labels of a part, D dimensions; F vectors near a query, E pairs of a
query and a label that may be among its best.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from xmcbench.trial.predictions import Predictions

if TYPE_CHECKING:
    from collections.abc import Callable

SPARE = 8  # labels that a search nominates beyond k: float32 products round differently in different chunks
ROWS = 1024  # queries at a time
PART = 1 << 16  # vectors that are compared at a time


class Index(Protocol):
    """Searchable labels. All backends return the same scores and order; only a graph or clusters may miss labels."""

    def top_k(self, queries_ND: Tensor, k: int, *, exclude: sp.csr_array | None = None) -> Predictions:
        """The `k` labels with the highest inner product per query without those in `exclude`; ties by lower id."""


def searching(labels_LD: Tensor, build: Callable[[Tensor], Index]) -> Index:
    """The index that `build` makes of the labels; of their distinct vectors where more than `SPARE` labels have one."""
    # Equal vectors begin alike: one value of each is read before all are compared.
    alike = labels_LD.numel() and int(torch.unique(labels_LD[:, 0], return_counts=True)[1].max())
    if alike > SPARE and int((groups_L := distinct(labels_LD)).bincount().max()) > SPARE:
        return TwinIndex(labels_LD, groups_L, build)
    return build(labels_LD)


def distinct(vectors_LD: Tensor) -> Tensor:
    """[L] the number of each vector; equal vectors have the same, and numbers follow the order of their first labels.

    >>> distinct(torch.tensor([[2.0, 0.0], [1.0, 1.0], [2.0, 0.0]])).tolist()
    [0, 1, 0]
    """
    weights_D = torch.linspace(1, 2, vectors_LD.shape[1], device=vectors_LD.device)  # few other vectors have equal sums
    parts = [(part_RD * weights_D).sum(1, dtype=torch.float64) for part_RD in torch.split(vectors_LD, PART)]
    sums_L, order_L = torch.cat(parts).sort(stable=True)
    # Equal vectors have equal sums; the converse is checked.
    like_L = (sums_L[1:] == sums_L[:-1]).nonzero().flatten()
    equal = (vectors_LD[order_L[like_L]] == vectors_LD[order_L[like_L + 1]]).all(1)
    starts_L = torch.ones_like(order_L, dtype=torch.bool)
    starts_L[like_L[equal] + 1] = False
    firsts_G = order_L[starts_L]
    rank_G = firsts_G.argsort().argsort()
    groups_L = torch.empty_like(order_L)
    groups_L[order_L] = rank_G[starts_L.cumsum(0) - 1]
    return groups_L


class TwinIndex:
    """Searches the distinct vectors of labels in an index that `build` makes of them."""

    def __init__(self, labels_LD: Tensor, groups_L: Tensor, build: Callable[[Tensor], Index]) -> None:
        groups = groups_L.cpu().numpy()
        self.labels_L = groups.argsort(kind="stable")  # by vector, and by id where they have the same
        self.sizes_G = np.bincount(groups)
        self.starts_G = np.cumsum(self.sizes_G) - self.sizes_G
        self.index = build(labels_LD[torch.from_numpy(self.labels_L[self.starts_G]).to(labels_LD.device)])

    def top_k(self, queries_ND: Tensor, k: int, *, exclude: sp.csr_array | None = None) -> Predictions:
        """The `k` best labels of each query without the pairs in `exclude` [N, L]; ties rank by lower label id.

        Short rows are padded with -1. Raises ValueError if k exceeds the number of labels, or shapes do not fit.
        """
        num_queries, num_labels = len(queries_ND), len(self.labels_L)
        if not 1 <= k <= num_labels:
            raise ValueError(f"top {k} of {num_labels} labels")
        if exclude is not None and exclude.shape != (num_queries, num_labels):
            raise ValueError(f"excluded pairs {list(exclude.shape)}, expected {[num_queries, num_labels]}")
        best = Predictions(np.full((num_queries, k), -1, np.int32), np.full((num_queries, k), -np.inf, np.float32))
        for start in range(0, num_queries, ROWS):
            part = slice(start, start + ROWS)
            rows_E, labels_E, scores_E = self._candidates(
                queries_ND[part], k, None if exclude is None else exclude[part]
            )
            order_E = np.lexsort((labels_E, -scores_E, rows_E))
            rows_E, labels_E, scores_E = rows_E[order_E], labels_E[order_E], scores_E[order_E]
            places_E = np.arange(len(rows_E)) - np.searchsorted(rows_E, rows_E)
            kept_E = places_E < k
            places = start + rows_E[kept_E], places_E[kept_E]
            best.indices[places], best.scores[places] = labels_E[kept_E], scores_E[kept_E]
        return best

    def _candidates(
        self, queries_ND: Tensor, k: int, exclude: sp.csr_array | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows, labels and scores [E] of pairs that are not excluded, the `k` best of each query among them.

        The labels of a query's k nearest vectors are enough, and of one more for each label that is excluded.
        """
        needed = k + (0 if exclude is None else int(np.diff(exclude.indptr).max(initial=0)))
        near = self.index.top_k(queries_ND, min(needed, len(self.sizes_G)))
        sizes_NF = np.where(near.indices < 0, 0, self.sizes_G[near.indices])
        last_N1 = (np.cumsum(sizes_NF, axis=1) < needed).sum(1, keepdims=True).clip(max=near.k - 1)
        enough_NF = near.scores >= np.take_along_axis(near.scores, last_N1, axis=1)
        counts_P = np.where(enough_NF, sizes_NF.clip(max=needed), 0).ravel()
        pairs_E = np.repeat(np.arange(len(counts_P)), counts_P)  # of a query and a near vector
        within_E = np.arange(len(pairs_E)) - (np.cumsum(counts_P) - counts_P)[pairs_E]
        labels_E = self.labels_L[self.starts_G[near.indices.ravel()[pairs_E]] + within_E]
        rows_E, scores_E = pairs_E // near.k, near.scores.ravel()[pairs_E]
        if exclude is None:
            return rows_E, labels_E, scores_E
        rows, columns = exclude.nonzero()
        kept_E = ~np.isin(rows_E * len(self.labels_L) + labels_E, rows.astype(np.int64) * len(self.labels_L) + columns)
        return rows_E[kept_E], labels_E[kept_E], scores_E[kept_E]
