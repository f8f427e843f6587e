"""The analysis of a trial: everything that its stored predictions show beyond the metrics, in one object.

L labels, X bins of labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from xmcbench.data.dataset import Dataset
from xmcbench.evaluation.breakdown import LabelBins, decile_bins, label_bins, similarity_bins
from xmcbench.evaluation.curves import PrecisionRecall, ScoreDistributions, precision_recall, score_distributions
from xmcbench.evaluation.evaluator import dataset_hits
from xmcbench.evaluation.metrics import Hits, precision, propensity_scored_precision
from xmcbench.trial.predictions import Predictions

REGIMES, DECILES = "head, torso, tail", "deciles"
SIMILARITY, SIMILARITY_OF_TAIL = "similarity", "similarity of tail labels"
TRADE_OFF_KS = (1, 3, 5)


@dataclass(frozen=True)
class Breakdown:
    """Metrics at k of each bin: [X] each, fractions."""

    bins: tuple[str, ...]
    num_labels: np.ndarray
    num_pairs: np.ndarray  # true pairs of the test split
    contribution: np.ndarray  # to P@k; the sum is P@k
    recall: np.ndarray
    coverage: np.ndarray


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


def analyse(predictions: Predictions, dataset: Dataset, bins: Mapping[str, LabelBins], k: int = 5) -> Analysis:
    """Analyse checked `predictions` for the dataset's test split; `bins` are the dataset's `partitions`."""
    num_labels = dataset.test.targets.shape[1]
    hits = dataset_hits(predictions, dataset)
    ks = sorted({*TRADE_OFF_KS, k})
    return Analysis(
        k=k,
        breakdowns={name: breakdown(hits, partition, k) for name, partition in bins.items()},
        coverage={at: _coverage(hits, at) for at in ks},
        distinct={at: _distinct(predictions, at) / num_labels for at in ks},
        trade_off={at: (precision(hits, at).value, propensity_scored_precision(hits, at).value) for at in ks},
        precision_recall=precision_recall(hits),
        scores=score_distributions(hits),
    )


def breakdown(hits: Hits, bins: LabelBins, k: int) -> Breakdown:
    """The metrics at `k` of each bin."""
    return Breakdown(
        bins.names,
        bins.num_labels(),
        bins.num_pairs(hits.truth),
        bins.contribution(hits, k),
        bins.recall(hits, k),
        bins.coverage(hits, k),
    )


def _coverage(hits: Hits, k: int) -> float:
    true_labels = len(np.unique(hits.truth.indices))
    return len(np.unique(hits.labels[hits.ranks < k])) / max(1, true_labels)


def _distinct(predictions: Predictions, k: int) -> int:
    best = predictions.indices[:, :k]
    return len(np.unique(best[best >= 0]))
