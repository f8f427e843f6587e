"""Twins: labels with equal vectors, as those of texts in a script that the tokenizer cannot read.

Twins tie. A search nominates only somewhat more labels than it returns, and by products whose rounding depends on the
queries that are searched together: of a hundred twins at the last place, it would return other ones in another batch.
So where there are many, distinct vectors are searched, and the labels of each follow in the order of their ids.

Legend: B queries, L labels, G distinct vectors, R labels of a part, D dimensions; F vectors near a query, E pairs of a
query and a label that may be among its best.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from xmcbench.engine.search.exact import PAD, Index, best_of, keys

PART = 1 << 16  # vectors that are compared at a time


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


class TwinIndex(Index):
    """Searches the distinct vectors of labels in an index that `build` makes of them."""

    def __init__(self, labels_LD: Tensor, groups_L: Tensor, build: Callable[[Tensor], Index]) -> None:
        super().__init__(labels_LD)
        self.give_up_vectors()
        groups = groups_L.cpu().numpy()
        self.labels_L = groups.argsort(kind="stable")  # by vector, and by id where they have the same
        self.sizes_G = np.bincount(groups)
        self.starts_G = np.cumsum(self.sizes_G) - self.sizes_G
        self.index = build(labels_LD[torch.from_numpy(self.labels_L[self.starts_G]).to(labels_LD.device)])

    def _search(self, queries_BD: Tensor, k: int, exclude: sp.csr_array | None) -> Tensor:
        """The labels of a query's k nearest vectors are enough, and of one more for each label that is excluded."""
        needed = k + (0 if exclude is None else int(np.diff(exclude.indptr).max(initial=0)))
        near = self.index.top_k(queries_BD, min(needed, len(self.sizes_G)))
        sizes_BF = np.where(near.indices < 0, 0, self.sizes_G[near.indices])
        last_B1 = (np.cumsum(sizes_BF, axis=1) < needed).sum(1, keepdims=True).clip(max=near.k - 1)
        enough_BF = near.scores >= np.take_along_axis(near.scores, last_B1, axis=1)
        counts_P = np.where(enough_BF, sizes_BF.clip(max=needed), 0).ravel()
        pairs_E = np.repeat(np.arange(len(counts_P)), counts_P)  # of a query and a near vector
        within_E = np.arange(len(pairs_E)) - (np.cumsum(counts_P) - counts_P)[pairs_E]
        labels_E = self.labels_L[self.starts_G[near.indices.ravel()[pairs_E]] + within_E]
        rows_E, scores_E = pairs_E // near.k, near.scores.ravel()[pairs_E]
        if exclude is not None:
            rows, columns = exclude.nonzero()
            excluded = rows.astype(np.int64) * len(self.labels_L) + columns
            kept_E = ~np.isin(rows_E * len(self.labels_L) + labels_E, excluded)
            rows_E, labels_E, scores_E = rows_E[kept_E], labels_E[kept_E], scores_E[kept_E]
        keys_E = keys(torch.from_numpy(scores_E), torch.from_numpy(labels_E))
        best_BK = best_of(torch.full((len(queries_BD), k), PAD), [(keys_E, torch.from_numpy(rows_E))])
        return best_BK.sort(dim=1, descending=True).values
