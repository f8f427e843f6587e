"""Means over labels: their definition, what happens to labels that are never predicted, and their resamples."""

from __future__ import annotations

import numpy as np
import pytest
import scipy
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from xmcbench.errors import XMCBenchError
from xmcbench.evaluation import find_evaluators, find_hits, rank, score
from xmcbench.evaluation.bootstrap import RESAMPLES, interval, resample
from xmcbench.evaluation.evaluator import LABEL_EVALUATORS
from xmcbench.evaluation.metrics import Hits, precision

from . import brute_force
from .cases import Case, cases, pairs

BY_NAME = {evaluator.name: evaluator for evaluator in LABEL_EVALUATORS}


def hits_of(case: Case) -> Hits:
    return find_hits(case.predictions, case.truth, np.array(case.weights))


@given(case=cases(), k=st.integers(1, 10))
def test_every_metric_equals_its_definition_spelt_out(case: Case, k: int) -> None:
    assert BY_NAME.keys() == brute_force.LABEL_METRICS.keys()
    for name, by_hand in brute_force.LABEL_METRICS.items():
        expected = by_hand(case.ranked, case.true, case.weights, k)
        assert BY_NAME[name].compute(hits_of(case), k) == pytest.approx(expected, abs=1e-12), name


@given(case=cases(), k=st.integers(1, 10))
def test_a_label_counts_once_however_many_queries_have_it(case: Case, k: int) -> None:
    twice = Case([*case.scores, *case.scores], [*case.true, *case.true], case.weights)
    for evaluator in LABEL_EVALUATORS:
        assert evaluator.compute(hits_of(twice), k) == pytest.approx(evaluator.compute(hits_of(case), k)), (
            evaluator.name
        )


def test_a_label_that_is_never_predicted_counts_as_zero_and_one_that_no_query_has_not_at_all() -> None:
    # Label 0: one of two predictions right, its one query found. Label 1: never predicted. Label 2: no query has it.
    predictions = rank(np.array([[0], [0], [2]]), np.ones((3, 1)), 1)
    hits = find_hits(predictions, pairs([{0}, {1}, {1}], 3), np.ones(3))
    assert BY_NAME["macro-P"].compute(hits, 1) == pytest.approx((1 / 2 + 0) / 2)
    assert BY_NAME["macro-F1"].compute(hits, 1) == pytest.approx((2 / 3 + 0) / 2)
    assert BY_NAME["coverage"].compute(hits, 1) == 1 / 2


def test_labels_are_resampled_where_queries_are_for_other_metrics() -> None:
    rng = np.random.default_rng(0)
    truth = sp.csr_array((rng.random((40, 300)) < 0.02).astype(np.float32))
    hits = find_hits(rank(np.argsort(rng.random((40, 300)))[:, :5], np.ones((40, 5)), 5), truth, np.ones(300))
    terms = {name: evaluator.terms(hits, 5) for name, evaluator in BY_NAME.items()}
    drawn = resample({**terms, "P": precision.terms(hits, 5)})
    assert {name: len(values) for name, values in drawn.items()} == dict.fromkeys([*BY_NAME, "P"], RESAMPLES)
    for name, own in terms.items():
        assert len(own.numerator) == 300
        assert np.array_equal(drawn[name], resample({name: own})[name])
        low, high = interval(drawn[name])
        values = own.numerator[own.denominator > 0]
        half = 1.96 * values.std() / np.sqrt(len(values))
        assert (low, high) == pytest.approx((own.value - half, own.value + half), abs=0.5 * half)


LABELS = 9
NAMES = ("R-seen", "R-unseen", "R")


@given(seed=st.integers(0, 10_000), k=st.integers(1, LABELS))
def test_recall_of_a_group_is_that_of_a_loop(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    truth = rng.random((6, LABELS)) < 0.3
    counts = rng.integers(0, 3, LABELS).astype(float)
    ranked = rank(np.tile(np.arange(LABELS), (6, 1)), rng.random((6, LABELS)), LABELS)
    hits = find_hits(ranked, scipy.sparse.csr_array(truth.astype(np.float32)), np.ones(LABELS), counts)
    metrics = [f"{name}@{k}" for name in NAMES]
    found = score(hits, metrics, find_evaluators(metrics))
    for name, group in (("R-seen", counts > 0), ("R-unseen", counts == 0), ("R", counts >= 0)):
        shares = []
        for query in range(6):
            own = set(np.flatnonzero(truth[query] & group).tolist())
            if own:
                shares.append(len(own & set(ranked.indices[query, :k].tolist())) / len(own))
            elif name == "R":
                shares.append(0.0)
        assert found[f"{name}@{k}"] == pytest.approx(sum(shares) / len(shares) if shares else 0.0)


def test_without_a_dataset_it_says_what_it_needs() -> None:
    ranked = rank(np.array([[0, 1]]), np.array([[1.0, 0.5]]), 2)
    hits = find_hits(ranked, scipy.sparse.csr_array(np.eye(1, 2, dtype=np.float32)), np.ones(2))
    with pytest.raises(XMCBenchError, match="need the training queries of a dataset"):
        score(hits, ["R-seen@1"], find_evaluators(["R-seen@1"]))
