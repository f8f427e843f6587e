"""The triplet loss of NGAME, LMTX and PRIME: hinges of positives and the hardest negatives of their queries.

Scores s are inner products, or cosines if embeddings are unit vectors. For a positive p and a negative n the hinge is
max(0, s_n - s_p + margin). Settings of the methods:

    NGAME, LMTX   margin 0.3, hardest 10, weight_temperature 0.1, bystanders "zero logit", over_negatives "mean"
    PRIME         DynamicMargin(0.1, 0.3), hardest 100, weight_temperature 0.1, over_negatives "sum"

Legend: B queries, P positive pairs, T those that are trained on, S labels of the pool (of this worker), C of a chunk,
D dimensions, H hardest negatives, K selected per chunk.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import Function

from xmcbench.engine import flops
from xmcbench.engine.device import upload
from xmcbench.engine.losses.positives import Positives, of_scores
from xmcbench.engine.losses.score_sums import Scores, largest


@dataclass(frozen=True)
class DynamicMargin:
    """PRIME's margin, clip(|s_p - s_n|, smallest, largest) without a gradient.

    The hinge is therefore 0 if s_p - s_n >= smallest. For 0 < s_p - s_n < smallest, the definition (Proposition 1 and
    the first line of Eq. 13) gives smallest - (s_p - s_n), with derivatives (-1, 1) by s_p and s_n. Eq. 3 and 14 have
    (s_p - s_n) + smallest there, with derivatives (1, -1), for which Section 3.1 argues; `as_printed` trains that.
    """

    smallest: float
    largest: float
    as_printed: bool = False

    def hinge(self, positive: Tensor, negative: Tensor) -> Tensor:
        ahead = positive - negative
        hinge = (ahead.detach().abs().clamp(self.smallest, self.largest) - ahead).relu()
        if not self.as_printed:
            return hinge
        return torch.where((ahead > 0) & (ahead < self.smallest), ahead + self.smallest, hinge)


class _Hardest(Function):
    """The `count` largest scores of each row's negatives (-inf if there are fewer), the scores of the positives, and
    the columns of the largest scores."""

    @staticmethod
    @flops.by_formula()
    def forward(
        ctx: Any, queries_BD: Tensor, labels_SD: Tensor | None, positives: Positives, count: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        scores = Scores(queries_BD, labels_SD, positives, 1.0)
        best_BH, scores_P = scores.new_rows(-torch.inf, count), scores.new_pairs()
        columns_BH = torch.zeros_like(best_BH, dtype=torch.int64)
        for start in scores.starts:
            scores_BC, (here, places) = scores.chunk(start), scores.pairs(start)
            scores_P[here] = scores_BC[places]
            scores_BC[places] = -torch.inf
            new_BK, columns_BK = largest(scores_BC, count, best_BH.amin(1, keepdim=True))
            best_BH, kept_BH = torch.cat([best_BH, new_BK], 1).topk(count, dim=1)
            columns_BH = torch.cat([columns_BH, columns_BK + start], 1).gather(1, kept_BH)
        scores.remember(ctx, best_BH, columns_BH)
        ctx.mark_non_differentiable(columns_BH)
        return best_BH, scores_P, columns_BH

    @staticmethod
    @flops.by_formula()
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        scores = Scores.of(ctx)
        best_BH, columns_BH = ctx.saved_tensors[2:]
        asked_BH = grads[0].masked_fill(best_BH == -torch.inf, 0.0)

        def scatter(start: int) -> Tensor:
            width = min(scores.width, scores.starts.stop - start)
            here_BH = (columns_BH >= start) & (columns_BH < start + width)
            places_BH = (columns_BH - start).clamp(0, width - 1)
            return scores.new_rows(0.0, width).scatter_add_(1, places_BH, asked_BH * here_BH)

        return *scores.pull(scatter, grads[1]), None, None


def hardest_negatives(
    queries_BD: Tensor, labels_SD: Tensor | None, positives: Positives, count: int
) -> tuple[Tensor, Tensor]:
    """[B, H] the scores of each query's `count` hardest negatives among the labels of all workers, in descending order,
    on every worker, and [P] those of this worker's positive pairs. Missing negatives are -inf, without a gradient.
    """
    own_BH, scores_P, _ = _Hardest.apply(queries_BD, labels_SD, positives, count)  # type: ignore[no-untyped-call]
    return positives.workers.gather(own_BH.T).T.topk(count, dim=1).values, scores_P


@torch.no_grad()
@of_scores
def hardest_pairs(queries_BD: Tensor, labels_SD: Tensor | None, positives: Positives, count: int) -> Positives:
    """The pairs of each query and its `count` hardest negatives among the labels of all workers, for `pair_scores`;
    this worker's part."""
    own_BH, _, columns_BH = _Hardest.apply(queries_BD, labels_SD, positives, count)  # type: ignore[no-untyped-call]
    if positives.workers.size == 1:  # the CPU knows how many negatives a query has: nothing waits for a GPU
        num_true_B = torch.bincount(positives.host.rows_P, minlength=positives.num_queries)
        kept_BH = torch.arange(count) < (positives.num_labels - num_true_B)[:, None]
        rows_P, places_P = (upload(each_P, own_BH.device) for each_P in kept_BH.nonzero(as_tuple=True))
    else:
        floor_B1 = positives.workers.gather(own_BH.T).T.topk(count, dim=1).values[:, -1:]
        rows_P, places_P = ((own_BH >= floor_B1) & (own_BH > -torch.inf)).nonzero(as_tuple=True)
    return replace(positives, rows_P=rows_P, columns_P=columns_BH[rows_P, places_P], chosen={})


