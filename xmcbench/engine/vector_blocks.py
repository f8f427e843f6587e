"""Vectors of whole collections, which a method's modules compute from embeddings some rows at a time.

Legend: N texts, H dimensions of embeddings, D of vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    Vectors = Callable[[Tensor, np.ndarray], Tensor]  # [N, D] of the embeddings [N, H] and the ids [N] of texts

BLOCK = 2**18  # rows of which modules compute vectors at a time


def vectors_in_blocks(embeddings_NH: Tensor, ids_N: np.ndarray, vectors: Vectors) -> Tensor:
    """[N, D] what `vectors` computes from embeddings and ids, `BLOCK` rows at a time to save memory."""
    block = embeddings_NH[:BLOCK]
    first = vectors(block, ids_N[:BLOCK])
    if first is block:  # the embeddings as they are
        return embeddings_NH
    if len(ids_N) <= BLOCK:
        return first
    computed_ND = first.new_empty(len(ids_N), first.shape[1])
    computed_ND[:BLOCK] = first
    for start in range(BLOCK, len(ids_N), BLOCK):
        rows = slice(start, start + BLOCK)
        computed_ND[rows] = vectors(embeddings_NH[rows], ids_N[rows])
    return computed_ND
