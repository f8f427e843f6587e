"""The analysis of a trial: everything that its stored predictions show beyond the metrics, in one object.

Curves compare scores across queries: precision against recall, and the scores of true and false pairs. Only the stored
labels of each query (the best 100) are known. A pair that is not stored counts as not predicted: recall ends below 1,
and the false pairs are the hardest ones.

L labels, X bins of labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import scipy
from scipy.stats import rankdata

from xmcbench.data.dataset import Dataset, DatasetCard
from xmcbench.evaluation.calibration import Calibration, Reliability, reliability
from xmcbench.evaluation.evaluator import dataset_hits
from xmcbench.evaluation.label_metrics import coverage
from xmcbench.evaluation.metrics import Hits, label_counts, precision, propensity_scored_precision
from xmcbench.trial.predictions import Predictions

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
    separation = float("nan")
    if num_true and num_false:
        ranks = rankdata(scores)[true].sum()
        separation = float((ranks - num_true * (num_true + 1) / 2) / (num_true * num_false))
    return ScoreDistributions(edges, _density(scores[true], edges), _density(scores[~true], edges), separation)


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


REGIMES, DECILES = "head, torso, tail", "deciles"
SIMILARITY, SIMILARITY_OF_TAIL = "similarity", "similarity of tail labels"
TRADE_OFF_KS = (1, 3, 5)


@dataclass(frozen=True)
class Analysis:
    """The analysis of one trial's predictions. Metrics are fractions."""

    k: int
    breakdowns: dict[str, Breakdown]
    coverage: dict[int, float]  # by k: share of the labels true for some test query that are found at least once
    distinct: dict[int, float]  # by k: share of all labels that are predicted at least once, rightly or wrongly
    trade_off: dict[int, tuple[float, float]]  # by k: P and PSP
    precision_recall: PrecisionRecall
    scores: ScoreDistributions
    reliability: Reliability | None = None  # of the first k labels; None where scores are no probabilities


def partitions(dataset: Dataset, similarity: np.ndarray | None = None) -> dict[str, LabelBins]:
    """The partitions of the labels into bins, by name.

    `similarity` [L] adds the two partitions of DEXML's Figure 8: of all labels, and of the tail labels.
    """
    targets = dataset.train.targets
    regimes = label_bins(dataset.card, targets)
    bins = {REGIMES: regimes, DECILES: decile_bins(targets)}
    if similarity is not None:
        bins[SIMILARITY] = similarity_bins(similarity)
        bins[SIMILARITY_OF_TAIL] = similarity_bins(similarity, regimes.assignment == regimes.names.index("tail"))
    return bins


def analyse(
    predictions: Predictions,
    dataset: Dataset,
    bins: Mapping[str, LabelBins],
    k: int = 5,
    calibration: Calibration | None = None,
) -> Analysis:
    """Analyse checked `predictions` for the dataset's test split; `bins` are the dataset's `partitions`.

    `calibration` is that of the model; without one, scores that all lie in 0..1 are read as probabilities.
    """
    num_labels = dataset.test.targets.shape[1]
    hits = dataset_hits(predictions, dataset)
    ks = sorted({*TRADE_OFF_KS, k})
    return Analysis(
        k=k,
        breakdowns={name: part.breakdown(hits, k) for name, part in bins.items()},
        coverage={at: coverage.compute(hits, at) for at in ks},
        distinct={at: distinct(predictions.indices[:, :at]) / num_labels for at in ks},
        trade_off={at: (precision.compute(hits, at), propensity_scored_precision.compute(hits, at)) for at in ks},
        precision_recall=precision_recall(hits),
        scores=score_distributions(hits),
        reliability=_reliability(hits, k, calibration),
    )


def _reliability(hits: Hits, k: int, calibration: Calibration | None) -> Reliability | None:
    scores, stored = hits.predictions.scores[:, :k], hits.predictions.indices[:, :k] >= 0
    confidence = scores if calibration is None else calibration.probability(scores)
    if calibration is None and ((scores[stored] < 0) | (scores[stored] > 1)).any():
        return None
    true = np.zeros(hits.predictions.indices.shape, bool)
    true[hits.queries, hits.ranks] = True
    return reliability(confidence[stored].astype(np.float64), true[:, :k][stored])


def distinct(labels: np.ndarray) -> int:
    """The number of different labels; -1 is none."""
    return len(np.unique(labels[labels >= 0]))


@dataclass(frozen=True)
class Breakdown:
    """Metrics at k of each bin: [X] each, fractions; NaN where a bin has nothing to find."""

    bins: tuple[str, ...]
    num_labels: np.ndarray
    num_pairs: np.ndarray  # true pairs of the test split
    contribution: np.ndarray  # to P@k; the sum is P@k
    recall: np.ndarray  # the share of the bin's true pairs that are among the first k of their query
    coverage: np.ndarray  # the share of the bin's true labels that are found for at least one query


@dataclass(frozen=True)
class LabelBins:
    """A partition of the labels: `assignment` [L] holds the position in `names` of each label's bin."""

    names: tuple[str, ...]
    assignment: np.ndarray

    def breakdown(self, hits: Hits, k: int) -> Breakdown:
        """The metrics of each bin."""
        true, found = hits.truth.indices, hits.labels[hits.ranks < k]
        num_pairs, num_found = self._count(true), self._count(found)
        return Breakdown(
            self.names,
            np.bincount(self.assignment, minlength=len(self.names)),
            num_pairs,
            num_found / (hits.num_queries * k),
            _share(num_found, num_pairs),
            _share(self._count(np.unique(found)), self._count(np.unique(true))),
        )

    def _count(self, labels: np.ndarray) -> np.ndarray:
        """Number of `labels` in each bin; repeated labels count repeatedly."""
        return np.bincount(self.assignment[labels], minlength=len(self.names))


def label_bins(card: DatasetCard, targets: scipy.sparse.csr_array) -> LabelBins:
    """Head, torso and tail by the card's thresholds; a label without training queries is a tail label."""
    counts = label_counts(targets)
    bins = np.where(counts <= card.tail_at_most, 2, np.where(counts >= card.head_at_least, 0, 1))
    return LabelBins(("head", "torso", "tail"), bins)


def decile_bins(targets: scipy.sparse.csr_array) -> LabelBins:
    """Ten bins of (nearly) equally many labels: 1 has the most frequent, 10 the rarest. Ties are broken by id."""
    counts = label_counts(targets)
    bins = np.empty(len(counts), dtype=np.int64)
    bins[np.argsort(-counts, kind="stable")] = np.arange(len(counts)) * 10 // max(1, len(counts))
    return LabelBins(tuple(str(number) for number in range(1, 11)), bins)


def similarity_bins(similarity: np.ndarray, among: np.ndarray | None = None) -> LabelBins:
    """Three bins of (nearly) equally many labels by `similarity` [L] to other labels; ties are broken by label id.

    With `among` (bool [L]) only those labels are divided; a fourth bin holds the others (DEXML, Figure 8).
    """
    chosen = np.arange(len(similarity)) if among is None else np.flatnonzero(among)
    bins = np.full(len(similarity), 3)
    bins[chosen[np.argsort(similarity[chosen], kind="stable")]] = np.arange(len(chosen)) * 3 // max(1, len(chosen))
    return LabelBins(("dissimilar", "middle", "similar", *(() if among is None else ("others",))), bins)


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    shares: np.ndarray = np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)
    return shares
