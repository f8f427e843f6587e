"""A dataset that is written as text reads back equal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from commands import call
from hypothesis import given
from hypothesis import strategies as st

from xmcbench.data import Dataset, load
from xmcbench.data.dataset import DatasetCard, Split
from xmcbench.data.formats import write_pairs, write_targets, write_texts
from xmcbench.data.source import Draft
from xmcbench.data.text_files import no_pairs, read_pairs, read_targets, read_texts
from xmcbench.errors import XMCBenchError
from xmcbench_plugins.datasets.exporting import export

MATRIX = st.lists(st.sets(st.sampled_from([0, 1, 9, 10, 101, 1304]), max_size=4), min_size=1, max_size=7)


def matrix(rows: list[set[int]]) -> sp.csr_array:
    pairs = [(row, label) for row, labels in enumerate(rows) for label in labels]
    places = np.array(pairs, np.int64).reshape(-1, 2).T
    return sp.csr_array((np.ones(len(pairs), np.float32), tuple(places)), (len(rows), 1305))


@given(rows=MATRIX)
def test_targets_and_pairs_read_back(tmp_path_factory: pytest.TempPathFactory, rows: list[set[int]]) -> None:
    path, written = tmp_path_factory.mktemp("written") / "file.txt", matrix(rows)
    write_targets(written, path)
    assert (read_targets(path) != written).nnz == 0
    write_pairs(written, path)
    assert (read_pairs(path, written.shape) != written).nnz == 0


@given(texts=st.lists(st.text(st.sampled_from("aé 漢\n\r"), max_size=4), min_size=1, max_size=5))
def test_texts_read_back_with_spaces_for_line_breaks(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    path = tmp_path_factory.mktemp("written") / "file.txt"
    write_texts(texts, path)
    assert list(read_texts(path)) == [text.replace("\n", " ").replace("\r", " ") for text in texts]


def test_a_folder_reads_back_as_the_same_dataset(tmp_path: Path) -> None:
    made, folder = load("catalog-50"), tmp_path / "mine"
    assert call("datasets", "export", "catalog-50", folder) == 0
    again = load("mine", tmp_path)
    assert again.card.content_hash == made.card.content_hash
    with pytest.raises(XMCBenchError, match="mine: found a file or folder of this name"):
        export(made, folder, Draft(name="mine"))


def test_ignored_pairs_are_written(tmp_path: Path) -> None:
    targets, ignored = matrix([{0, 9}, {101}, set()]), matrix([{9}, set(), set()])
    split = Split(["one", "two", "three"], targets)
    labels = [str(label) for label in range(targets.shape[1])]
    card = DatasetCard(name="mine", num_train=3, num_test=3, num_labels=len(labels))
    export(Dataset(card, split, split, labels, ignored, no_pairs(targets.shape)), tmp_path / "mine", Draft(name="mine"))
    assert sorted(path.name for path in (tmp_path / "mine").glob("filter*")) == ["filter_labels_train.txt"]
    assert (load("mine", tmp_path).ignore_train != ignored).nnz == 0
