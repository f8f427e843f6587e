"""Curves over the scores of stored predictions: precision against recall, and the scores of true and false pairs.

Only the stored labels of each query (the best 100) are known. A pair that is not stored counts as not predicted, so
recall ends below 1, and the false pairs are the hardest ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from xmcbench.evaluation.metrics import Hits

CURVE_POINTS = 500
HISTOGRAM_BINS = 60


@dataclass(frozen=True)
class PrecisionRecall:
    """Precision and recall of all pairs that score at least a threshold, over all queries together: [M] each.

    `exact_from` is the threshold down to which the curve is exact: below it a query may have further labels that are
    not stored. It is -inf where every label of every query is stored.
    """

    thresholds: np.ndarray  # descending
    precision: np.ndarray
    recall: np.ndarray
    area: float  # under the whole curve, before it is thinned: average precision
    exact_from: float


@dataclass(frozen=True)
class ScoreDistributions:
    """How scores of true and false pairs are distributed: densities [M] over the bins between `edges` [M + 1]."""

    edges: np.ndarray
    true: np.ndarray
    false: np.ndarray
    num_true: int
    num_false: int
    separation: float  # how often a true pair scores above a false pair, ties counting half; else NaN


def precision_recall(hits: Hits) -> PrecisionRecall:
    """The curve of DEXML's Figure 5, reduced to about `CURVE_POINTS` points evenly spaced in recall."""
    scores, true = _pairs(hits)
    order = np.argsort(-scores, kind="stable")
    scores, true_positives = scores[order], np.cumsum(true[order])
    ends = np.flatnonzero(np.append(scores[1:] != scores[:-1], True)) if len(scores) else np.empty(0, np.int64)
    precision = true_positives[ends] / (ends + 1)
    recall = true_positives[ends] / max(1, hits.truth.nnz)
    area = float(np.sum(np.diff(recall, prepend=0.0) * precision))
    points = _thinned(recall)
    return PrecisionRecall(scores[ends][points], precision[points], recall[points], area, _exact_from(hits))


def score_distributions(hits: Hits) -> ScoreDistributions:
    """The histograms of DEXML's Figure 6, over the whole range of the scores."""
    scores, true = _pairs(hits)
    span = (float(scores.min()), float(scores.max())) if len(scores) else (0.0, 1.0)
    edges = np.histogram_bin_edges(scores, HISTOGRAM_BINS, span)
    num_true, num_false = int(true.sum()), int((~true).sum())
    return ScoreDistributions(
        edges, _density(scores[true], edges), _density(scores[~true], edges), num_true, num_false, _above(scores, true)
    )


def _pairs(hits: Hits) -> tuple[np.ndarray, np.ndarray]:
    """The score of each stored pair [P], and whether the pair is true [P]."""
    true = np.zeros(hits.predictions.indices.shape, dtype=bool)
    true[hits.queries, hits.ranks] = True
    stored = (hits.predictions.indices >= 0) & np.isfinite(hits.predictions.scores)
    return hits.predictions.scores[stored].astype(np.float64), true[stored]


def _thinned(recall: np.ndarray) -> np.ndarray:
    """Positions of points evenly spaced in the ascending `recall`, the first and the last included."""
    if len(recall) <= CURVE_POINTS:
        return np.arange(len(recall))
    near = np.searchsorted(recall, np.linspace(recall[0], recall[-1], CURVE_POINTS))
    return np.unique(np.concatenate([[0], near, [len(recall) - 1]]))


def _exact_from(hits: Hits) -> float:
    indices, scores = hits.predictions.indices, hits.predictions.scores
    if indices.shape[1] >= hits.truth.shape[1]:
        return -np.inf
    full = indices[:, -1] >= 0
    return float(scores[full, -1].max()) if full.any() else -np.inf


def _density(scores: np.ndarray, edges: np.ndarray) -> np.ndarray:
    counts, _ = np.histogram(scores, edges)
    densities: np.ndarray = counts / (max(1, len(scores)) * np.diff(edges))
    return densities


def _above(scores: np.ndarray, true: np.ndarray) -> float:
    num_true, num_false = int(true.sum()), int((~true).sum())
    if not num_true or not num_false:
        return float("nan")
    ranks = rankdata(scores)[true].sum()
    return float((ranks - num_true * (num_true + 1) / 2) / (num_true * num_false))
