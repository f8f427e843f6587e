from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xmcbench.evaluation import (
    MetricTerms,
    dataset_hits,
    find_hits,
    resampled_metrics,
    score,
)
from xmcbench.evaluation.bootstrap import RESAMPLES, intervals, resample, resampled_sums
from xmcbench.evaluation.evaluator import EVALUATORS
from xmcbench.evaluation.significance import Sample, difference, tied_with_best

from .cases import Case, cases
from .drawn import made, predicted

BUILT_IN = {evaluator.name: evaluator for evaluator in EVALUATORS}


def mean(values: np.ndarray) -> MetricTerms:
    """The mean of values of queries [N]."""
    return MetricTerms(values, np.ones(len(values)))


def one_seed(terms: MetricTerms) -> Sample:
    """A trial's metric and its values on resamples."""
    return Sample((0,), np.array([terms.value]), resample({"a": terms})["a"][None].astype(np.float64))


def draws(num_queries: int) -> np.ndarray:
    """How often each query is drawn in each resample, int64 [B, N]."""
    sums = resampled_sums(np.column_stack([np.ones(num_queries), np.eye(num_queries)]))
    return sums[:, 1:].astype(np.int64)


@pytest.mark.parametrize("num_queries", [1, 2, 30, 400, 2500])
def test_every_resample_draws_as_many_queries_as_there_are(num_queries: int) -> None:
    assert (draws(num_queries).sum(axis=1) == num_queries).all()


@pytest.mark.parametrize("num_queries", [20, 400, 1500])
def test_draws_are_uniform_and_independent(num_queries: int) -> None:
    """Counts have the mean, the variance and the covariance of the multinomial distribution."""
    counts = draws(num_queries).astype(float)
    spread = np.sqrt(1 / RESAMPLES)
    assert counts.mean(axis=0) == pytest.approx(np.ones(num_queries), abs=5 * spread)
    assert counts.var() == pytest.approx(1 - 1 / num_queries, abs=0.02)
    halves = counts[:, : num_queries // 2].sum(axis=1) / num_queries
    assert halves.mean() == pytest.approx(0.5, abs=5 * spread * np.sqrt(0.25 / num_queries))
    assert halves.var() == pytest.approx(0.25 / num_queries, rel=0.25)


def test_the_sums_of_a_resample_are_those_of_its_draws() -> None:
    terms = np.random.default_rng(5).random((1500, 23))
    terms[:, 0] = 1
    assert resampled_sums(terms) == pytest.approx(draws(1500) @ terms, rel=1e-12)


def test_draws_depend_neither_on_threads_nor_on_other_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = {name: mean(np.random.default_rng(6).random(3000)) for name in "ab"}
    several = resample(terms)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert np.array_equal(resample({"a": terms["a"]})["a"], several["a"])


@settings(max_examples=10)
@given(case=cases(), k=st.integers(1, 8))
def test_a_resample_is_the_figure_of_the_queries_that_are_drawn(case: Case, k: int) -> None:
    """The queries drawn are scored as a dataset of their own."""
    hits = find_hits(case.predictions, case.truth, np.array(case.weights))
    drawn = {name: resample({name: evaluator.terms(hits, k)})[name] for name, evaluator in BUILT_IN.items()}
    counts = draws(len(case.true))
    for number in range(3):
        rows = np.repeat(np.arange(len(case.true)), counts[number])
        again = Case([case.scores[i] for i in rows], [case.true[i] for i in rows], case.weights)
        hits_again = find_hits(again.predictions, again.truth, np.array(again.weights))
        for name, evaluator in BUILT_IN.items():
            assert drawn[name][number] == pytest.approx(evaluator.compute(hits_again, k), abs=1e-6), name


def test_figures_are_drawn_together_or_one_by_one_alike() -> None:
    rng = np.random.default_rng(0)
    terms = {name: mean(rng.random(50)) for name in "abc"}
    together = resample(terms)
    for name, own in terms.items():
        assert np.array_equal(together[name], resample({name: own})[name])
        assert together[name].shape == (RESAMPLES,)
    assert resample({}) == {}


def test_the_interval_of_a_mean_is_that_of_the_normal_distribution() -> None:
    values = np.random.default_rng(1).random(5000)
    (low, high) = intervals(resample({"a": mean(values)}))["a"]
    half = 1.96 * values.std() / np.sqrt(len(values))
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.1 * half)


def test_an_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    held = 0
    for _ in range(8):  # 25 trials of 200 queries at once
        terms = {str(i): mean((rng.random(200) < 0.3).astype(float)) for i in range(25)}
        held += sum(low <= 0.3 <= high for low, high in intervals(resample(terms)).values())
    assert 0.90 <= held / 200 <= 0.99


def test_pairing_finds_what_separate_intervals_do_not() -> None:
    hard = np.random.default_rng(3).random(1000)  # some queries are hard for both
    first, second = mean(hard + 0.01), mean(hard)
    drawn = [resample({"a": terms})["a"] for terms in (first, second)]
    found = difference(*map(one_seed, (first, second)))
    assert found.significant
    assert found.value == pytest.approx(0.01)
    assert not found.seed_freedom
    ours, theirs = (intervals({"a": each})["a"] for each in drawn)
    assert ours[0] < theirs[1], "the intervals of the figures themselves overlap"
    assert tied_with_best([one_seed(each) for each in (first, second, first)]) == [False, False, True]


def test_chance_is_not_significant_and_signs_are_symmetric() -> None:
    rng = np.random.default_rng(4)
    values = rng.random(300)
    first, second = one_seed(mean(values)), one_seed(mean(values[::-1]))
    forth, back = difference(first, second), difference(second, first)
    assert not forth.significant
    assert forth.p == back.p > 0.05
    assert forth.interval == pytest.approx((-back.interval[1], -back.interval[0]), abs=1e-9)
    same = difference(first, first)
    assert (same.p, same.significant, same.interval) == (1.0, False, (0.0, 0.0))


# Two trials -------------------------------------------------------------------------------------------------------


def test_an_evaluator_that_says_nothing_of_queries_has_no_interval() -> None:
    class Silent:
        name, summary = "Silent", "a figure of all queries at once"

        def compute(self, hits: object, k: int, /) -> float:  # noqa: ARG002
            return 0.5

    dataset = made()
    evaluators = {**BUILT_IN, "Silent": Silent()}
    predictions = predicted(dataset, 0.8, 1)
    assert list(resampled_metrics(dataset_hits(predictions, dataset), ["P@1", "Silent@2"], evaluators)) == ["P@1"]
    assert score(dataset_hits(predictions, dataset), ["Silent@2"], evaluators) == {"Silent@2": 0.5}


def test_queries_drawn_depend_on_their_number_alone() -> None:
    dataset = made()
    first = resampled_metrics(dataset_hits(predicted(dataset, 0.5, 1), dataset), ["P@1"], BUILT_IN)["P@1"]
    card = dataset.card.model_copy(update={"content_hash": "d" * 64})
    other = dataset_hits(predicted(dataset, 0.5, 1), replace(dataset, card=card))
    again = resampled_metrics(other, ["P@1"], BUILT_IN)["P@1"]
    assert np.array_equal(first, again)
