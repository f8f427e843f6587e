"""What `xmcbench datasets show` tells of a dataset."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xmcbench.data.dataset import Dataset
from xmcbench.data.texts import PackedTexts


@dataclass(frozen=True)
class Spread:
    """Mean, median, least and most of a count."""

    mean: float
    median: float
    least: int
    most: int

    @classmethod
    def of(cls, counts: np.ndarray) -> Spread:
        return cls(float(counts.mean()), float(np.median(counts)), int(counts.min()), int(counts.max()))


@dataclass(frozen=True)
class Statistics:
    """Counts of a dataset; head, torso and tail are told apart by the card's edges on training queries."""

    labels_per_train_query: Spread
    labels_per_test_query: Spread
    train_queries_per_label: Spread
    query_words: Spread
    label_words: Spread
    head: int
    torso: int
    tail: int
    labels_without_training: int
    train_queries_without_labels: int
    test_queries_without_labels: int
    ignored_train: int
    ignored_test: int


def statistics(dataset: Dataset) -> Statistics:
    """Count everything once."""
    card = dataset.card
    per_train, per_test = np.diff(dataset.train.targets.indptr), np.diff(dataset.test.targets.indptr)
    per_label = np.bincount(dataset.train.targets.indices, minlength=card.num_labels)
    head, tail = per_label >= card.head_at_least, per_label <= card.tail_at_most
    return Statistics(
        labels_per_train_query=Spread.of(per_train),
        labels_per_test_query=Spread.of(per_test),
        train_queries_per_label=Spread.of(per_label),
        query_words=Spread.of(count_words(PackedTexts.of(dataset.train.texts))),
        label_words=Spread.of(count_words(PackedTexts.of(dataset.label_texts))),
        head=int(head.sum()),
        torso=int((~head & ~tail).sum()),
        tail=int(tail.sum()),
        labels_without_training=int((per_label == 0).sum()),
        train_queries_without_labels=int((per_train == 0).sum()),
        test_queries_without_labels=int((per_test == 0).sum()),
        ignored_train=int(dataset.ignore_train.nnz),
        ignored_test=int(dataset.ignore_test.nnz),
    )


def count_words(texts: PackedTexts) -> np.ndarray:
    """Words between blanks in each text, int64 [n].

    >>> count_words(PackedTexts.of(["two words", "", " one "])).tolist()
    [2, 0, 1]
    """
    data = np.asarray(texts.data[texts.offsets[0] : texts.offsets[-1]])
    offsets = texts.offsets - texts.offsets[0]
    blank = np.isin(data, np.frombuffer(b" \t\r\n", np.uint8))
    starts = ~blank
    starts[1:] &= blank[:-1]
    # A text's first byte begins a word whatever the text before it ends with.
    first = offsets[:-1][np.diff(offsets) > 0]
    starts[first] = ~blank[first]
    before = np.concatenate([[0], np.cumsum(starts)])
    return np.asarray(before[offsets[1:]] - before[offsets[:-1]])
