from __future__ import annotations

from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from xmcbench.data import pairs as pairs_module
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation import find_hits, inverse_propensity, rank, score
from xmcbench.evaluation.evaluator import EVALUATORS
from xmcbench.trial.predictions import Predictions

from . import brute_force
from .cases import Case, cases, pairs

BUILT_IN = {evaluator.name: evaluator for evaluator in EVALUATORS}
CONSTANTS = {"055_15": (0.55, 1.5), "06_26": (0.6, 2.6)}


@given(case=cases(), k=st.integers(1, 10))
def test_every_metric_equals_its_definition_spelt_out(case: Case, k: int) -> None:
    hits = find_hits(case.predictions, case.truth, np.array(case.weights))
    for name, by_hand in brute_force.METRICS.items():
        expected = by_hand(case.ranked, case.true, case.weights, k)
        assert BUILT_IN[name].compute(hits, k) == pytest.approx(expected, abs=1e-12), name


@given(case=cases())
def test_figures_keep_the_relations_that_entry_checks_rely_on(case: Case) -> None:
    names = [f"{name}@{k}" for name in BUILT_IN for k in range(1, case.num_labels + 1)]
    figures = score(find_hits(case.predictions, case.truth, np.array(case.weights)), names, BUILT_IN)
    assert figures["P@1"] == figures["nDCG@1"]
    for k in range(1, case.num_labels):
        assert figures[f"P@{k + 1}"] * (k + 1) >= figures[f"P@{k}"] * k - 1e-12
        assert figures[f"R@{k + 1}"] >= figures[f"R@{k}"] - 1e-12
    assert all(0.0 <= figure <= 1.0 + 1e-12 for figure in figures.values())


@given(case=cases(), k=st.integers(1, 10))
def test_the_heaviest_true_labels_first_score_one(case: Case, k: int) -> None:
    oracle = Case(
        [{label: case.weights[label] for label in true} for true in case.true],
        [*case.true],
        case.weights,
    )
    hits = find_hits(oracle.predictions, oracle.truth, np.array(case.weights))
    anything_true = any(case.true)
    assert BUILT_IN["PSP"].compute(hits, k) == pytest.approx(float(anything_true))
    assert BUILT_IN["PSnDCG"].compute(hits, k) == pytest.approx(float(anything_true))
    share_labelled = sum(map(bool, case.true)) / len(case.true)
    assert BUILT_IN["nDCG"].compute(hits, k) == pytest.approx(share_labelled)


@given(case=cases())
def test_metrics_do_not_depend_on_how_many_rows_are_looked_up_at_a_time(case: Case) -> None:
    whole = find_hits(case.predictions, case.truth, np.array(case.weights))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs_module, "CHUNK_ENTRIES", 1)
        parts = find_hits(case.predictions, case.truth, np.array(case.weights))
    assert np.array_equal(whole.queries, parts.queries)
    assert np.array_equal(whole.ranks, parts.ranks)


def test_a_pad_is_not_taken_for_the_last_label_of_the_row_above() -> None:
    predictions = Predictions(np.array([[0, -1], [-1, -1]]), np.array([[1.0, -np.inf], [-np.inf, -np.inf]]))
    hits = find_hits(predictions, pairs([{2}, {2}], 3), np.ones(3))
    assert len(hits.queries) == 0


def test_truth_that_is_not_binary_counts_each_pair_once() -> None:
    messy = sp.csr_array((np.array([2.0, 1.0, 0.0]), np.array([1, 1, 0]), np.array([0, 3])), shape=(1, 2))
    predictions = rank(np.array([[0, 1]]), np.array([[2.0, 1.0]]), 2)
    figures = score(find_hits(predictions, messy, np.ones(2)), ["P@1", "P@2", "R@2"], BUILT_IN)
    assert figures == {"P@1": 0.0, "P@2": 0.5, "R@2": 1.0}


def test_predictions_shorter_than_k_are_an_error_not_a_lower_figure() -> None:
    predictions = rank(np.array([[0, 1]]), np.array([[2.0, 1.0]]), 2)
    with pytest.raises(XMCBenchError, match="R@3 needs the best 3 labels per query, the predictions hold 2"):
        score(find_hits(predictions, pairs([{0}], 5), np.ones(5)), ["R@3"], BUILT_IN)
    assert score(find_hits(predictions, pairs([{0}], 2), np.ones(2)), ["P@4"], BUILT_IN) == {"P@4": 0.25}


@pytest.mark.parametrize(
    ("indices", "num_queries", "message"),
    [
        ([[0], [1]], 1, "predictions have 2 rows, expected one for each of 1 queries"),
        ([[3]], 1, "predictions hold label 3, expected labels below 3"),
    ],
)
def test_predictions_that_do_not_fit_the_truth_get_no_figure(
    indices: list[list[int]], num_queries: int, message: str
) -> None:
    predictions = Predictions(np.array(indices), np.zeros((len(indices), 1)))
    with pytest.raises(XMCBenchError, match=message):
        find_hits(predictions, pairs([{0}] * num_queries, 3), np.ones(3))


