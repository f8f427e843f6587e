"""Nearest keys of queries, where many keys may have the same vector, as training queries of the same text have.

Such keys tie. A search nominates only somewhat more keys than it returns, and by products whose rounding depends on the
queries that are searched together: of a hundred equal keys at the last place, it would return other ones in another
batch. So distinct vectors are searched, and the keys of each follow in the order of their ids.

Legend: M keys, G distinct vectors, D dimensions; C queries of a chunk, B keys near a query, F vectors of these keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xmcbench import Predictions, search

if TYPE_CHECKING:
    from torch import Tensor


class Keys:
    """Searches the vectors `keys_MD`."""

    def __init__(self, keys_MD: Tensor) -> None:
        import torch

        groups_M = _groups(keys_MD)
        # Keys by vector, and by id where they have the same.
        self.keys_M = groups_M.argsort(stable=True).cpu().numpy()
        self.sizes_G = groups_M.bincount().cpu().numpy()
        self.starts_G = np.cumsum(self.sizes_G) - self.sizes_G
        firsts_G = torch.from_numpy(self.keys_M[self.starts_G]).to(keys_MD.device)
        self.index = search.build_index(keys_MD[firsts_G])

    def nearest(self, queries_CD: Tensor, k: int) -> Predictions:
        """The `k` nearest keys of each query [C, B], by descending inner product; ties rank by lower id.

        If only some keys of tied vectors have room, those of the vector whose first key has the lowest id come first.
        """
        near = self.index.top_k(queries_CD, min(k, len(self.sizes_G)))
        sizes_CF = self.sizes_G[near.indices]
        before_CF = np.cumsum(sizes_CF, axis=1) - sizes_CF
        wanted_CF = np.clip(k - before_CF, 0, sizes_CF)  # each row sums to k
        starts_CB = np.repeat(self.starts_G[near.indices] - before_CF, wanted_CF.ravel()).reshape(-1, k)
        scores_CB = np.repeat(near.scores, wanted_CF.ravel()).reshape(-1, k)
        keys_CB = self.keys_M[starts_CB + np.arange(k)].astype(np.int32)
        order_CB = np.lexsort((keys_CB, -scores_CB), axis=1)
        return Predictions(np.take_along_axis(keys_CB, order_CB, 1), scores_CB)


def _groups(keys_MD: Tensor) -> Tensor:
    """[M] the number of each key's vector; keys with equal vectors have the same, the order is that of first keys."""
    import torch

    sums_M, order_M = keys_MD.sum(1, dtype=torch.float64).sort(stable=True)
    # Equal vectors have equal sums; the converse is checked.
    like_M = (sums_M[1:] == sums_M[:-1]).nonzero().flatten()
    equal = (keys_MD[order_M[like_M]] == keys_MD[order_M[like_M + 1]]).all(1)
    starts_M = torch.ones_like(order_M, dtype=torch.bool)
    starts_M[like_M[equal] + 1] = False
    firsts_G = order_M[starts_M]
    rank_G = firsts_G.argsort().argsort()
    groups_M = torch.empty_like(order_M)
    groups_M[order_M] = rank_G[starts_M.cumsum(0) - 1]
    return groups_M
