"""Sums over rows of scores that never hold the score matrix.

A chunk of labels at a time is scored, summed up per query and forgotten; the backward pass scores it again, but for the
few chunks that are kept. Memory is that of some chunks, for any number of labels. The scores of the positive pairs are
read off the chunks in the same pass, and their gradients put back there. Where a score's gradient depends on no other
score (cross-entropy), one pass gives value and gradients.

Legend: B queries, S labels of the pool, C labels of a chunk, D dimensions, K picked of a row, P positive pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import softplus

from xmcbench.engine import flops
from xmcbench.engine.losses.positives import Positives

# Scores held at once. On a CPU 8 MiB of float32, which stays in its cache; on a GPU 256 MiB, which fills its cores.
CHUNK_SCORES = {"cpu": 1 << 21, "cuda": 1 << 26}
KEPT_CHUNKS = 16  # of a sum, from its forward to its backward pass: a pool of a few chunks is scored once


class Scores:
    """Inner products over the temperature, in float32 or better: a chunk of labels at a time, at each of `starts`.

    A `Function` makes one in each direction: `Scores.of(ctx)` in the backward pass is what `remember` was called on.
    Scores made again there are not counted as operations: how many there are depends on the device's chunks.
    """

    def __init__(
        self,
        queries_BD: Tensor,
        labels_SD: Tensor,
        positives: Positives,
        temperature: float,
        count: flops.Count | None = None,
    ) -> None:
        self.queries_BD, self.labels_SD, self.positives = queries_BD, labels_SD, positives
        self.temperature = temperature
        self.again = count is not None
        self.count = count or flops.current()
        self.scaled_BD = self._precise(queries_BD) / temperature
        self.width = max(1, CHUNK_SCORES[queries_BD.device.type] // max(1, queries_BD.shape[0]))
        self.starts = range(0, labels_SD.shape[0], self.width)
        # By column, so that the pairs of a chunk are a slice.
        columns_P, self._by_column_P = positives.columns_P.sort(stable=True)
        ends = torch.tensor([*self.starts, labels_SD.shape[0]], device=columns_P.device)
        self._bounds = torch.searchsorted(columns_P, ends).tolist()

    def remember(self, ctx: Any, *others: Tensor) -> None:
        ctx.save_for_backward(self.queries_BD, self.labels_SD, *others)
        ctx.scoring = self.positives, self.temperature, self.count

    @staticmethod
    def of(ctx: Any) -> Scores:
        return Scores(*ctx.saved_tensors[:2], *ctx.scoring)

    def chunk(self, start: int) -> Tensor:
        """[B, C] scores of the labels from `start` on."""
        labels_CD = self._labels(start)
        return self.scaled_BD @ labels_CD.T if self.again else self._product(self.scaled_BD, labels_CD.T)

    def pairs(self, start: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Which of the P pairs lie in the chunk at `start`, and where in it: rows and columns."""
        place = start // self.width
        here = self._by_column_P[self._bounds[place] : self._bounds[place + 1]]
        return here, (self.positives.rows_P[here], self.positives.columns_P[here] - start)

    def new_rows(self, value: float, *shape: int) -> Tensor:
        """[B, *shape] of `value`."""
        return self.scaled_BD.new_full((self.scaled_BD.shape[0], *shape), value)

    def new_pairs(self) -> Tensor:
        """[P], one for each positive pair."""
        return self.scaled_BD.new_empty(self.positives.rows_P.shape[0])

    def pull(self, weigh: Callable[[int], Tensor], of_pairs_P: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of queries and labels; those of scores are `weigh(start)` [B, C], and `of_pairs_P` on top."""
        of_queries_BD = torch.zeros_like(self.scaled_BD)
        of_labels_SD = torch.empty_like(self.labels_SD)
        for start in self.starts:
            weights_BC = weigh(start)
            here, places = self.pairs(start)
            weights_BC[places] += of_pairs_P[here]
            of_queries_BD += self._product(weights_BC, self._labels(start))
            of_labels_SD[start : start + self.width] = self._product(weights_BC.T, self.scaled_BD)
        return of_queries_BD.div_(self.temperature).to(self.queries_BD.dtype), of_labels_SD

    def _labels(self, start: int) -> Tensor:
        return self._precise(self.labels_SD[start : start + self.width])

    def _precise(self, rows: Tensor) -> Tensor:
        return rows.to(torch.promote_types(self.queries_BD.dtype, torch.float32))

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        self.count.flops += 2 * left.shape[0] * left.shape[1] * right.shape[1]
        return left @ right


class _LogSumExp(Function):
    """log sum_l e^s_il over the pool, or its negatives; its gradient is their softmax. And the positives' scores."""

    @staticmethod
    def forward(
        ctx: Any, queries_BD: Tensor, labels_SD: Tensor, positives: Positives, temperature: float, negatives: bool
    ) -> tuple[Tensor, Tensor]:
        scores = Scores(queries_BD, labels_SD, positives, temperature)
        sums_B, scores_P = scores.new_rows(-torch.inf), scores.new_pairs()
        kept: dict[int, tuple[Tensor, Tensor]] = {}
        for start in scores.starts:
            scores_BC, (here, places) = scores.chunk(start), scores.pairs(start)
            scores_P[here] = scores_BC[places]
            if negatives:
                scores_BC[places] = -torch.inf
            largest_B1 = scores_BC.amax(1, keepdim=True)
            terms_BC = scores_BC.sub_(_finite(largest_B1)).exp_()
            sums_B = torch.logaddexp(sums_B, largest_B1[:, 0] + terms_BC.sum(1).log())
            if len(kept) < KEPT_CHUNKS:
                kept[start] = terms_BC, largest_B1
        scores.remember(ctx, sums_B)
        ctx.kept, ctx.negatives = kept, negatives
        return sums_B, scores_P

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        scores = Scores.of(ctx)
        kept: dict[int, tuple[Tensor, Tensor]] = ctx.kept
        sums_B1, asked_B1 = _finite(ctx.saved_tensors[2][:, None]), grads[0][:, None]

        def softmax(start: int) -> Tensor:
            if start in kept:  # and is overwritten: a second backward pass scores it again
                terms_BC, largest_B1 = kept.pop(start)
                return terms_BC.mul_((largest_B1 - sums_B1).exp() * asked_B1)
            scores_BC = scores.chunk(start)
            if ctx.negatives:
                scores_BC[scores.pairs(start)[1]] = -torch.inf
            return scores_BC.sub_(sums_B1).exp_().mul_(asked_B1)

        return *scores.pull(softmax, grads[1]), None, None, None


class _CrossEntropy(Function):
    """The sum over labels of log(1 + e^s), less s where it is true, over B. The gradient of s is (sigmoid(s) - y) / B.

    It needs no sum, so the forward pass makes the gradients too.
    """

    @staticmethod
    def forward(ctx: Any, queries_BD: Tensor, labels_SD: Tensor, positives: Positives, temperature: float) -> Tensor:
        scores = Scores(queries_BD, labels_SD, positives, temperature)
        mean, ctx.gradients = _cross_entropy(scores)
        scores.remember(ctx)
        return mean

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        gradients, ctx.gradients = ctx.gradients, None
        # A second backward pass makes them again: the first gave them away.
        of_queries_BD, of_labels_SD = gradients or _cross_entropy(Scores.of(ctx))[1]
        return of_queries_BD.mul_(grads[0]), of_labels_SD.mul_(grads[0]), None, None


def _cross_entropy(scores: Scores) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Value, and gradients of queries and labels."""
    sums_B, scores_P = scores.new_rows(0.0), scores.new_pairs()
    share = 1 / scores.positives.num_queries

    def sigmoid(start: int) -> Tensor:
        scores_BC, (here, places) = scores.chunk(start), scores.pairs(start)
        scores_P[here] = scores_BC[places]
        # torch's threshold of 20 is 2e-9 off, which float64 notices
        sums_B.add_(softplus(scores_BC, threshold=40.0).sum(1))
        return scores_BC.sigmoid_().mul_(share)

    gradients = scores.pull(sigmoid, torch.full_like(scores_P, -share))
    return (sums_B.sum() - scores_P.sum()) * share, gradients


def _finite(numbers: Tensor) -> Tensor:
    """0 in place of -inf, the sum of nothing: it weighs nothing, and must not make -inf - -inf."""
    return numbers.masked_fill(numbers == -torch.inf, 0.0)


def log_sum_exp(
    queries_BD: Tensor, labels_SD: Tensor, positives: Positives, temperature: float, *, negatives: bool = False
) -> tuple[Tensor, Tensor]:
    """[B] log of the sum of e^s over this worker's pool, or its negatives only; [P] scores of its positive pairs.

    A sum of nothing is -inf.
    """
    found: tuple[Tensor, Tensor] = _LogSumExp.apply(queries_BD, labels_SD, positives, temperature, negatives)  # type: ignore[no-untyped-call]
    return found


class _PairScores(Function):
    """The scores of the pairs, and of no other."""

    @staticmethod
    def forward(ctx: Any, queries_BD: Tensor, labels_SD: Tensor, pairs: Positives) -> Tensor:
        scores = Scores(queries_BD, labels_SD, pairs, 1.0)
        scores_P = scores.new_pairs()
        for start in scores.starts:
            here, places = scores.pairs(start)
            scores_P[here] = scores.chunk(start)[places]
        scores.remember(ctx)
        return scores_P

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        scores = Scores.of(ctx)

        def nothing(start: int) -> Tensor:
            return scores.new_rows(0.0, min(scores.width, scores.starts.stop - start))

        return *scores.pull(nothing, grads[0]), None


def pair_scores(queries_BD: Tensor, labels_SD: Tensor, pairs: Positives) -> Tensor:
    """[P] inner products of the pairs, whatever they stand for; a chunk of labels at a time, as every other score."""
    scores_P: Tensor = _PairScores.apply(queries_BD, labels_SD, pairs)  # type: ignore[no-untyped-call]
    return scores_P


def cross_entropy(queries_BD: Tensor, labels_SD: Tensor, positives: Positives, temperature: float) -> Tensor:
    """Scalar: binary cross-entropies summed over this worker's pool, averaged over the B queries."""
    mean: Tensor = _CrossEntropy.apply(queries_BD, labels_SD, positives, temperature)  # type: ignore[no-untyped-call]
    return mean


def largest(scores_BC: Tensor, most: int, floor_B1: Tensor) -> tuple[Tensor, Tensor]:
    """[B, K] values and columns of the largest scores of each row: all that exceed its floor, but at most `most`.

    Picking few is far cheaper than picking `most`, and once a row's largest are known few later scores exceed them.
    """
    above = int((scores_BC > floor_B1).sum(1).amax()) if scores_BC.numel() else 0
    values_BK, columns_BK = scores_BC.topk(min(above, most), dim=1, sorted=False)
    return values_BK, columns_BK
