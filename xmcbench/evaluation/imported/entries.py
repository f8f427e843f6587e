"""Scored pairs of a query and a label as a file holds them, and how they become ranked predictions.

T test queries, L labels, E entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from xmcbench.errors import XMCBenchError
from xmcbench.trial.predictions import Predictions

MEAN_ENTRIES = 1000  # per query, at most: what is read is bounded by the dataset, whatever a file claims
ENTRY_BYTES = 48  # of text, at most on average: a label, a colon, a score and a blank


@dataclass(frozen=True)
class Expected:
    """What a dataset lets a file of predictions hold."""

    path: Path
    num_queries: int
    num_labels: int

    @property
    def max_entries(self) -> int:
        """Entries that a file may hold: `MEAN_ENTRIES` per query, or every pair where there are fewer."""
        return self.num_queries * min(self.num_labels, MEAN_ENTRIES)

    @property
    def max_text_bytes(self) -> int:
        return (self.max_entries + self.num_queries) * ENTRY_BYTES

    def check_entries(self, found: int) -> None:
        if found > self.max_entries:
            raise self.error(
                f"found {found:,} scores, expected at most {self.max_entries:,}: store the best labels of each query"
            )

    def check_shape(self, found: tuple[int, ...]) -> None:
        """Raise where a matrix `found` is not [T, L]."""
        expected = (self.num_queries, self.num_labels)
        if found == expected[::-1] != expected:
            raise self.error(f"found the shape {found}, expected {expected} (queries, labels): transposed")
        if found != expected:
            raise self.error(f"found the shape {found}, expected {expected} (queries, labels)")

    def check_rows(self, found: int) -> None:
        if found != self.num_queries:
            raise self.error(f"found {found:,} rows, expected one for each of {self.num_queries:,} test queries")

    def error(self, message: str) -> XMCBenchError:
        return XMCBenchError(f"{self.path}: {message}")


@dataclass(frozen=True)
class Entries:
    """Scored labels per query: those of query i are `labels[indptr[i]:indptr[i + 1]]`, in any order.

    `indptr` int64 [T + 1], `labels` int64 [E], `scores` float [E].
    """

    indptr: np.ndarray
    labels: np.ndarray
    scores: np.ndarray

    @property
    def queries(self) -> np.ndarray:
        """The query of each entry, int64 [E]."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))

    def check(self, expected: Expected) -> None:
        """Raise XMCBenchError unless labels are in 0..L-1, once per query, with scores that are numbers."""
        _refuse(expected, self, (self.labels < 0) | (self.labels >= expected.num_labels), _outside(expected))
        _refuse(expected, self, np.isnan(self.scores), "label {label} with a score that is not a number")
        pairs = self.queries * expected.num_labels + self.labels
        order = np.argsort(pairs, kind="stable")
        again = np.zeros(len(pairs), bool)
        again[order[1:]] = pairs[order[1:]] == pairs[order[:-1]]
        _refuse(expected, self, again, "label {label} twice")

    def ranked(self, k: int) -> Predictions:
        """The best `k` labels of each query by float32 score, ties by lower label id; short rows are padded."""
        scores = self.scores.astype(np.float32) + np.float32(0.0)  # adding 0 turns -0.0 into 0.0: they tie
        order = np.lexsort((self.labels, -scores, self.queries))
        places = np.arange(len(order)) - np.repeat(self.indptr[:-1], np.diff(self.indptr))
        best = places < k
        num_queries = len(self.indptr) - 1
        predictions = Predictions(
            np.full((num_queries, k), -1, np.int32), np.full((num_queries, k), -np.inf, np.float32)
        )
        rows, columns, chosen = self.queries[best], places[best], order[best]
        predictions.indices[rows, columns] = self.labels[chosen]
        predictions.scores[rows, columns] = scores[chosen]
        return predictions


def from_rows(indices: np.ndarray, scores: np.ndarray, expected: Expected) -> Entries:
    """Entries of rows that are ranked already: `indices` and `scores` [T, k], best first, -1 pads a row.

    Raises XMCBenchError if shapes differ or the scores of a row ascend.
    """
    if indices.ndim != 2 or indices.shape != scores.shape:
        raise expected.error(f"found indices {indices.shape} and scores {scores.shape}, expected both [queries, k]")
    expected.check_rows(len(indices))
    expected.check_entries(indices.size)
    held = indices != -1
    ascending = (scores[:, 1:] > scores[:, :-1]) & held[:, 1:] & held[:, :-1]
    if ascending.any():
        query, place = np.argwhere(ascending)[0]
        raise expected.error(
            f"query {query}: found score {scores[query, place]:.7g} before {scores[query, place + 1]:.7g}, "
            "expected the best label first"
        )
    indptr = np.concatenate([[0], np.cumsum(held.sum(axis=1))])
    return Entries(indptr, indices[held].astype(np.int64), scores[held])


def _outside(expected: Expected) -> str:
    return f"label {{label}}, expected 0 to {expected.num_labels - 1}"


def _refuse(expected: Expected, entries: Entries, broken: np.ndarray, problem: str) -> None:
    if broken.any():
        first = int(np.argmax(broken))
        query = int(np.searchsorted(entries.indptr, first, side="right")) - 1
        raise expected.error(f"query {query}: found {problem.format(label=int(entries.labels[first]))}")
