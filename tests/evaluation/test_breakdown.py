from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xmcbench.data.dataset import DatasetCard
from xmcbench.evaluation import decile_bins, find_hits, label_bins
from xmcbench.evaluation.metrics import precision

from .cases import Case, cases


@given(case=cases(), k=st.integers(1, 10))
def test_the_contributions_of_all_bins_add_up_to_precision(case: Case, k: int) -> None:
    card = DatasetCard(name="made", num_train=1, num_test=1, num_labels=1, tail_at_most=1, head_at_least=3)
    hits = find_hits(case.predictions, case.truth, np.array(case.weights))
    for bins in (label_bins(card, case.truth), decile_bins(case.truth)):
        assert bins.contribution(hits, k).sum() == pytest.approx(precision(hits, k).value)
        assert bins.num_labels().sum() == case.num_labels
        assert bins.num_pairs(case.truth).sum() == case.truth.nnz


def test_bins_follow_the_edges_of_the_card() -> None:
    case = Case([{}] * 6, [{0, 1, 2}, {0, 1, 2}, {0, 1}, {0, 1}, {0, 1}, {0}], [1.0] * 4)
    card = DatasetCard(name="made", num_train=6, num_test=1, num_labels=4, tail_at_most=2, head_at_least=6)
    bins = label_bins(card, case.truth)
    assert [bins.names[bin_] for bin_ in bins.assignment] == ["head", "torso", "tail", "tail"]
    assert bins.num_pairs(case.truth).tolist() == [6, 5, 2]


def test_deciles_hold_equally_many_labels_the_most_frequent_first() -> None:
    rows = [set(range(start, 20)) for start in range(20)]  # label l occurs l + 1 times
    truth = Case([{}] * 20, rows, [1.0] * 20).truth
    bins = decile_bins(truth)
    assert bins.num_labels().tolist() == [2] * 10
    assert bins.assignment.tolist() == [9 - label // 2 for label in range(20)]
