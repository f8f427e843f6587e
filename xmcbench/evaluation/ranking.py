"""The order of predictions: score descending, then label ascending."""

from __future__ import annotations

import numpy as np
import scipy

from xmcbench.data.pairs import map_chunks
from xmcbench.errors import XMCBenchError
from xmcbench.trial.predictions import Predictions

_LAST = np.uint64(0xFFFF_FFFF_FFFF_FFFF)  # the key of a pad
_SIGN = np.uint32(0x8000_0000)


def rank(indices: np.ndarray, scores: np.ndarray, k: int) -> Predictions:
    """The best `k` of the labels `indices` [N, K] by `scores` [N, K]; -1 marks a pad, and pads end last.

    Scores are compared as float32, which is what is stored: labels that tie there rank by id.

    >>> rank(np.array([[4, 7, 2, -1]]), np.array([[0.5, 0.9, 0.5, 0.0]]), 3).indices
    array([[7, 2, 4]], dtype=int32)
    """
    if indices.shape != scores.shape or indices.ndim != 2:
        raise XMCBenchError(f"labels {indices.shape} and scores {scores.shape} must be equal [queries, k]")
    width = min(k, indices.shape[1])
    ranked = Predictions(
        np.empty((len(indices), width), dtype=np.int32), np.empty((len(indices), width), dtype=np.float32)
    )

    def rank_chunk(chunk: slice) -> None:
        keys = _sort_keys(indices[chunk], scores[chunk])
        if width < keys.shape[1]:
            keys = np.partition(keys, width, axis=1)[:, :width]
        keys.sort(axis=1)
        ranked.indices[chunk], ranked.scores[chunk] = _unpack(keys)

    map_chunks(rank_chunk, *indices.shape)
    return ranked


def rank_sparse(scores_NL: scipy.sparse.csr_array, k: int) -> Predictions:
    """The best `k` labels of each row by the stored scores [N, L], a stored 0 among them; -1 pads a row with fewer.

    >>> rank_sparse(scipy.sparse.csr_array(np.array([[0.0, 0.5, 0.9]])), 3).indices
    array([[ 2,  1, -1]], dtype=int32)
    """
    counts_N = np.diff(scores_NL.indptr)
    indices = np.full((len(counts_N), max(k, int(counts_N.max(initial=0)))), -1, np.int32)
    scores = np.full(indices.shape, -np.inf, np.float32)
    stored = np.arange(indices.shape[1]) < counts_N[:, None]
    indices[stored], scores[stored] = scores_NL.indices, scores_NL.data
    return rank(indices, scores, k)


def _sort_keys(indices: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """A uint64 key per pair whose ascending order is the ranking: inverted score in the high bits, label in the low."""
    exact = scores.astype(np.float32)
    pads = indices < 0
    if bool((np.isnan(exact) & ~pads).any()):
        raise XMCBenchError("cannot rank labels: a score is NaN, expected a number")
    bits = (exact + np.float32(0.0)).view(np.uint32)  # adding 0 turns -0.0 into 0.0: they tie
    # IEEE floats sort as integers once negative ones are flipped whole and positive ones in their sign bit.
    ascending = np.where(bits & _SIGN, ~bits, bits | _SIGN)
    keys = (~ascending).astype(np.uint64) << np.uint64(32) | indices.astype(np.uint32)
    keys[pads] = _LAST
    return keys


def _unpack(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The labels (int32) and scores (float32) that `_sort_keys` packed."""
    ascending = ~(keys >> np.uint64(32)).astype(np.uint32)
    bits = np.where(ascending & _SIGN, ascending & ~_SIGN, ~ascending)
    scores = bits.view(np.float32)
    scores[keys == _LAST] = -np.inf
    return keys.astype(np.uint32).view(np.int32), scores
