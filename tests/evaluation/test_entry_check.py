from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from xmcbench.evaluation import InvalidPredictions, check_metrics, check_predictions, drop_ignored
from xmcbench.trial.predictions import Predictions

from .cases import Case, cases, pairs

NONE = sp.csr_array((2, 6))
PAD = -np.inf


def predictions(second: list[int], scores: list[float]) -> Predictions:
    """Two rows of three; the first one is in order."""
    return Predictions(np.array([[5, 0, 1], second], dtype=np.int32), np.array([[3.0, 2.0, 1.0], scores]))


@given(case=cases())
def test_what_rank_gives_passes(case: Case) -> None:
    check_predictions(case.predictions, len(case.scores), case.num_labels, sp.csr_array(case.truth.shape))


@pytest.mark.parametrize(
    ("second", "scores", "problem"),
    [
        ([6, 1, 2], [3.0, 2.0, 1.0], r"a label outside 0\.\.5: 6"),
        ([-2, 1, 2], [3.0, 2.0, 1.0], r"a label outside 0\.\.5: -2"),
        ([1, 2, 1], [3.0, 2.0, 1.0], "a label twice"),
        ([1, 2, 3], [1.0, 2.0, 0.0], "scores that do not descend"),
        ([1, 2, 3], [3.0, np.nan, 1.0], "a score that is NaN"),
        ([1, -1, 2], [3.0, 2.0, 1.0], r"a pad \(-1\) before a label"),
        ([2, 1, -1], [3.0, 3.0, PAD], "equal scores not ranked by ascending label"),
        ([3, 4, -1], [3.0, 2.0, PAD], "a label that is to be filtered"),
    ],
)
def test_a_broken_rule_is_named_with_its_query(second: list[int], scores: list[float], problem: str) -> None:
    ignore = pairs([set(), {4}], 6)
    with pytest.raises(InvalidPredictions, match=f"^the predictions of test query 1 hold {problem}$"):
        check_predictions(predictions(second, scores), 2, 6, ignore)


def test_rows_may_be_short_and_even_empty() -> None:
    check_predictions(predictions([2, -1, -1], [3.0, PAD, PAD]), 2, 6, NONE)
    check_predictions(predictions([-1, -1, -1], [PAD, PAD, PAD]), 2, 6, NONE)


def test_a_row_too_few_and_labels_that_are_no_integers_are_refused() -> None:
    with pytest.raises(InvalidPredictions, match="have 2 rows, expected one for each of 3"):
        check_predictions(predictions([1, 2, 3], [3.0, 2.0, 1.0]), 3, 6, sp.csr_array((3, 6)))
    floats = Predictions(np.array([[1.0]]), np.array([[1.0]]))
    with pytest.raises(InvalidPredictions, match="of type float64, expected integers"):
        check_predictions(floats, 1, 6, sp.csr_array((1, 6)))


@given(case=cases(), k=st.integers(1, 10), data=st.data())
def test_dropping_ignored_pairs_equals_ranking_without_them(case: Case, k: int, data: st.DataObject) -> None:
    labels = st.sets(st.integers(0, case.num_labels - 1))
    ignored = data.draw(st.lists(labels, min_size=len(case.scores), max_size=len(case.scores)))
    ignore = pairs(ignored, case.num_labels)
    kept = drop_ignored(case.predictions, ignore, k)
    without = [
        {label: score for label, score in row.items() if label not in gone}
        for row, gone in zip(case.scores, ignored, strict=True)
    ]
    expected = Case(without, case.true, case.weights).predictions
    assert np.array_equal(kept.indices, expected.indices[:, :k])
    assert np.array_equal(kept.scores, expected.scores[:, :k])
    check_predictions(kept, len(case.scores), case.num_labels, ignore)


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ({"P@1": 0.5, "nDCG@1": 0.4}, r"P@1 is 0\.5 and nDCG@1 is 0\.4, expected them equal"),
        ({"PSP@3": 1.01}, r"PSP@3 is 1\.01, expected a fraction"),
        ({"R@5": float("nan")}, "R@5 is nan, expected a fraction"),
        ({"P@1": 0.9, "P@10": 0.08}, "P@10 finds fewer true labels than P@1"),
        ({"R@100": 0.4, "R@10": 0.5}, "R@100 finds fewer true labels than R@10"),
    ],
)
def test_figures_that_contradict_each_other_are_refused(figures: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidPredictions, match=message):
        check_metrics(figures)


def test_figures_that_agree_pass() -> None:
    check_metrics({"P@1": 0.6, "nDCG@1": 0.6, "P@5": 0.12, "R@1": 0.3, "R@100": 0.3, "nDCG@5": 0.1})
