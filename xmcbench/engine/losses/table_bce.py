"""Binary cross-entropy over all rows of a label table, whose gradient is never in memory as a whole.

The step of the table computes the scores of a chunk of rows again, and from them the gradient of that chunk, which is
used up before the next one (the fused step of Renee and ELMO). That costs one more product of queries and rows than a
gradient of all rows, and saves four bytes per weight.

Legend: B queries, S rows of the table (of this worker), C rows of a chunk, D dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import softplus

from xmcbench.engine import flops
from xmcbench.engine.losses.positives import Positives
from xmcbench.engine.losses.score_sums import Scores
from xmcbench.engine.tables.label_table import LabelTable


def _row_gradients(
    queries_BD: Tensor, positives: Positives, factor: Tensor, weight_SD: Tensor
) -> Iterator[tuple[slice, Tensor]]:
    """Places and float32 gradients [C, D], from the rows as they are when a chunk is asked for; `factor` is that of
    sigmoid(s) - y."""
    scores = Scores(queries_BD, weight_SD, positives, 1.0, flops.Count())
    for start in scores.starts:
        residuals_BC = _residuals(scores, start)[0].mul_(factor)
        yield slice(start, start + scores.width), residuals_BC.T @ scores.scaled_BD


class _OneVsAll(Function):
    """The sum over rows of log(1 + e^s) - y s, divided by B."""

    @staticmethod
    @flops.by_formula()
    def forward(ctx: Any, queries_BD: Tensor, table: LabelTable, positives: Positives) -> Tensor:
        scores = Scores(queries_BD, table.weight, positives, 1.0)
        total, of_queries_BD = queries_BD.new_zeros(()), torch.zeros_like(scores.scaled_BD)
        gram_BB = queries_BD.new_zeros(queries_BD.shape[0], queries_BD.shape[0])
        for start in scores.starts:
            residuals_BC, value = _residuals(scores, start)
            total = total + value
            of_queries_BD.addmm_(residuals_BC, scores.labels(start))
            gram_BB.addmm_(residuals_BC, residuals_BC.T)
        scores.count.flops += _other_flops(queries_BD.shape[0], queries_BD.shape[1], table.num_rows)
        queries_BD = queries_BD.detach()
        # |R'Q|^2 = sum of (R R') (Q Q'), where R are the residuals: the norm needs no gradient of the rows.
        ctx.norm = (gram_BB.double() * (queries_BD @ queries_BD.T).double()).sum()
        ctx.table, ctx.positives, ctx.share = table, positives, 1 / positives.num_queries
        ctx.save_for_backward(queries_BD, of_queries_BD)
        mean: Tensor = total * ctx.share
        return mean

    @staticmethod
    @flops.by_formula()
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        queries_BD, of_queries_BD = ctx.saved_tensors
        factor = grads[0] * ctx.share
        gradients = partial(_row_gradients, queries_BD, ctx.positives, factor)
        ctx.table.defer(gradients, ctx.norm * factor.double() ** 2)
        of_queries: Tensor = of_queries_BD * factor
        return of_queries, None, None


def _other_flops(queries: int, dimension: int, rows: int) -> int:
    """Operations beside the first product of queries and rows: the gradient of the queries, scores and gradients in the
    table's step, and the products of residuals and of queries that make the norm.
    """
    return 6 * queries * dimension * rows + 2 * queries**2 * (rows + dimension)


def cross_entropy_of_rows(queries_BD: Tensor, table: LabelTable, positives: Positives) -> Tensor:
    """Scalar: `binary_cross_entropy` of the queries and all rows of `table`; a worker's part.

    Its backward pass leaves the gradient of the rows to the table, which computes it in its next step.

    Raises ValueError for a method that defines `score`: the step of the table knows inner products alone.
    """
    if positives.score is not None:
        raise ValueError("cross_entropy_of_rows multiplies queries and rows, and the method defines another score")
    mean: Tensor = _OneVsAll.apply(queries_BD, table, positives)  # type: ignore[no-untyped-call]
    return mean


def _residuals(scores: Scores, start: int) -> tuple[Tensor, Tensor]:
    """[B, C] sigmoid(s) - y of the chunk of rows at `start`, and the sum of its cross-entropies."""
    scores_BC, (_, places) = scores.chunk(start), scores.pairs(start)
    # torch's default threshold of 20 has an error of 2e-9, too much for float64
    value = softplus(scores_BC, threshold=40.0).sum() - scores_BC[places].sum()
    residuals_BC = scores_BC.sigmoid_()
    residuals_BC[places] -= 1
    return residuals_BC, value
