"""Sums over a row of scores that never hold the score matrix.

A chunk of labels at a time is scored, summed up per query and forgotten; the backward pass scores it again. Memory is
that of one chunk, time two passes over the scores, for any number of labels.

Legend: B queries, S labels of the pool, C labels of a chunk, D dimensions, P excluded pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import softplus

CHUNK_SCORES = 1 << 22  # scores held at once: 16 MiB of float32


class _Pairs:
    """Pairs of a B x S matrix, by column, so that those of a chunk of columns are a slice."""

    def __init__(self, rows_P: Tensor, columns_P: Tensor) -> None:
        by_column_P = columns_P.argsort(stable=True)
        self.rows_P, self.columns_P = rows_P[by_column_P], columns_P[by_column_P]

    def fill(self, scores_BC: Tensor, start: int, value: float) -> None:
        """Set the pairs that lie in the chunk of columns at `start`."""
        ends = torch.tensor([start, start + scores_BC.shape[1]], device=self.columns_P.device)
        first, last = torch.searchsorted(self.columns_P, ends).tolist()
        scores_BC[self.rows_P[first:last], self.columns_P[first:last] - start] = value


def _chunks(queries_BD: Tensor, labels_SD: Tensor, temperature: float) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Where a chunk of labels starts, the chunk [C, D] and its scores [B, C]; both in float32 or better."""
    dtype = torch.promote_types(queries_BD.dtype, torch.float32)
    scaled_BD = queries_BD.to(dtype) / temperature
    width = max(1, CHUNK_SCORES // max(1, queries_BD.shape[0]))
    for start in range(0, labels_SD.shape[0], width):
        labels_CD = labels_SD[start : start + width].to(dtype)
        yield start, labels_CD, scaled_BD @ labels_CD.T


class _LogSumExp(Function):
    """log sum_l e^s_il over the labels of the pool that are not excluded; its gradient is their softmax."""

    @staticmethod
    def forward(ctx: Any, queries_BD: Tensor, labels_SD: Tensor, temperature: float, excluded: _Pairs | None) -> Tensor:
        sums_B = None
        for start, _, scores_BC in _chunks(queries_BD, labels_SD, temperature):
            if excluded is not None:
                excluded.fill(scores_BC, start, -torch.inf)
            chunk_B = scores_BC.logsumexp(1)
            sums_B = chunk_B if sums_B is None else torch.logaddexp(sums_B, chunk_B)
        assert sums_B is not None
        ctx.save_for_backward(queries_BD, labels_SD, sums_B)
        ctx.temperature, ctx.excluded = temperature, excluded
        return sums_B

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        queries_BD, labels_SD, sums_B = ctx.saved_tensors
        # A query whose whole pool is excluded has the sum -inf: it weighs nothing, and must not make -inf - -inf.
        offsets_B1 = sums_B.masked_fill(sums_B == -torch.inf, 0.0)[:, None]

        def weigh(start: int, scores_BC: Tensor) -> Tensor:
            if ctx.excluded is not None:
                ctx.excluded.fill(scores_BC, start, -torch.inf)
            return scores_BC.sub_(offsets_B1).exp_().mul_(grads[0][:, None])

        return *_pull(queries_BD, labels_SD, ctx.temperature, weigh), None, None


class _SumSoftplus(Function):
    """sum_l log(1 + e^s_il); its gradient is the sigmoid of each score."""

    @staticmethod
    def forward(ctx: Any, queries_BD: Tensor, labels_SD: Tensor, temperature: float) -> Tensor:
        sums_B = queries_BD.new_zeros(queries_BD.shape[0], dtype=torch.promote_types(queries_BD.dtype, torch.float32))
        for _, _, scores_BC in _chunks(queries_BD, labels_SD, temperature):
            sums_B += softplus(scores_BC).sum(1)
        ctx.save_for_backward(queries_BD, labels_SD)
        ctx.temperature = temperature
        return sums_B

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        queries_BD, labels_SD = ctx.saved_tensors

        def weigh(_start: int, scores_BC: Tensor) -> Tensor:
            return scores_BC.sigmoid_().mul_(grads[0][:, None])

        return *_pull(queries_BD, labels_SD, ctx.temperature, weigh), None


def _pull(queries_BD: Tensor, labels_SD: Tensor, temperature: float, weigh: Any) -> tuple[Tensor, Tensor]:
    """Gradients of queries and labels, given what each chunk's scores weigh in them: `weigh(start, scores_BC)`."""
    dtype = torch.promote_types(queries_BD.dtype, torch.float32)
    scaled_BD = queries_BD.to(dtype) / temperature
    of_queries_BD = torch.zeros_like(scaled_BD)
    of_labels_SD = torch.empty_like(labels_SD, dtype=dtype)
    for start, labels_CD, scores_BC in _chunks(queries_BD, labels_SD, temperature):
        weights_BC = weigh(start, scores_BC)
        of_queries_BD.addmm_(weights_BC, labels_CD)
        of_labels_SD[start : start + labels_CD.shape[0]] = weights_BC.T @ scaled_BD
    return (of_queries_BD / temperature).to(queries_BD.dtype), of_labels_SD.to(labels_SD.dtype)


def log_sum_exp(
    queries_BD: Tensor, labels_SD: Tensor, temperature: float, excluded_P: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """[B] log of the sum of e^s over the pool, without the pairs `excluded_P` (rows, columns); -inf of no label."""
    pairs = None if excluded_P is None else _Pairs(*excluded_P)
    sums_B: Tensor = _LogSumExp.apply(queries_BD, labels_SD, temperature, pairs)  # type: ignore[no-untyped-call]
    return sums_B


def sum_softplus(queries_BD: Tensor, labels_SD: Tensor, temperature: float) -> Tensor:
    """[B] sum of log(1 + e^s) over the pool."""
    sums_B: Tensor = _SumSoftplus.apply(queries_BD, labels_SD, temperature)  # type: ignore[no-untyped-call]
    return sums_B


def pair_scores(queries_BD: Tensor, labels_SD: Tensor, rows_P: Tensor, columns_P: Tensor, temperature: float) -> Tensor:
    """[P] scores of some pairs, in float32 or better."""
    dtype = torch.promote_types(queries_BD.dtype, torch.float32)
    return torch.einsum("pd,pd->p", queries_BD[rows_P].to(dtype), labels_SD[columns_P].to(dtype)) / temperature
