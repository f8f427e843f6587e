"""Metrics broken down by bins of labels, such as head, torso and tail."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from xmcbench.data.dataset import DatasetCard
from xmcbench.evaluation.metrics import Hits
from xmcbench.evaluation.propensity import label_counts


@dataclass(frozen=True)
class LabelBins:
    """A partition of the labels: `assignment` [L] holds the position in `names` of each label's bin."""

    names: tuple[str, ...]
    assignment: np.ndarray

    def num_labels(self) -> np.ndarray:
        """Number of labels in each bin."""
        return np.bincount(self.assignment, minlength=len(self.names))

    def num_pairs(self, targets: scipy.sparse.csr_array) -> np.ndarray:
        """Number of true pairs of the targets [N, L] in each bin."""
        return self._count(targets.indices)

    def contribution(self, hits: Hits, k: int) -> np.ndarray:
        """What the labels of each bin contribute to P@k; the sum over the bins is P@k."""
        labels = hits.labels[hits.ranks < k]
        return self._count(labels) / (hits.num_queries * k)

    def recall(self, hits: Hits, k: int) -> np.ndarray:
        """The share of each bin's true pairs that are among the first k of their query; NaN for a bin without pairs."""
        return _share(self._count(hits.labels[hits.ranks < k]), self.num_pairs(hits.truth))

    def coverage(self, hits: Hits, k: int) -> np.ndarray:
        """The share of each bin's true labels that are found for at least one query; NaN for a bin without labels."""
        predicted, true_labels = np.unique(hits.labels[hits.ranks < k]), np.unique(hits.truth.indices)
        return _share(self._count(predicted), self._count(true_labels))

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
