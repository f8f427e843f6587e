"""Scores as probabilities. Q queries have each of L labels with a probability that the test knows."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from xmcbench.errors import XMCBenchError
from xmcbench.evaluation import find_hits, rank
from xmcbench.evaluation.calibration import (
    BINS,
    Calibration,
    CalibrationMetric,
    fit_calibration,
    logistic,
    reliability,
)
from xmcbench.trial.predictions import Predictions


def drawn(queries: int, seed: int = 0, stretch: float = 1.0) -> tuple[Predictions, sp.csr_array, np.ndarray]:
    """Predictions of 12 labels with scores `stretch * logit(p)`, the truth drawn by p, and p in the order of ranks."""
    draws = np.random.default_rng(seed)
    chance = draws.beta(0.5, 1.5, (queries, 12)).clip(0.01, 0.99)
    truth = sp.csr_array((draws.random(chance.shape) < chance).astype(np.float32))
    labels = np.broadcast_to(np.arange(12), chance.shape)
    ranked = rank(labels, stretch * np.log(chance / (1 - chance)), 12)
    return ranked, truth, np.take_along_axis(chance, ranked.indices.astype(int), axis=1)


@given(pairs=st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=60))
def test_the_error_is_that_of_a_loop_over_bins(pairs: list[tuple[float, bool]]) -> None:
    confidence, true = np.array([p for p, _ in pairs]), np.array([t for _, t in pairs], bool)
    expected = 0.0
    for number in range(BINS):
        own = [(p, t) for p, t in pairs if min(int(p * BINS), BINS - 1) == number]
        expected += abs(sum(p for p, _ in own) - sum(t for _, t in own)) / max(1, len(pairs))
    assert reliability(confidence, true).error == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("stretch", [0.2, 5.0])
def test_the_map_finds_the_probabilities_behind_scores_that_are_wrong(stretch: float) -> None:
    found, truth, chance = drawn(2000, stretch=stretch)
    made = fit_calibration(found, truth)
    assert made is not None
    assert made.error < 0.02
    assert made.error_before > 0.08
    assert np.abs(made.probability(found.scores) - chance).mean() < 0.05
    others, other_truth, _ = drawn(2000, seed=1, stretch=stretch)  # the stated error and F1 hold for other queries
    top, positive = others.scores[:, :5], np.take_along_axis(other_truth.toarray(), others.indices.astype(int), 1) > 0
    assert reliability(made.probability(top).ravel(), positive[:, :5].ravel()).error == pytest.approx(
        made.error, abs=0.02
    )
    shown = made.cut.shows(made.probability(others.scores), np.arange(12))
    f1 = 2 * (shown & positive).sum() / (shown.sum() + positive.sum())
    assert f1 == pytest.approx(made.micro_f1, abs=0.03)
    assert shown.sum() / 2000 == pytest.approx(made.labels, rel=0.1)
    fixed = [np.broadcast_to(np.arange(12) < k, positive.shape) for k in (1, 3, 5)]  # the same number for all queries
    assert f1 > max(2 * (own & positive).sum() / (own.sum() + positive.sum()) for own in fixed)


def test_where_scores_differ_in_scale_between_queries_a_number_of_labels_cuts_better() -> None:
    """The best two labels of each query are right, and the scale of its scores says nothing."""
    scale = np.exp(np.random.default_rng(0).normal(0, 3, (500, 1)))
    found = rank(np.broadcast_to(np.arange(6), (500, 6)), scale * np.linspace(6, 1, 6), 6)
    truth = sp.csr_array(np.tile(np.arange(6) < 2, (500, 1)).astype(np.float32))
    made = fit_calibration(found, truth)
    assert made is not None
    assert made.cut.most == 2
    assert made.micro_f1 > 0.99
    assert made.labels == 2


@given(seed=st.integers(0, 1000))
def test_no_number_of_labels_alone_is_better_on_the_held_out_queries(seed: int) -> None:
    found, truth, _ = drawn(30, seed)
    made = fit_calibration(found, truth)
    assert made is not None
    true = np.take_along_axis(truth.toarray(), found.indices.astype(int), 1) > 0
    cuts = [made.cut.shows(made.probability(found.scores), np.arange(12))]
    cuts += [np.broadcast_to(np.arange(12) < k, true.shape) for k in (*range(1, 11), 12)]
    own, *fixed = (2 * (shown & true).sum() / (shown.sum() + truth.nnz) for shown in cuts)
    assert own >= max(fixed) - 1e-12


@given(seed=st.integers(0, 1000))
def test_the_map_keeps_the_order_and_survives_a_file(seed: int) -> None:
    found, truth, _ = drawn(30, seed)
    made = fit_calibration(found, truth)
    assert made is not None
    probabilities = made.probability(found.scores)
    assert (np.diff(probabilities, axis=1) <= 0).all()
    assert (probabilities >= 0).all()
    assert (probabilities <= 1).all()
    assert Calibration.decode(made.encode()) == made


def test_short_rows_and_hopeless_queries() -> None:
    found, truth, _ = drawn(40)
    short = Predictions(found.indices.copy(), found.scores.copy())
    short.indices[:, 6:], short.scores[:, 6:] = -1, -np.inf
    short.indices[3], short.scores[3] = -1, -np.inf
    assert fit_calibration(short, truth) is not None
    assert fit_calibration(Predictions(found.indices[:10], found.scores[:10]), truth[:10]) is None
    assert fit_calibration(found, sp.csr_array(truth.shape)) is None


def test_another_file_is_one_line() -> None:
    for content in (b"", b"[]", b"{}", b"\xff", b'{"scores": 1}'):
        with pytest.raises(XMCBenchError, match=r"^found no calibration: "):
            Calibration.decode(content)


def test_the_metric_reads_scores_as_probabilities() -> None:
    found, truth, chance = drawn(3000)
    right = Predictions(found.indices, chance.astype(np.float32))
    weights = np.ones(12)
    assert CalibrationMetric().compute(find_hits(right, truth, weights), 5) > 0.98
    assert CalibrationMetric().compute(find_hits(found, truth, weights), 5) < 0.9  # logits: clipped to 0 and 1
    assert logistic(np.array([0.0])) == 0.5
