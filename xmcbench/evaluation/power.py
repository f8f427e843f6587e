"""How uncertain a difference between two configurations is over test queries and seeds, and what it could have seen.

A configuration has S trials that differ in their seed. Each keeps its metrics on B resamples of the test queries, the
same resamples for every trial, so that trials are paired by query and, with equal seeds, by seed. Two sources of
variance are estimated and added:

    queries   the variance over resamples of the difference, averaged over seeds
    seeds     the variance of the seeds' differences, over S

The interaction of both is in either term, so that the sum errs on the safe side. Intervals are Student's, with the
degrees of freedom of Welch and Satterthwaite (Satterthwaite, 1946): few seeds widen them. With one seed there is only
the first source, and a statement about that seed's trials alone.

Legend: S seeds, B resamples, R rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata, t

from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.bootstrap import LEVEL, Difference

POWER = 0.8
# Of a paired difference in P@1 per query before anything is measured: 25 % of the queries change.
ASSUMED_QUERY_DEVIATION = 0.5


@dataclass(frozen=True)
class Uncertainty:
    """Standard errors of a difference, as fractions, from test queries and from seeds."""

    query_error: float
    seed_error: float  # 0 with one seed
    num_seeds: int

    @property
    def error(self) -> float:
        """The standard error from both sources."""
        return math.hypot(self.query_error, self.seed_error)

    @property
    def freedom(self) -> float:
        """Degrees of freedom; queries are taken as many."""
        if self.num_seeds < 2 or not self.seed_error:
            return math.inf
        return (self.num_seeds - 1) * (self.error / self.seed_error) ** 4

    def difference(self, value: float) -> Difference:
        """`value` with its 95 % interval and two-sided p-value."""
        if not self.error:
            return Difference(value, (value, value), float(value == 0))
        half = float(t.ppf((1 + LEVEL) / 2, self.freedom)) * self.error
        return Difference(value, (value - half, value + half), 2 * float(t.sf(abs(value) / self.error, self.freedom)))

    def detectable(self, power: float = POWER) -> float:
        """The smallest true difference whose interval excludes 0 with probability `power`."""
        return float(t.ppf((1 + LEVEL) / 2, self.freedom) + t.ppf(power, self.freedom)) * self.error


def uncertainty(
    first: Sequence[np.ndarray], second: Sequence[np.ndarray], values: tuple[Sequence[float], Sequence[float]]
) -> Uncertainty:
    """The uncertainty of the mean difference of two configurations over seeds.

    Args:
        first: replicates [B] of each seed's metric, of the first configuration.
        second: those of the second, with the same seeds in the same order.
        values: the metric of each seed, of either.
    """
    counts = {len(seeds) for seeds in (first, second, *values)}
    if len(counts) > 1 or counts == {0}:
        raise XMCBenchError(f"found {len(first)} and {len(second)} seeds, expected as many of both")
    differences_SB = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    differences_S = np.subtract(*values)
    num_seeds = len(differences_S)
    seed_error = float(differences_S.std(ddof=1)) / math.sqrt(num_seeds) if num_seeds > 1 else 0.0
    return Uncertainty(float(differences_SB.mean(axis=0).std(ddof=1)), seed_error, num_seeds)


def planned(
    num_queries: int, num_seeds: int, query_deviation: float = ASSUMED_QUERY_DEVIATION, seed_deviation: float = 0.0
) -> Uncertainty:
    """The uncertainty that a comparison will have, before it runs.

    Args:
        num_queries: test queries.
        num_seeds: seeds of either configuration.
        query_deviation: assumed standard deviation over queries of the paired difference of one query's metric.
        seed_deviation: assumed standard deviation over seeds of the paired difference.
    """
    return Uncertainty(query_deviation / math.sqrt(num_queries), seed_deviation / math.sqrt(num_seeds), num_seeds)


def rank_intervals(rows: Sequence[np.ndarray]) -> list[tuple[int, int]]:
    """The 95 % interval of each row's rank, 1 for the highest metric, over resamples of queries and of seeds.

    Args:
        rows: replicates [S, B] of each row's metric; rows may have different numbers of seeds.
    """
    resamples = rows[0].shape[1]
    rng = np.random.default_rng(resamples)
    drawn = [row_SB[rng.integers(len(row_SB), size=row_SB.shape), np.arange(resamples)].mean(0) for row_SB in rows]
    ranks_RB = rankdata(-np.stack(drawn), method="min", axis=0)
    ends = np.quantile(ranks_RB, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=1, method="nearest").astype(int)
    return [(int(low), int(high)) for low, high in ends.T]