@of_scores
def triplet(
    queries_BD: Tensor,
    labels_SD: Tensor | None,
    positives: Positives,
    weights_P: Tensor,
    *,
    margin: float | DynamicMargin,
    hardest: int,
    weight_temperature: float | None = None,
    bystanders: Literal["excluded", "zero logit"] = "excluded",
    over_negatives: Literal["mean", "sum"],
) -> Tensor:
    """Scalar: the hinges of positives and their queries' hardest negatives, averaged over the B queries.

    Those of a query's positives are summed with `weights_P` (PRIME Eq. 1). It is this worker's part of the loss. With a
    `weight_temperature`, the negatives of a positive are weighted by the softmax of s_n / weight_temperature, through
    which gradients flow. Negatives with a hinge of 0 are `bystanders`: excluded from the softmax, or in it with a logit
    of 0, as in NGAME's public code. The mean over negatives is that of the existing ones, at most `hardest`.
    """
    negatives_BH, scores_P = hardest_negatives(queries_BD, labels_SD, positives, hardest)
    # A CPU leaves out pairs without weight; a GPU computes them too, since it would have to wait for their number.
    trained_T = weights_P.nonzero()[:, 0] if weights_P.is_cpu else torch.arange(len(weights_P), device=weights_P.device)
    positive_T1 = scores_P[trained_T][:, None]
    # Unlike indexing, gradients of a query's positives are summed in a fixed order on a CPU.
    negatives_TH = negatives_BH.index_select(0, positives.rows_P[trained_T])
    absent_TH = negatives_TH == -torch.inf
    negatives_TH = negatives_TH.masked_fill(absent_TH, 0.0)
    if isinstance(margin, DynamicMargin):
        hinge_TH = margin.hinge(positive_T1, negatives_TH)
    else:
        hinge_TH = (negatives_TH - positive_T1 + margin).relu()
    hinge_TH = hinge_TH.masked_fill(absent_TH, 0.0)
    if weight_temperature is not None:
        # The smallest finite number, not -inf: a row without any violation must give 0, not 0/0.
        nothing = torch.finfo(hinge_TH.dtype).min
        bystander = nothing if bystanders == "excluded" else 0.0
        logits_TH = (negatives_TH / weight_temperature).masked_fill(hinge_TH == 0, bystander)
        hinge_TH = hinge_TH * logits_TH.masked_fill(absent_TH, nothing).softmax(1)
    of_pair_T = hinge_TH.sum(1) * weights_P[trained_T]
    if over_negatives == "mean":
        of_pair_T = of_pair_T / (~absent_TH).sum(1).clamp(min=1)
    return of_pair_T.sum() / positives.mean_over
