"""Means of word vectors: texts as bags of word pieces, without padding, and gradients of the pieces that occur.

Both passes are sums over bags. Forward, a text is a bag of pieces; backward, a piece is a bag of the texts it is in.

Legend: V word pieces, H dimensions, M texts, T word pieces in all of them, U different ones.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.functional import embedding_bag, pad

from xmcbench.engine.tables.touched_rows import TouchedRows


class WordBags(nn.Module):
    """The mean over a text's pieces of their vectors [V, H], each times its weight if there are `weights` [V]."""

    def __init__(self, vectors_VH: Tensor, weights_V: Tensor | None = None) -> None:
        super().__init__()
        self.vectors = TouchedRows(vectors_VH)
        self.weights = None if weights_V is None else TouchedRows(weights_V)

    @property
    def folded_VH(self) -> Tensor:
        """The vectors times their weights, which have the same means without weights."""
        vectors_VH = self.vectors.weight.detach()
        return vectors_VH if self.weights is None else vectors_VH * self.weights.weight.detach()[:, None]

    def forward(self, ids_T: Tensor, starts_M: Tensor) -> Tensor:
        """[M, H] the means; text i has the pieces from `ids_T[starts_M[i]]` on. That of no pieces is zero."""
        if self.weights is None and not torch.is_grad_enabled():
            return embedding_bag(ids_T, self.vectors.weight, starts_M, mode="mean")
        # An input that needs a gradient, so that the backward pass is called.
        means_MH: Tensor = _Means.apply(self.vectors.weight, self, ids_T, starts_M)  # type: ignore[no-untyped-call]
        return means_MH


class _Means(Function):
    @staticmethod
    def forward(ctx: Any, vectors_VH: Tensor, bags: WordBags, ids_T: Tensor, starts_M: Tensor) -> Tensor:
        ctx.bags = bags
        ctx.save_for_backward(ids_T, starts_M)
        if bags.weights is None:
            return embedding_bag(ids_T, vectors_VH, starts_M, mode="mean")
        # As a saved model has them: vectors and weights multiplied.
        words_U, places_T = torch.unique(ids_T, return_inverse=True)
        folded_UH = vectors_VH[words_U] * bags.weights.weight[words_U, None]
        return embedding_bag(places_T.to(starts_M.dtype), folded_UH, starts_M, mode="mean")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, None, None]:
        bags, (ids_T, starts_M) = ctx.bags, ctx.saved_tensors
        lengths_M = pad(starts_M, (0, 1), value=len(ids_T)).diff()
        sorted_T, order_T = ids_T.sort(stable=True)
        words_U, counts_U = torch.unique_consecutive(sorted_T, return_counts=True)
        texts_T = torch.searchsorted(starts_M, order_T, right=True) - 1  # of the sorted pieces
        shares_MH = grads[0] / lengths_M.clamp(min=1)[:, None]
        rows_UH = embedding_bag(texts_T, shares_MH, counts_U.cumsum(0) - counts_U, mode="sum")
        words_U = words_U.long()
        if bags.weights is not None:
            weights_U1 = bags.weights.weight.detach()[words_U, None]
            bags.weights.add_gradient(words_U, (bags.vectors.weight.detach()[words_U] * rows_UH).sum(1))
            rows_UH *= weights_U1
        bags.vectors.add_gradient(words_U, rows_UH)
        return None, None, None, None
