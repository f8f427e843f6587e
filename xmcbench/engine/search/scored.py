"""Exact top-k search by the score that a method defines.

Legend: N queries, L labels, K results; B queries and C labels of a chunk, V and W numbers of a vector.
"""

from __future__ import annotations

import math

import scipy.sparse as sp
import torch
from torch import Tensor

from xmcbench.engine import flops
from xmcbench.engine.losses.own_scores import Score, checked, pairs_at_once
from xmcbench.engine.search.exact import PAD, Index, keys


class ScoredIndex(Index):
    """Scores every label, some labels and some queries at a time."""

    multiplies = False

    def __init__(self, labels_LW: Tensor, score: Score) -> None:
        super().__init__(labels_LW)
        self.score = score

    def _search(self, queries_BD: Tensor, k: int, exclude: sp.csr_array | None) -> Tensor:
        side = math.isqrt(pairs_at_once(queries_BD, self.labels_LD))
        parts = []
        for start in range(0, len(queries_BD), side):
            rows = slice(start, start + side)
            parts.append(self._best(queries_BD[rows], k, side, None if exclude is None else exclude[rows].tocsc()))
        return torch.cat(parts)

    def _best(self, queries_BV: Tensor, k: int, columns: int, exclude: sp.csc_array | None) -> Tensor:
        """[B, K] the keys of the best labels of a few queries, of so many labels at a time."""
        best_BK = torch.full((len(queries_BV), k), PAD, device=queries_BV.device)
        for start in range(0, len(self.labels_LD), columns):
            labels_CW = self.labels_LD[start : start + columns].float()
            with flops.of_scores():
                scores_BC = checked(self.score(queries_BV, labels_CW), queries_BV, labels_CW).float()
            if not bool(scores_BC.isfinite().all()):
                raise ValueError("score returned infinity or no number, expected finite scores")
            if exclude is not None:
                pairs = exclude[:, start : start + columns].tocoo()
                places = (torch.from_numpy(ids).long().to(scores_BC.device) for ids in (pairs.row, pairs.col))
                scores_BC = scores_BC.index_put(tuple(places), scores_BC.new_tensor(-torch.inf))
            labels_C = torch.arange(start, start + len(labels_CW), device=scores_BC.device)
            best_BK = torch.cat([best_BK, keys(scores_BC, labels_C)], dim=1).topk(k, dim=1).values
        return best_BK
