"""The order of predictions, and what is checked before and after they are scored: a broken rule is no score."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import scipy

from xmcbench.data.pairs import binary, contains, find, map_chunks
from xmcbench.errors import XMCBenchError
from xmcbench.trial.predictions import Predictions

_LAST = 0xFFFF_FFFF_FFFF_FFFF  # the key of a pad
_SIGN = 0x8000_0000


def rank(indices: np.ndarray, scores: np.ndarray, k: int) -> Predictions:
    """The best `k` of the labels `indices` [N, K] by `scores` [N, K]; -1 marks a pad, and pads end last.

    Scores are compared as float32, which is what is stored: labels that tie there rank by id.

    >>> rank(np.array([[4, 7, 2, -1]]), np.array([[0.5, 0.9, 0.5, 0.0]]), 3).indices
    array([[7, 2, 4]], dtype=int32)
    """
    if indices.shape != scores.shape or indices.ndim != 2:
        raise XMCBenchError(f"labels {indices.shape} and scores {scores.shape} must be equal [queries, k]")
    shape = len(indices), (width := min(k, indices.shape[1]))
    ranked = Predictions(np.empty(shape, np.int32), np.empty(shape, np.float32))

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
    bits = np.where(ascending & _SIGN, ascending ^ _SIGN, ~ascending)
    scores = bits.view(np.float32)
    scores[keys == _LAST] = -np.inf
    return keys.astype(np.uint32).view(np.int32), scores


_SLACK = 1e-9  # sums of fractions are exact to about 1e-15 per term


class InvalidPredictions(XMCBenchError):
    """Predictions that break a rule of the harness, or metrics computed from them that do; they have no score."""


def check_predictions(
    predictions: Predictions, num_queries: int, num_labels: int, ignore: scipy.sparse.csr_array | None = None
) -> None:
    """Raise `InvalidPredictions` unless the rows are ranked, distinct labels, none of them in `ignore` [N, L].

    The message names the first query that breaks a rule.
    """
    indices, scores = predictions.indices, predictions.scores
    if len(predictions) != num_queries:
        raise InvalidPredictions(
            f"predictions have {len(predictions)} rows, expected one for each of {num_queries} queries"
        )
    if not np.issubdtype(indices.dtype, np.integer):
        raise InvalidPredictions(f"labels are of type {indices.dtype}, expected integers")

    start = "the predictions of test query"

    def check(chunk: slice) -> None:
        if _in_order(indices[chunk], scores[chunk], num_labels):
            return
        for problem, broken in _broken_rules(indices[chunk], scores[chunk], num_labels).items():
            if broken.any():
                row, column = np.argwhere(broken)[0]
                example = f": {indices[chunk][row, column]}" if problem.startswith("a label outside") else ""
                raise InvalidPredictions(f"{start} {chunk.start + row} hold {problem}{example}")

    map_chunks(check, *indices.shape)
    if ignore is not None and len(ignored := find(binary(ignore), indices)):
        raise InvalidPredictions(f"{start} {ignored[0] // predictions.k} hold a label that is to be filtered")


def _in_order(indices: np.ndarray, scores: np.ndarray, num_labels: int) -> bool:
    """Whether rows without pads surely keep all rules: the check of nearly all predictions, in few passes."""
    if not indices.size or int(indices.min()) < 0 or int(indices.max()) >= num_labels:
        return False
    ordered = np.sort(indices, axis=1)
    if bool((ordered[:, 1:] == ordered[:, :-1]).any()) or not bool((scores[:, :1] < np.inf).all()):
        return False
    return bool((scores[:, :-1] > scores[:, 1:]).all())


def _broken_rules(indices: np.ndarray, scores: np.ndarray, num_labels: int) -> dict[str, np.ndarray]:
    """Where each rule is broken, bool [n, k or k - 1], keyed by the words of the error message."""
    pads = indices == -1
    ordered = np.sort(indices, axis=1)
    before, after = scores[:, :-1], scores[:, 1:]
    tied = (before == after) & ~pads[:, 1:]
    return {
        f"a label outside 0..{num_labels - 1}": (indices < -1) | (indices >= num_labels),
        "a pad (-1) before a label": pads[:, :-1] & ~pads[:, 1:],
        "a label twice": (ordered[:, :-1] == ordered[:, 1:]) & (ordered[:, 1:] >= 0),
        "a score that is NaN": np.isnan(scores),
        "an infinite score": scores == np.inf,
        "scores that do not descend": after > before,
        "equal scores not ranked by ascending label": tied & (indices[:, :-1] > indices[:, 1:]),
    }


def drop_ignored(predictions: Predictions, ignore: scipy.sparse.csr_array, k: int) -> Predictions:
    """The predictions without the pairs in `ignore` [N, L], cut to the best `k`; rows left short are padded."""
    shape = len(predictions), (width := min(k, predictions.k))
    dropped = contains(binary(ignore), predictions.indices) | (predictions.indices < 0)
    remaining = Predictions(np.empty(shape, np.int32), np.empty(shape, np.float32))

    def drop(chunk: slice) -> None:
        if not dropped[chunk].any():
            remaining.indices[chunk] = predictions.indices[chunk, :width]
            remaining.scores[chunk] = predictions.scores[chunk, :width]
            return
        order = np.argsort(dropped[chunk], axis=1, kind="stable")[:, :width]
        pads = np.take_along_axis(dropped[chunk], order, axis=1)
        remaining.indices[chunk] = np.where(pads, -1, np.take_along_axis(predictions.indices[chunk], order, axis=1))
        remaining.scores[chunk] = np.where(pads, -np.inf, np.take_along_axis(predictions.scores[chunk], order, axis=1))

    map_chunks(drop, *dropped.shape)
    return remaining


def check_metrics(metrics: Mapping[str, float]) -> None:
    """Raise `InvalidPredictions` where metrics contradict each other: no predictions can give them."""
    for name, value in metrics.items():
        if not -_SLACK <= value <= 1.0 + _SLACK:
            raise InvalidPredictions(f"{name} is {value}, expected a fraction in 0..1")
    if "P@1" in metrics and "nDCG@1" in metrics and abs(metrics["P@1"] - metrics["nDCG@1"]) > _SLACK:
        raise InvalidPredictions(f"P@1 is {metrics['P@1']} and nDCG@1 is {metrics['nDCG@1']}, expected them equal")
    curves: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for name, value in metrics.items():
        if parts := re.fullmatch(r"(P|R)@(\d{1,9})", name):
            k = int(parts[2])
            curves[parts[1]].append((k, value * k if parts[1] == "P" else value))
    for family, points in curves.items():
        for (k, at_k), (more, at_more) in pairwise(sorted(points)):
            if at_more < at_k - _SLACK * more:
                raise InvalidPredictions(f"{family}@{more} finds fewer true labels than {family}@{k}")
