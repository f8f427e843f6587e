"""Predictions as arrays: scores of all labels, or ranked labels.

Legend: T test queries, L labels, K ranked labels of a query.
"""

from __future__ import annotations

import numpy as np

from xmcbench.evaluation.entries import Entries, Expected
from xmcbench.trial.predictions import STORED

KEPT = (
    10 * STORED
)  # of the scores of all labels, the best of a query: more than are stored, and ignored pairs among them
CHUNK_ENTRIES = 1 << 22  # scores that are looked at at a time
EXPECTED = (
    "expected a matrix of scores [queries, labels] (numpy, scipy.sparse, torch, a data frame), ranked labels "
    "(indices, scores) [queries, k], a list with the labels or {label: score} of each query, a data frame with the "
    "columns query, label and score, Predictions, or the path of a file"
)


def numbers(values: np.ndarray, name: str, expected: Expected) -> np.ndarray:
    """`values` if they are numbers. Raises XMCBenchError that names them otherwise."""
    if values.dtype.kind not in "fiub":
        raise expected.error(f"{name}: found the type {values.dtype}, expected numbers")
    return values


def of_array(array: np.ndarray, expected: Expected) -> Entries:
    """A matrix of scores [T, L]; or of integers [T, K], labels from the best on, -1 pads a row."""
    array = numbers(np.asarray(array), "array", expected)
    if array.ndim != 2:
        raise expected.error(f"found the shape {array.shape}, {EXPECTED}")
    shape = (expected.num_queries, expected.num_labels)
    if array.dtype.kind in "iu" and len(array) == shape[0]:
        ranking = _is_ranking(array, expected)
        if ranking and array.shape == shape:
            raise expected.error(
                "found whole numbers that may be scores or labels, expected scores as floats, or (indices, scores)"
            )
        if ranking:
            scores = np.broadcast_to(-np.arange(array.shape[1], dtype=np.float64), array.shape)
            return of_ranked_rows(array, scores, expected)
    expected.check_shape(array.shape)
    return _of_scores(array, expected)


def _is_ranking(array: np.ndarray, expected: Expected) -> bool:
    """Whether the rows of whole numbers are labels, each once."""
    if not array.size or int(array.min()) < -1 or int(array.max()) >= expected.num_labels:
        return False
    ordered = np.sort(array, axis=1)
    return not bool(((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any())


def _of_scores(scores_TL: np.ndarray, expected: Expected) -> Entries:
    """The best `KEPT` labels of each query by scores of all labels; -inf is no prediction."""
    kept = min(KEPT, expected.num_labels)
    labels, scores, counts = [], [], []
    step = max(1, CHUNK_ENTRIES // expected.num_labels)
    for start in range(0, len(scores_TL), step):
        chunk = scores_TL[start : start + step]
        exact = chunk.astype(np.float64)
        if np.isnan(exact).any():
            row, label = np.argwhere(np.isnan(exact))[0]
            raise expected.error(f"query {start + row}: found label {label} with a score that is not a finite number")
        least = np.partition(exact, -kept, axis=1)[:, -kept, None]
        above, equal = exact > least, exact == least
        held = above | (equal & (np.cumsum(equal, axis=1) <= kept - above.sum(axis=1, keepdims=True)))
        held &= exact > -np.inf
        counts.append(held.sum(axis=1))
        labels.append(np.nonzero(held)[1])
        scores.append(chunk[held])
    return Entries.of_rows(np.concatenate(counts), np.concatenate(labels), np.concatenate(scores))


def of_ranked_rows(indices: np.ndarray, scores: np.ndarray, expected: Expected) -> Entries:
    """Entries of rows that are ranked already: `indices` and `scores` [T, K], best first, -1 pads a row.

    Raises XMCBenchError if shapes differ or the scores of a row ascend.
    """
    if indices.ndim != 2 or indices.shape != scores.shape:
        raise expected.error(f"found indices {indices.shape} and scores {scores.shape}, expected both [queries, k]")
    if indices.dtype.kind not in "iu":
        raise expected.error(f"indices: found the type {indices.dtype}, expected integers")
    scores = numbers(scores, "scores", expected)
    expected.check_rows(len(indices))
    expected.check_entries(indices.size)
    held = indices != -1
    ascending = (scores[:, 1:] > scores[:, :-1]) & held[:, 1:] & held[:, :-1]
    if ascending.any():
        query, rank = np.argwhere(ascending)[0]
        raise expected.error(
            f"query {query}: found score {scores[query, rank]:.7g} before {scores[query, rank + 1]:.7g}, "
            "expected the best label first"
        )
    return Entries.of_rows(held.sum(axis=1), indices[held], scores[held], ordered=True)