def golden_matrix(golden: Any, name: str) -> sp.csr_array:
    parts = (golden[f"{name}_{part}"] for part in ("data", "indices", "indptr"))
    return sp.csr_array(tuple(parts), shape=tuple(golden[f"{name}_shape"]))


def golden_predictions(golden: Any, name: str) -> Predictions:
    """Every stored entry counts, zeros and negatives too."""
    matrix = golden_matrix(golden, name)
    lengths = np.diff(matrix.indptr)
    indices, scores = np.full(matrix.shape, -1), np.zeros(matrix.shape)
    places = np.arange(matrix.nnz) - np.repeat(matrix.indptr[:-1], lengths)
    rows = np.repeat(np.arange(matrix.shape[0]), lengths)
    indices[rows, places], scores[rows, places] = matrix.indices, matrix.data
    return rank(indices, scores, 100)


@pytest.mark.shared
@pytest.mark.parametrize("kind", ["pred", "predfiltered"])
@pytest.mark.parametrize("constants", CONSTANTS)
@pytest.mark.parametrize("case", ["c0", "c1"])
def test_metrics_equal_those_of_an_independent_implementation(
    shared: Path, case: str, constants: str, kind: str
) -> None:
    golden = np.load(shared / "golden" / "metrics.npz", allow_pickle=False)
    truth, train = golden_matrix(golden, f"{case}_Ytrue"), golden_matrix(golden, f"{case}_Ytrain")
    predictions = golden_predictions(golden, f"{case}_{kind}")
    weights = inverse_propensity(train, *CONSTANTS[constants])
    assert weights == pytest.approx(golden[f"{case}_invprop_{constants}"], rel=1e-6)

    labelled = np.flatnonzero(np.diff(truth.indptr))
    without_empty = Predictions(predictions.indices[labelled], predictions.scores[labelled])
    for name in ("P", "nDCG", "PSP", "PSnDCG"):
        metrics = [f"{name}@{k}" for k in golden["ks"]]
        figures = score(find_hits(predictions, truth, weights), metrics, BUILT_IN)
        key = f"{case}_lblasc_{constants}_{name}"
        assert list(figures.values()) == pytest.approx(golden[key], abs=1e-6), key
        figures = score(find_hits(without_empty, truth[labelled], weights), metrics, BUILT_IN)
        assert list(figures.values()) == pytest.approx(golden[f"{key}_dropempty"], abs=1e-6), f"{key}_dropempty"

    metrics = [f"R@{k}" for k in golden["rks"]]
    figures = score(find_hits(predictions, truth, weights), metrics, BUILT_IN)
    assert list(figures.values()) == pytest.approx(golden[f"{case}_lblasc_R"], abs=1e-6)
    figures = score(find_hits(without_empty, truth[labelled], weights), metrics, BUILT_IN)
    assert list(figures.values()) == pytest.approx(golden[f"{case}_lblasc_recall_at_k"], abs=1e-6)


@pytest.mark.shared
@pytest.mark.parametrize("case", ["c0", "c1"])
def test_ranking_equals_the_golden_order_with_ties_by_label(shared: Path, case: str) -> None:
    golden = np.load(shared / "golden" / "metrics.npz", allow_pickle=False)
    ours, theirs = golden_predictions(golden, f"{case}_pred").indices, golden[f"{case}_top100_lblasc"]
    short = ours < 0
    assert np.array_equal(ours[~short], theirs[~short])
    assert case == "c0" or short.any()


def test_weights_follow_the_model_label_by_label() -> None:
    targets = sp.csr_array(np.array([[1, 0, 1], [1, 0, 0], [1, 0, 0], [1, 0, 1]]))
    a, b = 0.6, 2.6
    scale = (log(4) - 1) * (b + 1) ** a
    expected = [1 + scale * (count + b) ** -a for count in (4, 0, 2)]
    assert inverse_propensity(targets, a, b).tolist() == pytest.approx(expected, rel=1e-14)


def test_the_sum_of_a_column_counts_not_its_entries() -> None:
    twice = sp.csr_array(np.array([[2, 0], [0, 1], [0, 1]]))
    weights = inverse_propensity(twice, 0.55, 1.5)
    assert weights[0] == weights[1]


def test_too_few_training_queries_are_an_error_where_the_model_would_favour_frequent_labels() -> None:
    with pytest.raises(XMCBenchError, match="at least 3 training queries, found 2"):
        inverse_propensity(sp.csr_array((2, 5)), 0.55, 1.5)
