"""The rule for differences: simulated comparisons have the coverage, the power and the error rates that are stated."""

from __future__ import annotations

import math

import numpy as np
import pytest

from xmcbench.evaluation.significance import (
    Estimate,
    Sample,
    difference,
    estimate,
    holm,
    rank_intervals,
    significant_together,
    tied_with_best,
)

B = 400


def drawn(
    rng: np.random.Generator, *, true: float, seeds: int, queries: int, query_sd: float, seed_sd: float
) -> Sample:
    """A difference of two configurations whose true value is known, or a metric."""
    of_queries_N = rng.normal(0, query_sd, queries)
    differences_SN = true + rng.normal(0, seed_sd, (seeds, 1)) + of_queries_N
    counts_BN = rng.multinomial(queries, np.full(queries, 1 / queries), size=B)
    return Sample(tuple(range(seeds)), differences_SN.mean(axis=1), differences_SN @ counts_BN.T / queries)


def certain(values: list[float], seeds: tuple[int, ...] | None = None, spread: float = 0.0) -> Sample:
    """A metric of which every resample is the same, but for `spread`."""
    noise_B = spread * np.random.default_rng(len(values)).standard_normal(B)
    return Sample(seeds or tuple(range(len(values))), np.array(values), np.array(values)[:, None] + noise_B)


@pytest.mark.parametrize(("seeds", "seed_sd"), [(1, 0.0), (3, 0.02), (8, 0.02), (5, 0.0)])
def test_intervals_cover_the_true_difference(seeds: int, seed_sd: float) -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(300):
        found = estimate(drawn(rng, true=0.03, seeds=seeds, queries=200, query_sd=0.3, seed_sd=seed_sd))
        low, high = found.interval
        covered += low <= 0.03 <= high
    assert 0.91 < covered / 300 <= 1.0


