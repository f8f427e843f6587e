"""Statistics of a dataset, computed once when it is prepared and shown by `xmcbench datasets show`."""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel, ConfigDict

from xmcbench.data.dataset import Dataset
from xmcbench.data.texts import PackedTexts


class Spread(BaseModel):
    """Mean, median, least and most of a count."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    mean: float
    median: float
    least: int
    most: int

    @classmethod
    def of(cls, counts: np.ndarray) -> Spread:
        return cls(
            mean=float(counts.mean()),
            median=float(np.median(counts)),
            least=int(counts.min()),
            most=int(counts.max()),
        )


class Statistics(BaseModel):
    """Counts of a dataset; the card's thresholds separate head, torso and tail labels."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    labels_per_train_query: Spread
    labels_per_test_query: Spread
    train_queries_per_label: Spread
    query_words: Spread
    label_words: Spread
    query_percentiles: tuple[int, ...]  # words of training queries at 0 to 100 per cent
    label_percentiles: tuple[int, ...]
    head: int
    torso: int
    tail: int
    labels_without_training: int
    test_labels_without_training: int  # labels of some test query that no training query has
    train_queries_without_labels: int
    test_queries_without_labels: int
    repeated_train_texts: int  # training queries whose text an earlier training query has
    test_texts_in_train: int  # test queries whose text a training query has
    ignored_train: int
    ignored_test: int


def statistics(dataset: Dataset) -> Statistics:
    """Count everything; empty texts do not count as repeated."""
    card = dataset.card
    per_train, per_test = np.diff(dataset.train.targets.indptr), np.diff(dataset.test.targets.indptr)
    per_label = np.bincount(dataset.train.targets.indices, minlength=card.num_labels)
    head, tail = per_label >= card.head_at_least, per_label <= card.tail_at_most
    in_test = np.bincount(dataset.test.targets.indices, minlength=card.num_labels) > 0
    train, test = PackedTexts.of(dataset.train.texts), PackedTexts.of(dataset.test.texts)
    train_hashes, test_hashes = (texts.hashes()[texts.lengths > 0] for texts in (train, test))
    different = np.unique(train_hashes)
    query_words, label_words = count_words(train), count_words(PackedTexts.of(dataset.label_texts))
    return Statistics(
        labels_per_train_query=Spread.of(per_train),
        labels_per_test_query=Spread.of(per_test),
        train_queries_per_label=Spread.of(per_label),
        query_words=Spread.of(query_words),
        label_words=Spread.of(label_words),
        query_percentiles=percentiles(query_words),
        label_percentiles=percentiles(label_words),
        head=int(head.sum()),
        torso=int((~head & ~tail).sum()),
        tail=int(tail.sum()),
        labels_without_training=int((per_label == 0).sum()),
        test_labels_without_training=int((in_test & (per_label == 0)).sum()),
        train_queries_without_labels=int((per_train == 0).sum()),
        test_queries_without_labels=int((per_test == 0).sum()),
        repeated_train_texts=len(train_hashes) - len(different),
        test_texts_in_train=int(np.isin(test_hashes, different).sum()),
        ignored_train=int(dataset.ignore_train.nnz),
        ignored_test=int(dataset.ignore_test.nnz),
    )


def percentiles(counts: np.ndarray) -> tuple[int, ...]:
    """The counts that 0 to 100 per cent of `counts` do not exceed.

    >>> percentiles(np.arange(201))[:3]
    (0, 2, 4)
    """
    return tuple(np.percentile(counts, range(101), method="higher").astype(int).tolist())


def count_words(texts: PackedTexts) -> np.ndarray:
    """Words between blanks in each text, int64 [n].

    >>> count_words(PackedTexts.of(["two words", "", " one "])).tolist()
    [2, 0, 1]
    """
    data = np.asarray(texts.data[texts.offsets[0] : texts.offsets[-1]])
    offsets = texts.offsets - texts.offsets[0]
    blank = _BLANK[data]
    starts = ~blank
    starts[1:] &= blank[:-1]
    # The first byte of a text can start a word, regardless of the last byte of the text before it.
    first = offsets[:-1][np.diff(offsets) > 0]
    starts[first] = ~blank[first]
    ends = np.flatnonzero(starts)
    return np.diff(np.searchsorted(ends, offsets))


_BLANK = np.zeros(256, bool)
_BLANK[np.frombuffer(b" \t\r\n", np.uint8)] = True
