"""Which labels of a pool are true for which query: the sparse truth every loss shares.

Legend: B queries, S labels of the pool, P positive pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Positives:
    """P true pairs of a B x S score matrix as `rows_P` (sorted) and `columns_P`, int64, no pair twice.

    `sampled_B` indexes one pair of each query (-1 for a query without a pair), drawn uniformly among its pairs:
    the one positive a loss trains on when it does not train on all.
    """

    rows_P: Tensor
    columns_P: Tensor
    sampled_B: Tensor
    num_labels: int

    @property
    def num_queries(self) -> int:
        return int(self.sampled_B.shape[0])

    @cached_property
    def counts_B(self) -> Tensor:
        """Pairs of each query."""
        return torch.bincount(self.rows_P, minlength=self.num_queries)

    def to(self, device: torch.device | str) -> Positives:
        return Positives(self.rows_P.to(device), self.columns_P.to(device), self.sampled_B.to(device), self.num_labels)

    # How much each pair's term weighs in a query's loss.
    def every(self) -> Tensor:
        """[P] ones: a plain sum over the positives (DEXML Eq. 5)."""
        return torch.ones_like(self.rows_P, dtype=torch.float32)

    def averaged(self) -> Tensor:
        """[P] one over the number of the query's positives (UniDEC's PSL; DEXML's public code without sampling)."""
        return 1.0 / self.counts_B.clamp(min=1).to(torch.float32)[self.rows_P]

    def one_sampled(self) -> Tensor:
        """[P] one for each query's sampled pair, zero elsewhere (what DEXML's public code trains)."""
        weights_P = torch.zeros_like(self.rows_P, dtype=torch.float32)
        weights_P[self.sampled_B[self.sampled_B >= 0]] = 1.0
        return weights_P
