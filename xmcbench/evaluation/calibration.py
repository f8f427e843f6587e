"""Scores as probabilities: how far they are from the truth, and the map that corrects them, fitted on held-out queries.

The expected calibration error is that of Naeini et al. (AAAI 2015) and Guo et al. ("On Calibration of Modern Neural
Networks", ICML 2017, Section 2): pairs are put into bins of equal width by their confidence; the error is the mean over
pairs of the difference between their bin's mean confidence and its share of true pairs. The map is isotonic regression
(Zadrozny and Elkan, KDD 2002), which keeps the order of scores.

N queries, P predicted pairs, M points of the map.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import scipy

from xmcbench.data.pairs import binary, contains
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.metrics import Hits
from xmcbench.trial.predictions import Predictions

BINS = 15  # as Guo et al.
FOLDS = 5  # of the held-out queries: a fold's error is that of a map that was fitted on the others
TOP = 5  # predictions of a query that the stated error covers
SHOWN = 10  # of a query that the map is fitted on: equal scores are less often right further down
POINTS = 1_000  # of a map, at most
NO_LIMIT = 1_000_000  # labels of a query
FEWEST = 20  # held-out queries


@dataclass(frozen=True)
class Reliability:
    """Pairs by their confidence, in bins of equal width: [BINS] each; an empty bin has the means 0."""

    pairs: np.ndarray
    confidence: np.ndarray  # mean
    true: np.ndarray  # share

    @property
    def error(self) -> float:
        """The expected calibration error, 0..1; 0 without any pair."""
        return float(np.abs(self.confidence - self.true) @ self.pairs / max(1, self.pairs.sum()))


def reliability(confidence: np.ndarray, true: np.ndarray) -> Reliability:
    """The reliability of confidences [P] in 0..1 about pairs that are `true`, bool [P]."""
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    pairs = np.bincount(bins, minlength=BINS)
    sums = (np.bincount(bins, values, BINS) for values in (confidence, true.astype(np.float64)))
    return Reliability(pairs, *(total / np.maximum(pairs, 1) for total in sums))


@dataclass(frozen=True)
class CalibrationMetric:
    """An `Evaluator` of scores as probabilities: 1 minus their expected calibration error, so that more is better."""

    name: str = "calibration"
    summary: str = "1 minus the expected calibration error of the k predictions' scores"

    def compute(self, hits: Hits, k: int) -> float:
        """calibration@k: a score is read as a probability, one below 0 as 0, one above 1 as 1."""
        true = np.zeros(hits.predictions.indices.shape, bool)
        true[hits.queries, hits.ranks] = True
        stored = hits.predictions.indices[:, :k] >= 0
        scores = hits.predictions.scores[:, :k][stored].astype(np.float64)
        return 1.0 - reliability(np.clip(scores, 0.0, 1.0), true[:, :k][stored]).error


def logistic(scores: np.ndarray) -> np.ndarray:
    """The logistic function of raw scores: what a score says of itself where nothing was fitted."""
    values: np.ndarray = scipy.special.expit(np.asarray(scores, np.float64))
    return values


@dataclass(frozen=True)
class Cut:
    """Which labels of a query are shown: those of a probability of at least `least` among its best `most`."""

    least: float
    most: int = NO_LIMIT

    def shows(self, probability: np.ndarray, rank: np.ndarray) -> np.ndarray:
        """Whether labels of these probabilities and ranks, from 0, of shapes that broadcast, are shown."""
        shown: np.ndarray = (probability >= self.least) & (rank < self.most)
        return shown


@dataclass(frozen=True)
class Calibration:
    """The probabilities of a model's scores, the cut of the best micro-F1, and how well both do on other queries.

    Errors and F1 are those of held-out queries whose fold had no part in the map and the cut that it is judged by.
    """

    scores: tuple[float, ...]  # [M], ascending
    probabilities: tuple[float, ...]  # [M], of the scores; between two of them it is interpolated
    cut: Cut
    queries: int  # held-out ones
    error: float  # expected calibration error of the best `TOP` labels
    error_before: float  # of the logistic function of their scores
    micro_f1: float  # of the labels that the cut shows
    macro_f1: float  # likewise, mean over the labels that a held-out query has
    labels: float  # of a query that the cut shows, mean

    @cached_property
    def _points(self) -> tuple[np.ndarray, np.ndarray]:
        return np.asarray(self.scores), np.asarray(self.probabilities)

    def probability(self, scores: np.ndarray) -> np.ndarray:
        """The probabilities, of any shape, that labels with these scores are true."""
        values: np.ndarray = np.interp(scores, *self._points)
        return values

    def encode(self) -> bytes:
        return json.dumps(asdict(self), allow_nan=False).encode()

    @classmethod
    def decode(cls, content: bytes) -> Calibration:
        """What `encode` returned. Raises XMCBenchError for other content."""
        try:
            data: dict[str, Any] = json.loads(content)
            if data.keys() != {field.name for field in fields(cls)}:
                raise ValueError("other keys")
            lists = {name: tuple(map(float, data[name])) for name in ("scores", "probabilities")}
            made = cls(**(data | lists | {"cut": Cut(**data["cut"])}))
            if len(made.scores) != len(made.probabilities) or not np.all(np.diff(made.scores) > 0):
                raise ValueError("scores that do not ascend")
        except (ValueError, TypeError, AttributeError) as problem:
            raise XMCBenchError(f"found no calibration: {problem}") from None
        return made


def fit_calibration(predictions: Predictions, targets: scipy.sparse.csr_array) -> Calibration | None:
    """The calibration of `predictions` [N, K] for queries with the true labels `targets` [N, L].

    None for fewer than `FEWEST` queries, or where none of their first `SHOWN` labels is right.
    """
    truth = binary(targets)
    stored = (predictions.indices >= 0) & np.isfinite(predictions.scores)
    hits = contains(truth, predictions.indices) & stored
    if len(predictions) < FEWEST or not hits[:, :SHOWN].any():
        return None
    query, rank = np.nonzero(stored)
    label, score, true = predictions.indices[stored], predictions.scores[stored].astype(np.float64), hits[stored]
    probability, shown, first = np.zeros(len(score)), np.zeros(len(score), bool), rank < SHOWN
    for fold in range(FOLDS):
        in_fold = query % FOLDS == fold  # held-out queries are drawn at random, and so are folds by their number
        rest = np.arange(truth.shape[0]) % FOLDS != fold
        points = _isotonic(score[~in_fold & first], true[~in_fold & first])
        num_true = int(np.diff(truth.indptr)[rest].sum())
        cut = _best_cut(np.interp(score[~in_fold], *points), rank[~in_fold], true[~in_fold], num_true)
        probability[in_fold] = np.interp(score[in_fold], *points)
        shown[in_fold] = cut.shows(probability[in_fold], rank[in_fold])
    top = rank < TOP
    points = _isotonic(score[first], true[first])
    fitted = np.interp(score, *points)
    counts = [np.bincount(labels, minlength=truth.shape[1]) for labels in (label[shown & true], label[shown])]
    counts.append(np.bincount(truth.indices, minlength=truth.shape[1]))
    hit_L, shown_L, true_L = counts
    tested = true_L > 0
    cut = _best_cut(fitted, rank, true, truth.nnz)
    return Calibration(
        scores=tuple(points[0].tolist()),
        probabilities=tuple(points[1].tolist()),
        cut=cut,
        queries=len(predictions),
        error=reliability(probability[top], true[top]).error,
        error_before=reliability(logistic(score[top]), true[top]).error,
        micro_f1=float(2 * hit_L.sum() / max(1, shown_L.sum() + true_L.sum())),
        macro_f1=float(np.mean(2 * hit_L[tested] / (shown_L + true_L)[tested])),
        labels=float(np.count_nonzero(cut.shows(fitted, rank)) / len(predictions)),
    )


def _isotonic(scores: np.ndarray, true: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The points [M] of the ascending function of scores [P] that is nearest, in squares, to what is true [P]."""
    values, which, pairs = np.unique(scores, return_inverse=True, return_counts=True)
    shares = np.bincount(which, true, len(values)) / pairs
    fitted = scipy.optimize.isotonic_regression(shares, weights=pairs).x
    ends = np.flatnonzero(np.diff(fitted) > 0)
    kept = np.unique([0, *ends, *(ends + 1), len(values) - 1])  # both ends of each level
    if len(kept) > POINTS:
        kept = kept[np.linspace(0, len(kept) - 1, POINTS).astype(np.int64)]
    return values[kept], np.clip(fitted[kept], 0.0, 1.0)


def _best_cut(probability: np.ndarray, rank: np.ndarray, true: np.ndarray, num_true: int) -> Cut:
    """The cut of pairs [P] with the best micro-F1, of all probabilities and of up to `SHOWN` labels of a query or all.

    The scores of some methods tell the labels of a query apart, and not its best label from that of another query: then
    a number of labels cuts better than a probability. Of equally good cuts, the one of most labels and, among these, of
    the highest probability.
    """
    order = np.argsort(-probability, kind="stable")
    best, cut = -1.0, Cut(1.0)
    for most in (NO_LIMIT, *range(SHOWN, 0, -1)):
        kept = order[rank[order] < most]
        sorted_, found = probability[kept], np.cumsum(true[kept])
        last = np.flatnonzero(np.append(sorted_[1:] != sorted_[:-1], True))  # pairs of one probability: all or none
        f1 = 2 * found[last] / (last + 1 + num_true)
        if f1.max() > best:
            best, cut = float(f1.max()), Cut(float(sorted_[last[f1.argmax()]]), most)
    return cut
