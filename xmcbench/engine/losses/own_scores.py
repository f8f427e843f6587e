"""Scores that are no inner products: those of a method that defines `score`, and given ones.

A loss needs the whole matrix of them. It is computed for some labels at a time, and again in the backward pass: what
`score` computes on the way, of late interaction a number for each pair of tokens, is in memory for few labels only.

Legend: B queries, S labels of the pool (of this worker), C labels of a chunk, V and W numbers of a vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from xmcbench.engine.flops import by_formula
from xmcbench.trial.meter import uncounted

Score = Callable[[Tensor, Tensor], Tensor]  # [B, C] of the vectors of queries [B, V] and of labels [C, W]
NUMBERS = {"cpu": 1 << 21, "cuda": 1 << 26}  # in memory at a time, if scoring a pair takes as many as its vectors have


def pairs_at_once(queries_BV: Tensor, labels_SW: Tensor) -> int:
    """The number of pairs that are scored at a time; it depends on the widths of the vectors and the device alone."""
    return max(1, NUMBERS[queries_BV.device.type] // max(1, queries_BV.shape[1], labels_SW.shape[1]))


def score_matrix(score: Score, queries_BV: Tensor, labels_SW: Tensor) -> Tensor:
    """[B, S] the scores of all pairs, in float32 or better, a chunk of labels at a time.

    Where there are several chunks, the backward pass computes each again, which is not counted: how many there are
    depends on the device.
    """
    columns = max(1, pairs_at_once(queries_BV, labels_SW) // max(1, len(queries_BV)))
    chunks = torch.split(labels_SW, columns)
    if len(chunks) == 1:
        return checked(score(queries_BV, labels_SW), queries_BV, labels_SW)
    parts = []
    for labels_CW in chunks:
        scores_BC = checkpoint(score, queries_BV, labels_CW, use_reentrant=False, context_fn=_again)
        parts.append(checked(scores_BC, queries_BV, labels_CW))
    return torch.cat(parts, dim=1)


def checked(scores_BC: Tensor, queries_BV: Tensor, labels_CW: Tensor) -> Tensor:
    """The scores. Raises ValueError unless there is one for each pair."""
    if scores_BC.shape != (expected := (len(queries_BV), len(labels_CW))):
        raise ValueError(f"score returned {list(scores_BC.shape)}, expected [queries, labels] = {list(expected)}")
    return scores_BC


def _again() -> tuple[Any, Any]:
    return nullcontext(), _repeating()


@contextmanager
def _repeating() -> Iterator[None]:
    with by_formula(), uncounted():
        yield
