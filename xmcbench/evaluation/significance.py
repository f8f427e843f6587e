"""The one rule for whether two configurations differ: tables, pages, `compare`, `analyse` and claims all use it.

A configuration has S trials that differ in their seed alone. Each keeps its metrics on B resamples of the test queries,
the same resamples for every trial, so that trials are paired by query and, with equal seeds, by seed. Two sources of
variance are estimated and added:

    queries   the variance over resamples of the difference, averaged over seeds
    seeds     the variance of the seeds' differences, over S; pooled from either side where the seeds are not the same

The interaction of both is in either term, so that the sum errs on the safe side. Intervals are Student's, with the
degrees of freedom of Welch and Satterthwaite (Satterthwaite, 1946). Below five seeds (`FEW` degrees of freedom) these
cover as little as 87 % in place of 95 %, since a spread between seeds that is small by chance also raises the degrees.
There each source has its own quantile, the normal one for queries and Student's with n - 1 degrees for seeds, and half
the interval is the root of the sum of their squares (MOVER: Zou and Donner, 2008), which covers at least 95 %. With one
seed on either side there is only the first source, and a statement about these two trials alone
(`Estimate.seed_freedom` is 0).

Where several differences are looked at together, p-values are corrected for their number (Holm, 1979).

Legend: S seeds, B resamples, R rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

import numpy as np
from scipy.special import ndtri, stdtr, stdtrit

from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.bootstrap import LEVEL
from xmcbench.trial.alike import code_name
from xmcbench.trial.record import Record

POWER = 0.8
FEW = 4.0  # degrees of freedom of the error from seeds, below which each source has its own quantile: five seeds
BISECTIONS = 40  # to find a p-value to 12 digits


@dataclass(frozen=True)
class Sample:
    """A metric of a configuration, or a difference of two: the value of each seed, and its values on resamples."""

    seeds: tuple[int, ...]
    values_S: np.ndarray
    replicates_SB: np.ndarray

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return float(self.values_S.mean())

    @property
    def negative(self) -> Sample:
        """The sample of the negative metric: of a metric whose lower values are better, more of it is better."""
        return Sample(self.seeds, -self.values_S, -self.replicates_SB)

    def minus(self, other: Sample) -> Sample:
        """The differences from `other`, seed by seed; both have the same seeds and the same test queries."""
        return Sample(self.seeds, self.values_S - other.values_S, self.replicates_SB - other.replicates_SB)


@dataclass(frozen=True)
class Estimate:
    """A value, as a fraction, with its standard errors from test queries and from seeds."""

    value: float
    query_error: float
    seed_error: float = 0.0
    seed_freedom: float = 0.0  # degrees of freedom of the error from seeds; 0: seeds were not varied

    @property
    def error(self) -> float:
        """The standard error from both sources."""
        return math.hypot(self.query_error, self.seed_error)

    @property
    def freedom(self) -> float:
        """Degrees of freedom; queries are taken as many."""
        return self.seed_freedom * (self.error / self.seed_error) ** 4 if self.seed_error else math.inf

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval."""
        return self._interval((1 + LEVEL) / 2)

    @property
    def p(self) -> float:
        """Two-sided, of the hypothesis that the true value is 0."""
        if not self.error:
            return float(self.value == 0)
        if not self._few:
            return 2 * float(stdtr(self.freedom, -abs(self.value) / self.error))
        least, most = 0.5, 1.0  # the quantile whose half width is the value, by bisection
        for _ in range(BISECTIONS):
            middle = (least + most) / 2
            least, most = (middle, most) if self._half(middle) < abs(self.value) else (least, middle)
        return 2 * (1 - most)

    @property
    def significant(self) -> bool:
        """Whether the interval excludes 0."""
        return not self.interval[0] <= 0.0 <= self.interval[1]

    @property
    def equivalence_margin(self) -> float:
        """The smallest margin around 0 that two one-sided tests at 5 % each find the true value within."""
        return max(map(abs, self._interval(LEVEL)))

    def detectable(self) -> float:
        """The smallest true value whose interval excludes 0 with probability `POWER`."""
        return self._half((1 + LEVEL) / 2) + self._half(POWER)

    @property
    def _few(self) -> bool:
        return bool(self.seed_error) and self.seed_freedom < FEW

    def _half(self, quantile: float) -> float:
        if not self._few:
            return float(stdtrit(self.freedom, quantile)) * self.error
        return math.hypot(ndtri(quantile) * self.query_error, stdtrit(self.seed_freedom, quantile) * self.seed_error)

    def _interval(self, quantile: float) -> tuple[float, float]:
        half = self._half(quantile)
        return self.value - half, self.value + half