@pytest.mark.parametrize("seeds", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("spread", [0.25, 1.0, 4.0, 16.0])
def test_few_seeds_cover_the_true_value_whatever_the_spread_between_them(seeds: int, spread: float) -> None:
    """`spread` is the true error from seeds, in errors from queries: Satterthwaite's rule covers 87 % of (2, 4)."""
    rng, n = np.random.default_rng(seeds), 1500
    values_N = rng.normal(0, math.hypot(1, spread), n)
    errors_N = spread * np.sqrt(rng.chisquare(seeds - 1, n) / (seeds - 1))
    found = [Estimate(value, 1.0, error, seeds - 1.0) for value, error in zip(values_N, errors_N, strict=True)]
    covered = np.mean([own.interval[0] <= 0 <= own.interval[1] for own in found])
    assert covered > (0.935 if seeds < 5 else 0.92)
    for own in found[:50]:
        assert own.significant == (own.p < 0.05)
        edge = Estimate(own.interval[1] - own.value, 1.0, own.seed_error, own.seed_freedom)
        assert edge.p == pytest.approx(0.05, abs=1e-6)


@pytest.mark.parametrize(("first", "second"), [(3, 5), (5, 1), (4, 4)])
def test_seeds_that_are_not_the_same_are_not_paired(first: int, second: int) -> None:
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(400):
        of_first = certain(list(0.5 + rng.normal(0, 0.02, first)))
        of_second = certain(list(0.47 + rng.normal(0, 0.02, second)), tuple(range(10, 10 + second)))
        found = difference(of_first, of_second)
        covered += found.interval[0] <= 0.03 <= found.interval[1]
        assert found.seed_freedom == first + second - 2
    assert 0.92 < covered / 400 < 0.98
    assert not difference(certain([0.5]), certain([0.4], (3,))).seed_freedom


@pytest.mark.parametrize(("seeds", "seed_sd"), [(1, 0.0), (6, 0.02)])
def test_the_detectable_difference_is_seen_with_the_stated_power(seeds: int, seed_sd: float) -> None:
    rng = np.random.default_rng(1)
    true = Estimate(0.0, 0.3 / math.sqrt(200), seed_sd / math.sqrt(seeds), seeds - 1.0).detectable()
    seen = 0
    for _ in range(300):
        found = estimate(drawn(rng, true=true, seeds=seeds, queries=200, query_sd=0.3, seed_sd=seed_sd))
        seen += found.interval[0] > 0
    assert 0.72 < seen / 300 < 0.9


def test_the_parts_are_the_textbooks() -> None:
    assert Estimate(0.0, 0.01).detectable() == pytest.approx((1.95996 + 0.84162) * 0.01, rel=1e-4)
    only_seeds = estimate(certain([0.49, 0.5, 0.51]))
    assert (only_seeds.freedom, only_seeds.seed_error) == (2, pytest.approx(0.01 / math.sqrt(3)))
    assert only_seeds.interval == pytest.approx((0.5 - 4.3027 * only_seeds.error, 0.5 + 4.3027 * only_seeds.error))
    assert Estimate(0.0, 0.01, 0.0, 2.0).freedom == math.inf
    assert Estimate(0.0, 0.01, 0.01, 2.0).freedom == pytest.approx(8)
    assert Estimate(0.01, 0.01).p == pytest.approx(0.3173, abs=1e-4)


def test_two_one_sided_tests_show_equivalence_no_more_often_than_they_may() -> None:
    """Where the true difference is the margin itself, it is exceeded in one trial of twenty."""
    rng = np.random.default_rng(4)
    margins = [
        estimate(drawn(rng, true=0.01, seeds=5, queries=200, query_sd=0.02, seed_sd=0.003)).equivalence_margin
        for _ in range(300)
    ]
    assert 0.01 < np.mean(np.array(margins) < 0.01) < 0.08
    assert Estimate(0.002, 0.001).equivalence_margin == pytest.approx(0.002 + 1.64485 * 0.001, rel=1e-4)


def test_equal_configurations_differ_by_nothing() -> None:
    same = certain([0.5, 0.5])
    found = difference(same, same)
    assert (found.interval, found.p, found.significant) == ((0.0, 0.0), 1.0, False)


def test_holm_is_the_closed_test_of_bonferroni() -> None:
    """A hypothesis is rejected where every set of hypotheses that contains it is, by its smallest p-value."""
    from itertools import chain, combinations

    rng = np.random.default_rng(5)
    for _ in range(50):
        p_values = (rng.random(5) ** 3).tolist()
        sets = list(chain.from_iterable(combinations(range(5), size) for size in range(1, 6)))
        closed = [max(min(1.0, len(s) * min(p_values[i] for i in s)) for s in sets if one in s) for one in range(5)]
        assert holm(p_values) == pytest.approx(closed)
    assert holm([]) == []


def test_the_best_is_compared_with_every_row_at_once() -> None:
    """Among 21 rows a p-value of 0.01 is chance."""
    near = [certain([0.5 - 0.0258], spread=0.01) for _ in range(20)]  # one pair: p = 0.01
    best = Sample((0,), np.array([0.5]), np.full((1, B), 0.5))
    assert difference(best, near[0]).significant
    assert tied_with_best([best, *near]) == [False] + [True] * 20
    assert tied_with_best([best, near[0]]) == [False, False]
    assert significant_together([Estimate(1.0, 0.1), Estimate(0.0, 0.1)]) == [True, False]


def test_a_difference_of_paired_differences_is_that_of_the_means() -> None:
    rng = np.random.default_rng(6)
    rows = [drawn(rng, true=0.0, seeds=5, queries=200, query_sd=0.3, seed_sd=0.02) for _ in range(4)]
    of_pairs = difference(rows[0].minus(rows[1]), rows[2].minus(rows[3]))
    assert of_pairs.value == pytest.approx(rows[0].mean - rows[1].mean - rows[2].mean + rows[3].mean)


def test_ranks_have_intervals() -> None:
    rng = np.random.default_rng(8)
    rows = [
        drawn(rng, true=mean, seeds=seeds, queries=500, query_sd=0.1, seed_sd=0.005)
        for mean, seeds in ((0.5, 3), (0.502, 2), (0.3, 1))
    ]
    assert rank_intervals(rows) == [(1, 2), (1, 2), (3, 3)]
    assert rank_intervals([certain([0.4])] * 2) == [(1, 2), (1, 2)]
