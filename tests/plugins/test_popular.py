"""The popularity baseline against counts made one pair at a time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from fitting import assert_saved_predicts_the_same
from toy import LABELS, make_run, toy_data

from xmcbench.data.dataset import TrainingData
from xmcbench.errors import XMCBenchError
from xmcbench_plugins.popular import Popular

DATA = toy_data(ignored=1)


def fitted(data: TrainingData, root: Path) -> Popular:
    method = Popular(Popular.Config())
    method.fit(data, make_run(root, {"steps": 1}))
    return method


def by_frequency(data: TrainingData) -> list[int]:
    """Labels with a counted training pair, most frequent first, ties by lower id."""
    ignored = set(zip(*data.ignore.nonzero(), strict=True))
    counts = Counter(int(pair[1]) for pair in zip(*data.targets.nonzero(), strict=True) if pair not in ignored)
    return sorted(counts, key=lambda label: (-counts[label], label))


@pytest.mark.parametrize("k", [1, 7, LABELS])
def test_every_query_gets_the_most_frequent_labels(k: int, tmp_path: Path) -> None:
    found = fitted(DATA, tmp_path).predict(["one text", "another"], k)
    expected = np.full(k, -1)
    ranked = by_frequency(DATA)[:k]
    expected[: len(ranked)] = ranked
    assert found.indices.tolist() == [expected.tolist()] * 2


def test_ignored_training_pairs_are_not_counted(tmp_path: Path) -> None:
    best = by_frequency(DATA)[0]
    column_L = np.arange(LABELS) == best
    ignore = sp.csr_array(np.where(column_L, DATA.targets.toarray(), 0).astype(np.float32))
    data = replace(DATA, ignore=ignore)
    found = fitted(data, tmp_path).predict(["a text"], LABELS).indices[0]
    assert best not in found
    assert [label for label in found.tolist() if label >= 0] == by_frequency(data)


def test_data_without_a_true_pair_is_refused(tmp_path: Path) -> None:
    empty = replace(DATA, targets=sp.csr_array(DATA.targets.shape, dtype=np.float32))
    with pytest.raises(XMCBenchError, match="toy: no label has a training query"):
        fitted(empty, tmp_path)


def test_what_is_saved_predicts_the_same(tmp_path: Path) -> None:
    assert_saved_predicts_the_same(fitted(DATA, tmp_path), Popular(Popular.Config()), ["a", "b"], tmp_path)
