"""Uncertainty over queries and seeds: simulated comparisons have the coverage and power that are stated."""

from __future__ import annotations

import math

import numpy as np
import pytest

from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.power import Uncertainty, planned, rank_intervals, uncertainty

B = 400


def simulated(
    rng: np.random.Generator, *, true: float, seeds: int, queries: int, query_sd: float, seed_sd: float
) -> tuple[float, Uncertainty]:
    """The measured mean difference, and its uncertainty, of configurations whose true difference is known."""
    of_queries_N = rng.normal(0, query_sd, queries)
    differences_SN = true + rng.normal(0, seed_sd, (seeds, 1)) + of_queries_N
    counts_BN = rng.multinomial(queries, np.full(queries, 1 / queries), size=B)
    replicates_SB = differences_SN @ counts_BN.T / queries
    values_S = differences_SN.mean(axis=1)
    zeros = np.zeros(seeds)
    return float(values_S.mean()), uncertainty(list(replicates_SB), [np.zeros(B)] * seeds, (values_S, zeros))


@pytest.mark.parametrize(("seeds", "seed_sd"), [(1, 0.0), (3, 0.02), (8, 0.02), (5, 0.0)])
def test_intervals_cover_the_true_difference(seeds: int, seed_sd: float) -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(300):
        setting = {"true": 0.03, "seeds": seeds, "queries": 200, "query_sd": 0.3, "seed_sd": seed_sd}
        value, found = simulated(rng, **setting)
        low, high = found.difference(value).interval
        covered += low <= 0.03 <= high
    assert 0.91 < covered / 300 <= 1.0


@pytest.mark.parametrize(("seeds", "seed_sd"), [(1, 0.0), (6, 0.02)])
def test_the_detectable_difference_is_seen_with_the_stated_power(seeds: int, seed_sd: float) -> None:
    rng = np.random.default_rng(1)
    true = planned(200, seeds, 0.3, seed_sd).detectable()
    seen = 0
    for _ in range(300):
        setting = {"true": true, "seeds": seeds, "queries": 200, "query_sd": 0.3, "seed_sd": seed_sd}
        value, found = simulated(rng, **setting)
        seen += found.difference(value).interval[0] > 0
    assert 0.72 < seen / 300 < 0.9


def test_the_parts_are_the_textbooks() -> None:
    """20,000 queries bring the standard error of a paired difference from 2 points to 0.35."""
    assert planned(600, 1).error == pytest.approx(0.0204, abs=1e-4)
    assert planned(20_000, 1).error == pytest.approx(0.0035, abs=1e-4)
    assert planned(20_000, 1).detectable() == pytest.approx((1.95996 + 0.84162) * 0.5 / math.sqrt(20_000), rel=1e-4)
    only_seeds = Uncertainty(0.0, 0.01, 3)
    assert only_seeds.freedom == 2
    assert only_seeds.difference(0.0).interval == pytest.approx((-0.043027, 0.043027), rel=1e-4)  # t = 4.3027
    assert Uncertainty(0.01, 0.0, 3).freedom == math.inf
    assert Uncertainty(0.01, 0.01, 3).freedom == pytest.approx(8)


def test_more_seeds_see_smaller_differences() -> None:
    found = [planned(2_000, seeds, seed_deviation=0.02).detectable() for seeds in (2, 3, 5, 10)]
    assert found == sorted(found, reverse=True)


def test_equal_configurations_differ_by_nothing() -> None:
    same = [np.full(B, 0.5)] * 2
    found = uncertainty(same, same, ([0.5, 0.5], [0.5, 0.5])).difference(0.0)
    assert (found.interval, found.p, found.significant) == ((0.0, 0.0), 1.0, False)


def test_seeds_that_do_not_match_are_refused() -> None:
    with pytest.raises(XMCBenchError, match="found 2 and 1 seeds, expected as many of both"):
        uncertainty([np.zeros(B)] * 2, [np.zeros(B)], ([0.0, 0.0], [0.0]))


def test_ranks_have_intervals() -> None:
    rng = np.random.default_rng(2)
    rows = [mean + rng.normal(0, 0.01, (seeds, 1000)) for mean, seeds in ((0.5, 3), (0.502, 2), (0.3, 1))]
    assert rank_intervals(rows) == [(1, 2), (1, 2), (3, 3)]
    assert rank_intervals([np.full((1, 9), 0.4)] * 2) == [(1, 1), (1, 1)]
