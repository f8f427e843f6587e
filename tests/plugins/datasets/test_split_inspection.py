"""What training and test rows show together."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from xmcbench.data.dataset import Dataset, DatasetCard, Split
from xmcbench_plugins.datasets.inspection import Finding, Kind, Report, Severity
from xmcbench_plugins.datasets.sentences import report_lines
from xmcbench_plugins.datasets.split_inspection import inspect_splits

LONG = "one two three four five six seven eight nine ten"


def found(train: list[str], test: list[str], labels: list[list[int]], rows: list[list[int]]) -> dict[Kind, Finding]:
    """The findings of a dataset of these texts, and labels of training and of test rows."""
    count = 1 + max((label for own in labels + rows for label in own), default=0)
    matrices = [
        sp.csr_array(np.array([[i in own for i in range(count)] for own in part], np.float32))
        for part in (labels, rows)
    ]
    texts = [f"label {number}" for number in range(count)]
    card = DatasetCard(name="made", num_train=len(train), num_test=len(test), num_labels=count)
    empty = [sp.csr_array(matrix.shape, dtype=np.float32) for matrix in matrices]
    dataset = Dataset(card, Split(train, matrices[0]), Split(test, matrices[1]), texts, *empty)
    report = Report()
    inspect_splits(dataset, report)
    assert all(report_lines(report.worst_first())), "each has a sentence"
    return {finding.kind: finding for finding in report.findings}


def test_test_rows_that_nearly_repeat_a_training_row_are_counted_once_and_equal_ones_not() -> None:
    seen = found([LONG, "else"], [f"{LONG} more", LONG, "else", "new words"], [[0], [1]], [[0]] * 4)
    assert (seen[Kind.NEAR_DUPLICATES].count, seen[Kind.NEAR_DUPLICATES].total) == (1, 4)
    assert seen[Kind.NEAR_DUPLICATES].example == f"{LONG} more"
    assert (seen[Kind.WITHOUT_WORD].count, seen[Kind.WITHOUT_WORD].example) == (1, "new words")


@pytest.mark.parametrize(("share", "severity"), [(3, Severity.NOTE), (4, Severity.DOUBT)])
def test_a_label_that_dominates_is_a_doubt(share: int, severity: Severity) -> None:
    labels = [[0]] * share + [[place + 1] for place in range(10 - share)]
    seen = found(["a"] * 10, ["a"], labels, [[0]])[Kind.MOST_FREQUENT]
    assert (seen.count, seen.total, seen.severity, seen.example) == (share, 10, severity, "label 0")


def test_texts_without_a_word_are_said() -> None:
    assert found(["."], ["?"], [[0]], [[0]])[Kind.WITHOUT_WORD].count == 1


@given(st.lists(st.lists(st.integers(0, 7), max_size=8, unique=True), min_size=1, max_size=9))
def test_p_at_5_cannot_exceed_its_ceiling(rows: list[list[int]]) -> None:
    seen = found(["a"], ["a"] * len(rows), [[0]], rows)
    best = np.mean([min(5, len(own)) / 5 for own in rows])
    if best == 1:
        assert Kind.CEILING not in seen
    else:
        assert float(seen[Kind.CEILING].names[1]) == pytest.approx(100 * best, abs=0.051)
    shown = float(seen[Kind.SMALLEST_DIFFERENCE].names[0])
    assert shown == pytest.approx(280 * sqrt(0.3 / len(rows)), abs=0.051)
