"""How far figures can be trusted: the bootstrap over test queries, paired between trials.

N test queries, B resamples. Resample b draws N queries with replacement, and every figure is computed anew from what
the queries drawn add to it. Which queries are drawn depends on N alone: the replicates of two trials on one test split
belong together pair by pair, and the spread of their differences is that of the paired bootstrap, whenever and wherever
the trials were scored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

RESAMPLES = 1000
LEVEL = 0.95
_ENTRIES = 1 << 22  # counts held at a time


class Ratio(Protocol):
    """A figure as what each query adds to either side: `gained` and `possible`, float64 [N] each."""

    @property
    def gained(self) -> np.ndarray: ...
    @property
    def possible(self) -> np.ndarray: ...


@dataclass(frozen=True)
class Difference:
    """A figure of one trial less that of another, and what the bootstrap says of it."""

    value: float
    interval: tuple[float, float]  # 95 %
    p: float  # two-sided: how often a difference of the other sign, or none, is drawn

    @property
    def significant(self) -> bool:
        """Whether the interval leaves 0 out."""
        return not self.interval[0] <= 0.0 <= self.interval[1]


def resample(terms: Mapping[str, Ratio]) -> dict[str, np.ndarray]:
    """The figures of every resample, float32 [B] each. All `terms` are over the same N queries."""
    if not terms:
        return {}
    sides = np.stack([side for each in terms.values() for side in (each.gained, each.possible)], axis=1)
    num_queries = len(sides)
    rng = np.random.default_rng([RESAMPLES, num_queries])
    at_once = max(1, _ENTRIES // num_queries)
    sums = np.concatenate(
        [_counts(rng, min(at_once, RESAMPLES - start), num_queries) @ sides for start in range(0, RESAMPLES, at_once)]
    )
    gained, possible = sums[:, 0::2], sums[:, 1::2]
    figures = np.divide(gained, possible, out=np.zeros_like(gained), where=possible > 0)
    return {name: figures[:, i].astype(np.float32) for i, name in enumerate(terms)}


def interval(replicates: np.ndarray) -> tuple[float, float]:
    """The middle 95 % of replicates [B]."""
    low, high = np.quantile(replicates, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def intervals(resampled: Mapping[str, np.ndarray]) -> dict[str, tuple[float, float]]:
    """The interval of each figure."""
    return {name: interval(replicates) for name, replicates in resampled.items()}


def difference(value: float, first: np.ndarray, second: np.ndarray) -> Difference:
    """What the replicates [B] of two trials say of `value`, the first's figure less the second's."""
    drawn = first.astype(np.float64) - second.astype(np.float64)
    tail = min(np.count_nonzero(drawn <= 0), np.count_nonzero(drawn >= 0))
    return Difference(value, interval(drawn), min(1.0, 2 * (int(tail) + 1) / (len(drawn) + 1)))


def indistinguishable(best: np.ndarray, others: Sequence[np.ndarray]) -> list[bool]:
    """Which of the replicates `others`, [B] each, `best` [B] does not beat: the interval of the difference holds 0."""
    not_above = np.mean([best <= other for other in others], axis=1)
    return [bool(share >= (1 - LEVEL) / 2) for share in not_above]


def _counts(rng: np.random.Generator, resamples: int, num_queries: int) -> np.ndarray:
    """How often each query is drawn in each resample: float64 [resamples, N]."""
    drawn = rng.integers(num_queries, size=(resamples, num_queries))
    drawn += np.arange(resamples)[:, None] * num_queries
    counts = np.bincount(drawn.ravel(), minlength=resamples * num_queries)
    return counts.reshape(resamples, num_queries).astype(np.float64)
