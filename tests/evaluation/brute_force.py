"""The definitions of `docs/metrics.md`, one query and one label at a time, in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log2

Rows = Sequence[Sequence[int]]


def precision(ranked: Rows, true: Sequence[set[int]], _weights: Sequence[float], k: int) -> float:
    return sum(sum(label in yes for label in row[:k]) / k for row, yes in zip(ranked, true, strict=True)) / len(ranked)


def recall(ranked: Rows, true: Sequence[set[int]], _weights: Sequence[float], k: int) -> float:
    rows = zip(ranked, true, strict=True)
    return sum(sum(label in yes for label in row[:k]) / len(yes) for row, yes in rows if yes) / len(ranked)


def ndcg(ranked: Rows, true: Sequence[set[int]], _weights: Sequence[float], k: int) -> float:
    rows = [_gain(row, yes, None, k) / _ideal(yes, k) for row, yes in zip(ranked, true, strict=True) if yes]
    return sum(rows) / len(ranked)


def psp(ranked: Rows, true: Sequence[set[int]], weights: Sequence[float], k: int) -> float:
    gained = sum(weights[label] for row, yes in zip(ranked, true, strict=True) for label in row[:k] if label in yes)
    best = sum(sum(sorted((weights[label] for label in yes), reverse=True)[:k]) for yes in true)
    return gained / best if best else 0.0


def psndcg(ranked: Rows, true: Sequence[set[int]], weights: Sequence[float], k: int) -> float:
    rows = [(row, yes) for row, yes in zip(ranked, true, strict=True) if yes]
    gained = sum(_gain(row, yes, weights, k) / _ideal(yes, k) for row, yes in rows)
    best = sum(
        _gain(sorted(yes, key=lambda label: -weights[label]), yes, weights, k) / _ideal(yes, k) for _, yes in rows
    )
    return gained / best if best else 0.0


def f1(ranked: Rows, true: Sequence[set[int]], _weights: Sequence[float], k: int) -> float:
    """The mean of each row's F1 from its own precision and recall, as scikit-learn averages over samples."""
    total = 0.0
    for row, yes in zip(ranked, true, strict=True):
        found = len(set(row[:k]) & yes)
        if found:
            own_precision, own_recall = found / len(row[:k]), found / len(yes)
            total += 2 * own_precision * own_recall / (own_precision + own_recall)
    return total / len(ranked)


def micro_f1(ranked: Rows, true: Sequence[set[int]], _weights: Sequence[float], k: int) -> float:
    told = {(i, label) for i, row in enumerate(ranked) for label in row[:k]}
    have = {(i, label) for i, yes in enumerate(true) for label in yes}
    return 2 * len(told & have) / (len(told) + len(have)) if have else 0.0


def lrap(ranked: Rows, true: Sequence[set[int]], _weights: Sequence[float], k: int) -> float:
    total = 0.0
    for row, yes in zip(ranked, true, strict=True):
        for label in yes & set(row[:k]):
            before = row[: row.index(label) + 1]
            total += len(yes & set(before)) / len(before) / len(yes)
    return total / len(ranked)


def _per_label(ranked: Rows, true: Sequence[set[int]], k: int, value: Callable[[set[int], set[int]], float]) -> float:
    """The mean over the labels that some row truly has of `value(rows that predict it, rows that have it)`."""
    values = []
    for label in set().union(*true):
        having = {i for i, yes in enumerate(true) if label in yes}
        predicting = {i for i, row in enumerate(ranked) if label in row[:k]}
        values.append(value(predicting, having))
    return sum(values) / len(values) if values else 0.0


def macro_precision(ranked: Rows, true: Sequence[set[int]], _weights: Sequence[float], k: int) -> float:
    return _per_label(ranked, true, k, lambda told, have: len(told & have) / len(told) if told else 0.0)


def macro_f1(ranked: Rows, true: Sequence[set[int]], _weights: Sequence[float], k: int) -> float:
    def value(told: set[int], have: set[int]) -> float:
        if not told & have:
            return 0.0
        own_precision, own_recall = len(told & have) / len(told), len(told & have) / len(have)
        return 2 * own_precision * own_recall / (own_precision + own_recall)

    return _per_label(ranked, true, k, value)


def coverage(ranked: Rows, true: Sequence[set[int]], _weights: Sequence[float], k: int) -> float:
    return _per_label(ranked, true, k, lambda told, have: float(bool(told & have)))


def _gain(row: Sequence[int], yes: set[int], weights: Sequence[float] | None, k: int) -> float:
    return sum(
        (weights[label] if weights else 1.0) / log2(place + 1)
        for place, label in enumerate(row[:k], start=1)
        if label in yes
    )


def _ideal(yes: set[int], k: int) -> float:
    return sum(1.0 / log2(place + 1) for place in range(1, min(len(yes), k) + 1))


METRICS = {"P": precision, "nDCG": ndcg, "PSP": psp, "PSnDCG": psndcg, "R": recall, "F1": f1}
METRICS |= {"micro-F1": micro_f1, "LRAP": lrap}
LABEL_METRICS = {"macro-P": macro_precision, "macro-F1": macro_f1, "coverage": coverage}
