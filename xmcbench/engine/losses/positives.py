"""The true pairs of queries and labels of a pool, the sparse targets of every loss.

With several workers, each has the pairs of all queries and of the labels that it holds.

Legend: B queries, S labels of the pool (of this worker), P positive pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from xmcbench.engine.device import upload
from xmcbench.engine.flops import by_formula
from xmcbench.engine.losses.own_scores import Score, checked, score_matrix
from xmcbench.engine.workers import ALONE, Workers

Loss = TypeVar("Loss", bound=Callable[..., Any])


@dataclass(frozen=True)
class Positives:
    """P true pairs of a B x S score matrix as `rows_P` (sorted) and `columns_P`, int64, without repeats.

    A label that was drawn for one query is often true for another by chance: such a pair is among the P, too. `chosen`
    has the weights float32 [P] of the pairs for losses that train on only some of them, by the values of the setting
    `positives` (`TrainedPositives`). `workers` hold the other labels of the pool. A loss is the mean over the queries,
    which every worker has; if rows are divided among workers (`label_to_query`), over the `total_rows` of all. `score`
    is that of a method which defines its own; None: scores are inner products.
    """

    rows_P: Tensor
    columns_P: Tensor
    num_queries: int
    num_labels: int
    chosen: Mapping[str, Tensor] = field(default_factory=dict)
    workers: Workers = ALONE
    total_rows: int | None = None
    score: Score | None = None

    @property
    def mean_over(self) -> int:
        """The number of rows that a loss averages."""
        return self.num_queries if self.total_rows is None else self.total_rows

    @cached_property
    def counts_B(self) -> Tensor:
        """The number of pairs per query, over all workers."""
        counts_B = self.rows_P.new_zeros(self.num_queries)
        return self.workers.sum(counts_B.index_add_(0, self.rows_P, torch.ones_like(self.rows_P)))

    @cached_property
    def host(self) -> Positives:
        """The same pairs on the CPU. Pairs that came from there by `to` know it; of others a GPU is asked, once."""
        return self._moved(lambda tensor: tensor.cpu())

    @cached_property
    def by_column(self) -> tuple[Tensor, Tensor]:
        """The columns in ascending order, on the CPU, and the indices of the pairs in that order, beside the pairs."""
        columns_P, order_P = self.host.columns_P.sort(stable=True)
        return columns_P, upload(order_P, self.rows_P.device)

    def to(self, device: torch.device | str) -> Positives:
        """These pairs on `device`."""
        moved = self.host._moved(lambda tensor: upload(tensor, torch.device(device)))
        moved.__dict__["host"] = self.host
        return moved

    def _moved(self, move: Callable[[Tensor], Tensor]) -> Positives:
        chosen = {which: move(weights_P) for which, weights_P in self.chosen.items()}
        return replace(self, rows_P=move(self.rows_P), columns_P=move(self.columns_P), chosen=chosen)

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

    def weights(self, which: str) -> Tensor:
        """[P] one for each pair that the setting `positives: which` trains on, zero elsewhere."""
        return self.every() if which == "all" else self.chosen[which]


def of_scores(loss: Loss) -> Loss:
    """Let a loss of queries, labels and positives also take scores [B, S] for the queries, and None for the labels.

    It gets them where `positives.score` makes them, too. What a loss itself multiplies is counted by formula.
    """

    @wraps(loss)
    def scored(queries: Tensor, labels: Tensor | None, positives: Positives, *args: Any, **options: Any) -> Any:
        if labels is not None and positives.score is not None:
            queries, labels = score_matrix(positives.score, queries, labels), None
        if labels is None:
            checked(queries, queries, torch.empty(positives.num_labels, 0))
        with by_formula():
            return loss(queries, labels, positives, *args, **options)

    return cast("Loss", scored)


@of_scores
def label_to_query(
    queries_BD: Tensor, labels_SD: Tensor | None, positives: Positives
) -> tuple[Tensor, Tensor | None, Positives]:
    """The three arguments of a loss for the reverse direction, from labels to queries.

    Its rows are the R labels with a positive query, its pool the queries; other labels are left out. The loss is the
    mean over the R labels of all workers. A pair is `drawn` if it was in the first direction. `one` is the first query
    of a label in a random order of the queries from torch's generator, so that workers with equal seeds draw the same;
    `one-by-draws` is that query, times the number of queries that drew the label.

    Example:
        >>> truth = Positives(torch.tensor([0, 1, 1]), torch.tensor([2, 0, 2]), 2, 4)
        >>> labels_RD, queries_BD, turned = label_to_query(torch.eye(2), torch.arange(8.0).view(4, 2), truth)
        >>> labels_RD.tolist(), turned.rows_P.tolist(), turned.columns_P.tolist()
        ([[0.0, 1.0], [4.0, 5.0]], [0, 1, 1], [1, 0, 1])
    """
    host, device = positives.host, positives.rows_P.device  # the CPU knows the pairs: nothing waits for a GPU
    with_query_R, rows_P = torch.unique(host.columns_P, return_inverse=True)
    by_row_P = rows_P.argsort(stable=True)
    rows_P, columns_P = rows_P[by_row_P], host.rows_P[by_row_P]
    ranks_P = torch.randperm(positives.num_queries)[columns_P]
    first_R = torch.full_like(with_query_R, positives.num_queries).scatter_reduce_(0, rows_P, ranks_P, "amin")
    chosen = {"one": (ranks_P == first_R[rows_P]).to(torch.float32)}
    if "drawn" in host.chosen:
        chosen["drawn"] = host.chosen["drawn"][by_row_P]
        draws_R = torch.zeros_like(first_R, dtype=torch.float32).index_add_(0, rows_P, chosen["drawn"])
        chosen["one-by-draws"] = chosen["one"] * draws_R[rows_P]
    # The rows of a worker see all queries, so only the mean over rows needs the other workers.
    (total,) = positives.workers.totals(num_rows := len(with_query_R))
    turned = Positives(rows_P, columns_P, num_rows, positives.num_queries, chosen, total_rows=max(total, 1))
    rows_R, turned = upload(with_query_R, device), turned.to(device)
    return (queries_BD.T[rows_R], None, turned) if labels_SD is None else (labels_SD[rows_R], queries_BD, turned)
