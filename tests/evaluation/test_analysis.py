from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from xmcbench.data.dataset import Dataset, DatasetCard, Split
from xmcbench.evaluation import decile_bins, find_hits, inverse_propensity, label_bins, similarity_bins
from xmcbench.evaluation.analysis import DECILES, REGIMES, SIMILARITY, SIMILARITY_OF_TAIL, analyse, partitions
from xmcbench.evaluation.metrics import precision, propensity_scored_precision

from .cases import Case, cases


def dataset_of(case: Case) -> Dataset:
    """The case's truth as training and test targets, padded with queries to three."""
    rows, labels = case.truth.shape
    train = sp.csr_array(np.vstack([case.truth.toarray(), np.zeros((3, labels), np.float32)]))
    card = DatasetCard(
        name="made", num_train=rows + 3, num_test=rows, num_labels=labels, tail_at_most=1, head_at_least=3
    )
    texts = [""] * (rows + 3)
    nothing = sp.csr_array(case.truth.shape, dtype=np.float32)
    return Dataset(card, Split(texts, train), Split(texts[:rows], case.truth), [""] * labels, nothing, nothing)


@given(case=cases(), k=st.integers(1, 8))
def test_recall_and_coverage_of_a_bin_are_those_of_counting(case: Case, k: int) -> None:
    bins = decile_bins(case.truth)
    hits = find_hits(case.predictions, case.truth, np.array(case.weights))
    found_of = bins.breakdown(hits, k)
    recall, coverage = found_of.recall, found_of.coverage
    pairs = [(row, label) for row, labels in enumerate(case.true) for label in labels]
    found = {(row, label) for row, labels in enumerate(case.ranked) for label in labels[:k]}
    for bin_ in range(10):
        inside = [pair for pair in pairs if bins.assignment[pair[1]] == bin_]
        labels = {label for _, label in inside}
        if not inside:
            assert np.isnan(recall[bin_])
            assert np.isnan(coverage[bin_])
            continue
        assert recall[bin_] == pytest.approx(sum(pair in found for pair in inside) / len(inside))
        assert coverage[bin_] == pytest.approx(
            len({label for pair in found if pair in inside for label in pair[1:]}) / len(labels)
        )


@given(case=cases(), k=st.integers(1, 8))
def test_an_analysis_agrees_with_the_figures_and_its_parts_add_up(case: Case, k: int) -> None:
    dataset = dataset_of(case)
    similarity = np.linspace(0, 1, case.num_labels)
    bins = partitions(dataset, similarity)
    assert list(bins) == [REGIMES, DECILES, SIMILARITY, SIMILARITY_OF_TAIL]
    found = analyse(case.predictions, dataset, bins, k)
    hits = find_hits(case.predictions, case.truth, inverse_propensity(dataset.train.targets, 0.55, 1.5))
    for at, (p, psp) in found.trade_off.items():
        assert (p, psp) == (precision.compute(hits, at), propensity_scored_precision.compute(hits, at))
    for breakdown in found.breakdowns.values():
        assert breakdown.contribution.sum() == pytest.approx(found.trade_off[k][0])
        assert breakdown.num_labels.sum() == case.num_labels
    true = {label for labels in case.true for label in labels}
    correct = {label for row, ranked in enumerate(case.ranked) for label in ranked[:k] if label in case.true[row]}
    assert found.coverage[k] == pytest.approx(len(correct) / max(1, len(true)))
    assert found.distinct[k] == pytest.approx(
        len({label for ranked in case.ranked for label in ranked[:k]}) / case.num_labels
    )


def test_similarity_bins_are_equal_thirds_the_most_alike_last() -> None:
    similarity = np.array([0.9, 0.1, 0.5, 0.3, 0.7, 0.2])
    bins = similarity_bins(similarity)
    assert [bins.names[bin_] for bin_ in bins.assignment] == [
        "similar", "dissimilar", "middle", "middle", "similar", "dissimilar",
    ]  # fmt: skip
    tail = np.array([True, True, False, True, False, False])
    assert [bins.names[b] for b in similarity_bins(similarity).assignment[:1]] == ["similar"]
    bins = similarity_bins(similarity, tail)
    assert [bins.names[bin_] for bin_ in bins.assignment] == [
        "similar", "dissimilar", "others", "middle", "others", "others",
    ]  # fmt: skip


def test_bins_follow_the_edges_of_the_card() -> None:
    case = Case([{}] * 6, [{0, 1, 2}, {0, 1, 2}, {0, 1}, {0, 1}, {0, 1}, {0}], [1.0] * 4)
    card = DatasetCard(name="made", num_train=6, num_test=1, num_labels=4, tail_at_most=2, head_at_least=6)
    bins = label_bins(card, case.truth)
    assert [bins.names[bin_] for bin_ in bins.assignment] == ["head", "torso", "tail", "tail"]
    hits = find_hits(case.predictions, case.truth, np.array(case.weights))
    assert bins.breakdown(hits, 1).num_pairs.tolist() == [6, 5, 2]


def test_deciles_hold_equally_many_labels_the_most_frequent_first() -> None:
    rows = [set(range(start, 20)) for start in range(20)]  # label l occurs l + 1 times
    truth = Case([{}] * 20, rows, [1.0] * 20).truth
    bins = decile_bins(truth)
    assert np.bincount(bins.assignment).tolist() == [2] * 10
    assert bins.assignment.tolist() == [9 - label // 2 for label in range(20)]
