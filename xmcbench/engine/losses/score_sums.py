"""Sums over the rows of a score matrix that is never in memory as a whole.

Labels are processed in chunks: the scores of a chunk are computed, summed per query and discarded. The backward pass
computes them again, except for a few chunks that are kept. Memory is that of a few chunks for any number of labels. The
scores of the positive pairs are read from the chunks in the same pass, and their gradients are added there. If the
gradient of a score depends on no other score (cross-entropy), one pass computes both value and gradients.

Legend: B queries, S labels of the pool, C labels of a chunk, D dimensions, K selected per row, P positive pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import softplus

from xmcbench.engine import flops
from xmcbench.engine.losses.positives import Positives, of_scores

# Scores in memory at a time. CPU: 8 MiB of float32, which stays in its cache. GPU: 256 MiB, which keeps it busy.
CHUNK_SCORES = {"cpu": 1 << 21, "cuda": 1 << 26}
KEPT_CHUNKS = 16  # kept from the forward to the backward pass of a sum, so that a small pool is scored once


class Scores:
    """Inner products divided by the temperature, in float32 or better, in chunks of labels that begin at `starts`.

    Without `labels_SD`, `queries_BD` are no vectors but the scores [B, S] themselves.

    A `Function` creates one in each pass: the forward pass calls `remember`, the backward pass `Scores.of(ctx)`. Scores
    that the backward pass computes again are not counted as operations, because their number depends on the device.
    """

    def __init__(
        self,
        queries_BD: Tensor,
        labels_SD: Tensor | None,
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
        num_labels = queries_BD.shape[1] if labels_SD is None else labels_SD.shape[0]
        self.starts = range(0, num_labels, self.width)
        if len(self.starts) > 1:  # sorted by column, so that the pairs of a chunk are a slice
            columns_P, self._by_column_P = positives.by_column
            self._bounds = torch.searchsorted(columns_P, torch.tensor([*self.starts, num_labels])).tolist()

    def remember(self, ctx: Any, *others: Tensor) -> None:
        ctx.save_for_backward(self.queries_BD, self.labels_SD, *others)
        ctx.scoring = self.positives, self.temperature, self.count

    @staticmethod
    def of(ctx: Any) -> Scores:
        return Scores(*ctx.saved_tensors[:2], *ctx.scoring)

    def chunk(self, start: int) -> Tensor:
        """[B, C] scores of the chunk of labels that begins at `start`."""
        if self.labels_SD is None:
            return self.scaled_BD[:, start : start + self.width].clone()
        labels_CD = self.labels(start)
        return self.scaled_BD @ labels_CD.T if self.again else self._product(self.scaled_BD, labels_CD.T)

    def pairs(self, start: int) -> tuple[Tensor | slice, tuple[Tensor, Tensor]]:
        """The indices of the pairs in the chunk at `start`, and their rows and columns in the chunk."""
        if len(self.starts) == 1:
            return slice(None), (self.positives.rows_P, self.positives.columns_P)
        chunk = start // self.width
        here = self._by_column_P[self._bounds[chunk] : self._bounds[chunk + 1]]
        return here, (self.positives.rows_P[here], self.positives.columns_P[here] - start)

    def new_rows(self, value: float, *shape: int) -> Tensor:
        """A tensor [B, *shape] filled with `value`."""
        return self.scaled_BD.new_full((self.scaled_BD.shape[0], *shape), value)

    def new_pairs(self) -> Tensor:
        """An empty tensor [P], one element per positive pair."""
        return self.scaled_BD.new_empty(self.positives.rows_P.shape[0])

    def pull(self, weigh: Callable[[int], Tensor], of_pairs_P: Tensor) -> tuple[Tensor, Tensor | None]:
        """The gradients of queries and labels, given those of scores: `weigh(start)` [B, C] plus `of_pairs_P`."""
        of_queries_BD = torch.zeros_like(self.scaled_BD)
        of_labels_SD = None if self.labels_SD is None else torch.empty_like(self.labels_SD)
        for start in self.starts:
            weights_BC = weigh(start)
            here, places = self.pairs(start)
            weights_BC[places] += of_pairs_P[here]
            columns = slice(start, start + self.width)
            if of_labels_SD is None:
                of_queries_BD[:, columns] = weights_BC
            else:
                of_queries_BD += self._product(weights_BC, self.labels(start))
                of_labels_SD[columns] = self._product(weights_BC.T, self.scaled_BD)
        return of_queries_BD.div_(self.temperature).to(self.queries_BD.dtype), of_labels_SD

    def labels(self, start: int) -> Tensor:
        """[C, D] the labels of the chunk at `start`, in the precision of the scores."""
        assert self.labels_SD is not None
        return self._precise(self.labels_SD[start : start + self.width])

    def _precise(self, rows: Tensor) -> Tensor:
        return rows.to(torch.promote_types(self.queries_BD.dtype, torch.float32))

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        self.count.flops += 2 * left.shape[0] * left.shape[1] * right.shape[1]
        return left @ right


class _LogSumExp(Function):
    """log sum_l e^s_il over the pool or its negatives, whose gradient is a softmax, and the scores of the positives."""

    @staticmethod
    @flops.by_formula()
    def forward(
        ctx: Any,
        queries_BD: Tensor,
        labels_SD: Tensor | None,
        positives: Positives,
        temperature: float,
        negatives: bool,
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
            terms_BC = scores_BC.sub_(finite(largest_B1)).exp_()
            sums_B = torch.logaddexp(sums_B, largest_B1[:, 0] + terms_BC.sum(1).log())
            if len(kept) < KEPT_CHUNKS:
                kept[start] = terms_BC, largest_B1
                scores.count.kept_scores += terms_BC.numel()
        scores.remember(ctx, sums_B)
        ctx.kept, ctx.negatives = kept, negatives
        return sums_B, scores_P

    @staticmethod
    @flops.by_formula()
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        scores = Scores.of(ctx)
        kept: dict[int, tuple[Tensor, Tensor]] = ctx.kept
        sums_B1, asked_B1 = finite(ctx.saved_tensors[2][:, None]), grads[0][:, None]

        def softmax(start: int) -> Tensor:
            if start in kept:  # overwritten here: a second backward pass computes it again
                terms_BC, largest_B1 = kept.pop(start)
                return terms_BC.mul_((largest_B1 - sums_B1).exp() * asked_B1)
            scores_BC = scores.chunk(start)
            if ctx.negatives:
                scores_BC[scores.pairs(start)[1]] = -torch.inf
            return scores_BC.sub_(sums_B1).exp_().mul_(asked_B1)

        return *scores.pull(softmax, grads[1]), None, None, None


class _CrossEntropy(Function):
    """The gradient of s needs no sum over labels, so the forward pass computes it too."""

    @staticmethod
    @flops.by_formula()
    def forward(
        ctx: Any, queries_BD: Tensor, labels_SD: Tensor | None, positives: Positives, temperature: float
    ) -> Tensor:
        scores = Scores(queries_BD, labels_SD, positives, temperature)
        mean, ctx.gradients = _cross_entropy(scores)
        scores.remember(ctx)
        return mean

    @staticmethod
    @flops.by_formula()
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        gradients, ctx.gradients = ctx.gradients, None
        # The first backward pass hands the gradients over; a second one computes them again.
        of_queries_BD, of_labels_SD = gradients or _cross_entropy(Scores.of(ctx))[1]
        of_labels_SD = None if of_labels_SD is None else of_labels_SD.mul_(grads[0])
        return of_queries_BD.mul_(grads[0]), of_labels_SD, None, None


def _cross_entropy(scores: Scores) -> tuple[Tensor, tuple[Tensor, Tensor | None]]:
    """The value, and the gradients of queries and labels."""
    sums_B, scores_P = scores.new_rows(0.0), scores.new_pairs()
    share = 1 / scores.positives.num_queries

    def sigmoid(start: int) -> Tensor:
        scores_BC, (here, places) = scores.chunk(start), scores.pairs(start)
        scores_P[here] = scores_BC[places]
        # torch's default threshold of 20 has an error of 2e-9, too much for float64
        sums_B.add_(softplus(scores_BC, threshold=40.0).sum(1))
        return scores_BC.sigmoid_().mul_(share)

    gradients = scores.pull(sigmoid, torch.full_like(scores_P, -share))
    return (sums_B.sum() - scores_P.sum()) * share, gradients


def finite(numbers: Tensor) -> Tensor:
    """`numbers` with -inf, the log of an empty sum, replaced by 0, which avoids -inf - -inf."""
    return numbers.masked_fill(numbers == -torch.inf, 0.0)


def log_sum_exp(
    queries_BD: Tensor, labels_SD: Tensor | None, positives: Positives, temperature: float, *, negatives: bool = False
) -> tuple[Tensor, Tensor]:
    """[B] log of the sum of e^s over this worker's pool or its negatives, and [P] the scores of its positive pairs.

    The log of an empty sum is -inf.
    """
    sums_and_scores: tuple[Tensor, Tensor] = _LogSumExp.apply(queries_BD, labels_SD, positives, temperature, negatives)  # type: ignore[no-untyped-call]
    return sums_and_scores


class _PairScores(Function):
    """The scores of the pairs only."""

    @staticmethod
    @flops.by_formula()
    def forward(ctx: Any, queries_BD: Tensor, labels_SD: Tensor | None, pairs: Positives) -> Tensor:
        scores = Scores(queries_BD, labels_SD, pairs, 1.0)
        scores_P = scores.new_pairs()
        for start in scores.starts:
            here, places = scores.pairs(start)
            scores_P[here] = scores.chunk(start)[places]
        scores.remember(ctx)
        return scores_P

    @staticmethod
    @flops.by_formula()
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        scores = Scores.of(ctx)

        def nothing(start: int) -> Tensor:
            return scores.new_rows(0.0, min(scores.width, scores.starts.stop - start))

        return *scores.pull(nothing, grads[0]), None


@of_scores
def pair_scores(queries_BD: Tensor, labels_SD: Tensor | None, pairs: Positives) -> Tensor:
    """[P] the scores of any pairs, computed in chunks of labels."""
    scores_P: Tensor = _PairScores.apply(queries_BD, labels_SD, pairs)  # type: ignore[no-untyped-call]
    return scores_P


@of_scores
def binary_cross_entropy(
    queries_BD: Tensor, labels_SD: Tensor | None, positives: Positives, *, temperature: float
) -> Tensor:
    """Binary cross-entropy over every label of the pool (DEXML Eq. 2; OvA-BCE): the sum of log(1 + e^s) - y s.

    Scalar: averaged over the B queries; a worker's part. The gradient of a score is (sigmoid(s) - y) / B.
    """
    mean: Tensor = _CrossEntropy.apply(queries_BD, labels_SD, positives, temperature)  # type: ignore[no-untyped-call]
    return mean


def largest(scores_BC: Tensor, most: int, floor_B1: Tensor) -> tuple[Tensor, Tensor]:
    """[B, K] the values and columns of the largest scores of each row: all above its floor, but at most `most`.

    Selecting few is far cheaper than selecting `most`, and later chunks have few scores above the largest so far. A GPU
    selects `most`, whatever their floor, because counting them would wait for it.
    """
    above = scores_BC.shape[1]
    if scores_BC.is_cpu and scores_BC.numel():
        above = int((scores_BC > floor_B1).sum(1).amax())
    values_BK, columns_BK = scores_BC.topk(min(above, most), dim=1, sorted=False)
    return values_BK, columns_BK