def samples(records: Sequence[Record], replicates: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Sample]:
    """By metric: what trials of one configuration come to. Only metrics that every trial has as many replicates of.

    Args:
        records: one for each seed.
        replicates: of each record, its metrics on resamples of the test queries, [B] each.

    Raises XMCBenchError where the records differ in more than their seed, as in the code that trained them.
    """
    if len({record.but_seed for record in records}) > 1:
        listed = ", ".join(f"{record.key} ({code_name(record)})" for record in records)
        raise XMCBenchError(f"{records[0].trial.label}: these trials differ in more than their seed: {listed}")
    seeds = tuple(record.trial.seed for record in records)
    known = [*replicates, *(record.metrics for record in records)]
    names = [name for name in records[0].metrics if all(name in names_known for names_known in known)]
    names = [name for name in names if len({len(of_seed[name]) for of_seed in replicates}) == 1]
    return {
        name: Sample(
            seeds,
            np.array([record.metrics[name] for record in records]),
            np.stack([of_seed[name] for of_seed in replicates]).astype(np.float64),
        )
        for name in names
    }


def estimate(sample: Sample) -> Estimate:
    """The mean over seeds, or the mean difference of paired seeds."""
    num_seeds = len(sample.seeds)
    query_error = float(sample.replicates_SB.mean(axis=0).std(ddof=1))
    if num_seeds == 1:
        return Estimate(sample.mean, query_error)
    return Estimate(
        sample.mean, query_error, float(sample.values_S.std(ddof=1)) / math.sqrt(num_seeds), num_seeds - 1.0
    )


def difference(first: Sample, second: Sample) -> Estimate:
    """The first mean minus the second. Seeds are paired where both have the same."""
    if first.seeds == second.seeds:
        return estimate(first.minus(second))
    counts = len(first.seeds), len(second.seeds)
    spread_B = first.replicates_SB.mean(axis=0) - second.replicates_SB.mean(axis=0)
    value, query_error, freedom = first.mean - second.mean, float(spread_B.std(ddof=1)), sum(counts) - 2
    if not freedom:
        return Estimate(value, query_error)
    squares = sum(float(((side.values_S - side.mean) ** 2).sum()) for side in (first, second))
    error = math.sqrt(squares / freedom * sum(1 / count for count in counts))
    return Estimate(value, query_error, error, float(freedom))


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values corrected for their number by Holm's step-down method, in their order.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, largest = [0.0] * len(p_values), 0.0
    for smaller, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (len(p_values) - smaller) * p_values[index]))
        corrected[index] = largest
    return corrected


def significant_together(estimates: Sequence[Estimate]) -> list[bool]:
    """Of each estimate, whether its value is not 0 at 5 %, corrected for their number."""
    return [p < 1 - LEVEL for p in holm([estimate.p for estimate in estimates])]


class Relation(StrEnum):
    """What a difference says of two configurations."""

    ABOVE = "above"
    BELOW = "below"
    EQUAL = "equal"  # not significantly different, and shown to be within a margin
    UNDECIDED = "undecided"


def relation_shown(estimate: Estimate, significant: bool, margin: float = 0.0) -> Relation:
    """What a difference says: `significant` after the correction for all that it is looked at together with.

    Two configurations are equal where two one-sided tests at 5 % each find the difference within `margin`, a fraction.
    Without a margin no two are.
    """
    if significant:
        return Relation.ABOVE if estimate.value > 0 else Relation.BELOW
    return Relation.EQUAL if margin and estimate.equivalence_margin <= margin else Relation.UNDECIDED


def tied_with_best(rows: Sequence[Sample], *, lower_is_better: bool = False) -> list[bool]:
    """Of each row, whether it is not the one with the best mean, and not significantly different from it."""
    rows = [sample.negative for sample in rows] if lower_is_better else rows
    best = max(range(len(rows)), key=lambda row: rows[row].mean)
    others = [row for row in range(len(rows)) if row != best]
    decided = significant_together([difference(rows[best], rows[row]) for row in others])
    tied = {row for row, significant in zip(others, decided, strict=True) if not significant}
    return [row in tied for row in range(len(rows))]


def rank_intervals(rows: Sequence[Sample], *, lower_is_better: bool = False) -> list[tuple[int, int]]:
    """The lowest and highest rank of each row that no pair of rows, corrected for their number, speaks against.

    All intervals hold together with 95 % (Mohamad, Goeman and van Zwet, 2019). Rank 1 is that of the best mean.
    """
    rows = [sample.negative for sample in rows] if lower_is_better else rows
    pairs = list(combinations(range(len(rows)), 2))
    differences = [difference(rows[first], rows[second]) for first, second in pairs]
    above, below = [0] * len(rows), [0] * len(rows)  # significantly better rows than each, and worse ones
    for (first, second), apart, significant in zip(pairs, differences, significant_together(differences), strict=True):
        if significant:
            better, worse = (first, second) if apart.value > 0 else (second, first)
            above[worse] += 1
            below[better] += 1
    return [(1 + better, len(rows) - worse) for better, worse in zip(above, below, strict=True)]
