"""The true pairs of queries and labels of a pool, the sparse targets of every loss.

With several workers, each has the pairs of all queries and of the labels that it holds.

Legend: B queries, S labels of the pool (of this worker), P positive pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from xmcbench.engine.workers import ALONE, Workers


@dataclass(frozen=True)
class Positives:
    """P true pairs of a B x S score matrix as `rows_P` (sorted) and `columns_P`, int64, without repeats.

    `sampled_B` is the index of one pair per query, drawn uniformly: the positive of losses that train on one positive.
    It is -1 for a query without a pair, and on all workers but the one that holds the pair. `workers` hold the other
    labels of the pool. A loss is the mean over the B queries, which every worker has; if rows are divided among workers
    (`label_to_query`), it is the mean over the `total_rows` of all workers.
    """

    rows_P: Tensor
    columns_P: Tensor
    sampled_B: Tensor
    num_labels: int
    workers: Workers = ALONE
    total_rows: int | None = None

    @property
    def num_queries(self) -> int:
        return int(self.sampled_B.shape[0])

    @property
    def mean_over(self) -> int:
        """The number of rows that a loss averages."""
        return self.num_queries if self.total_rows is None else self.total_rows

    @cached_property
    def counts_B(self) -> Tensor:
        """The number of pairs per query, over all workers."""
        return self.workers.sum(torch.bincount(self.rows_P, minlength=self.num_queries))

    def to(self, device: torch.device | str) -> Positives:
        names = ("rows_P", "columns_P", "sampled_B")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def mask(self) -> Tensor:
        """bool [B, S], true for the true pairs: for losses that need every score. It takes B x S bytes."""
        mask_BS = torch.zeros(self.num_queries, self.num_labels, dtype=torch.bool, device=self.rows_P.device)
        mask_BS[self.rows_P, self.columns_P] = True
        return mask_BS

    # Weights of the pairs in the loss of a query.
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


def label_to_query(queries_BD: Tensor, labels_SD: Tensor, positives: Positives) -> tuple[Tensor, Tensor, Positives]:
    """The three arguments of a loss for the reverse direction, from labels to queries.

    Its rows are the R labels with a positive query, its pool the queries; other labels are left out. The loss is the
    mean over the R labels of all workers. The sampled pair of a label is its first query in a random order of the
    queries from torch's generator, so that workers with equal seeds draw the same.

    Example:
        >>> truth = Positives(torch.tensor([0, 1, 1]), torch.tensor([2, 0, 2]), torch.tensor([0, 1]), 4)
        >>> labels_RD, queries_BD, turned = label_to_query(torch.eye(2), torch.arange(8.0).view(4, 2), truth)
        >>> labels_RD.tolist(), turned.rows_P.tolist(), turned.columns_P.tolist()
        ([[0.0, 1.0], [4.0, 5.0]], [0, 1, 1], [1, 0, 1])
    """
    with_query_R, rows_P = torch.unique(positives.columns_P, return_inverse=True)
    by_row_P = rows_P.argsort(stable=True)
    rows_P, columns_P = rows_P[by_row_P], positives.rows_P[by_row_P]
    ranks_P = torch.randperm(positives.num_queries).to(columns_P.device)[columns_P]
    first_R = torch.full_like(with_query_R, positives.num_queries).scatter_reduce_(0, rows_P, ranks_P, "amin")
    sampled_R = (ranks_P == first_R[rows_P]).nonzero()[:, 0]
    # The rows of a worker see all queries, so only the mean over rows needs the other workers.
    total = int(positives.workers.sum(torch.tensor(len(with_query_R), device=rows_P.device)))
    turned = Positives(rows_P, columns_P, sampled_R, positives.num_queries, total_rows=max(total, 1))
    return labels_SD[with_query_R], queries_BD, turned
