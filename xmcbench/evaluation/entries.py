"""Scored labels of queries in any order: what a dataset allows, and the ranking that they give.

T test queries, L labels, E entries, K ranked labels of a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xmcbench.errors import XMCBenchError
from xmcbench.trial.predictions import Predictions

MEAN_ENTRIES = 1000  # per query, at most: what is read is bounded by the dataset, whatever a file claims


@dataclass(frozen=True)
class Expected:
    """What a dataset lets predictions hold; `where` begins error messages: a file, or what was passed."""

    where: str
    num_queries: int
    num_labels: int

    @property
    def max_entries(self) -> int:
        """Entries that predictions may hold: `MEAN_ENTRIES` per query, or every pair where there are fewer."""
        return self.num_queries * min(self.num_labels, MEAN_ENTRIES)

    def check_entries(self, found: int) -> None:
        if found > self.max_entries:
            raise self.error(
                f"found {found:,} scores, expected at most {self.max_entries:,}: store the best labels of each query"
            )

    def check_shape(self, found: tuple[int, ...]) -> None:
        """Raise where a matrix `found` is not [T, L]."""
        expected = (self.num_queries, self.num_labels)
        if found != expected:
            hint = ": transposed" if found == expected[::-1] else ""
            raise self.error(f"found the shape {found}, expected {expected} (queries, labels){hint}")

    def check_rows(self, found: int) -> None:
        if found != self.num_queries:
            raise self.error(f"found {found:,} rows, expected one for each of {self.num_queries:,} test queries")

    def check_queries(self, queries: np.ndarray, name: str = "query") -> None:
        if len(wrong := np.flatnonzero((queries < 0) | (queries >= self.num_queries))):
            row = int(wrong[0])
            raise self.error(f"row {row}: found {name} {queries[row]}, expected 0 to {self.num_queries - 1}")

    def error(self, message: str) -> XMCBenchError:
        return XMCBenchError(f"{self.where}: {message}")


@dataclass(frozen=True)
class Entries:
    """Scored labels of T queries: query and label (int64) and score (float64) of each entry, [E], in any order.

    Labels rank by descending score, and equal scores by ascending label, unless `ranks` [E] says how they rank: the
    lowest is first.
    """

    num_queries: int
    queries: np.ndarray
    labels: np.ndarray
    scores: np.ndarray
    ranks: np.ndarray | None = None
    stored_as: str = ""  # the type that the scores had, as numpy names it

    @classmethod
    def of_rows(cls, counts_T: np.ndarray, labels: np.ndarray, scores: np.ndarray, ordered: bool = False) -> Entries:
        """Entries that lie query by query, so many of each; where they are `ordered`, the first one of each is best."""
        queries = np.repeat(np.arange(len(counts_T)), counts_T)
        ranks = np.arange(len(queries)) if ordered else None
        exact = scores.astype(np.float64)
        return cls(len(counts_T), queries, labels.astype(np.int64), exact, ranks, str(scores.dtype))

    def check(self, expected: Expected) -> None:
        """Raise XMCBenchError unless labels are in 0..L-1, once per query, with scores that are finite in float32."""
        pairs = self.queries * expected.num_labels + self.labels
        order = np.argsort(pairs, kind="stable")
        again = np.zeros(len(pairs), bool)
        again[order[1:]] = pairs[order[1:]] == pairs[order[:-1]]
        outside = (self.labels < 0) | (self.labels >= expected.num_labels)
        for broken, problem in (
            (outside, f", expected 0 to {expected.num_labels - 1}"),
            (~(np.abs(self.scores) <= np.finfo(np.float32).max), " with a score that is not a finite number"),
            (again, " twice"),
        ):
            if broken.any():
                first = int(np.argmax(broken))
                raise expected.error(f"query {self.queries[first]}: found label {self.labels[first]}{problem}")

    def ranked(self, k: int) -> Ranked:
        """The best `k` labels of each query; short rows are padded with -1 and -inf."""
        keys = (self.labels, -self.scores) if self.ranks is None else (self.ranks,)
        order = np.lexsort((*keys, self.queries))
        rows = self.queries[order]
        columns = np.arange(len(rows)) - np.searchsorted(rows, rows)
        best = columns < k
        rows, columns, order = rows[best], columns[best], order[best]
        labels = np.full((self.num_queries, k), -1, np.int32)
        scores = np.full((self.num_queries, k), -np.inf)
        labels[rows, columns] = self.labels[order]
        scores[rows, columns] = self.scores[order]
        return Ranked(labels, scores, self.ranks is not None, self.stored_as)


@dataclass(frozen=True)
class Ranked:
    """Labels [T, K], best first, with the exact scores that were given, float64 [T, K]; -1 and -inf are pads."""

    labels_TK: np.ndarray
    scores_TK: np.ndarray
    ordered: bool  # whether the order was given, and is not that of the scores
    stored_as: str = ""

    def predictions(self) -> Predictions:
        """The same order in float32.

        A score is lowered to the next float32 where it would be a tie that `Predictions` ranks otherwise (by ascending
        label), or where it is above the score before it.
        """
        labels_TK, scores_TK = self.labels_TK, self.scores_TK.astype(np.float32)
        scores_TK += np.float32(0.0)  # turns -0.0 into 0.0: they tie
        for column in range(1, labels_TK.shape[1]):
            before_T, score_T = scores_TK[:, column - 1], scores_TK[:, column]
            other_way_T = labels_TK[:, column] < labels_TK[:, column - 1]
            too_high_T = (score_T > before_T) | ((score_T == before_T) & other_way_T)
            too_high_T &= labels_TK[:, column] >= 0
            limit_T = np.nextafter(before_T, np.float32(-np.inf))
            score_T[too_high_T] = np.where(other_way_T, limit_T, before_T)[too_high_T]
        return Predictions(labels_TK, scores_TK)

    def ties(self, ranks: Sequence[int]) -> tuple[int, int]:
        """For how many queries the scores at one of `ranks` (from 1) and the next are equal, and in float32 alone."""
        equal_T, rounded_T = np.zeros((2, len(self.labels_TK)), bool)
        for rank in ranks:
            if rank < self.labels_TK.shape[1]:
                before_T, after_T = self.scores_TK[:, rank - 1], self.scores_TK[:, rank]
                there_T = self.labels_TK[:, rank] >= 0
                equal_T |= (before_T == after_T) & there_T
                rounded_T |= (before_T.astype(np.float32) == after_T.astype(np.float32)) & there_T
        return int(equal_T.sum()), int((rounded_T & ~equal_T).sum())
