"""A small dataset, and one function a layout that writes it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from xmcbench.data import Dataset, DatasetCard, PackedTexts, Split

Write = Callable[[Path, Dataset], None]


@pytest.fixture
def small() -> Dataset:
    return small_dataset()


def small_dataset() -> Dataset:
    """Seven training queries, three test queries, five labels; rows and texts may be empty."""
    train = sp.csr_array(
        np.array([[1, 0, 0, 1, 0], [0] * 5, [0, 1, 1, 0, 1], [0] * 5, [1] * 5, [0, 0, 0, 0, 1], [0] * 5])
    )
    test = sp.csr_array(np.array([[0] * 5, [1, 0, 0, 0, 1], [0, 0, 1, 0, 0]]))
    ignored = (
        sp.csr_array((7, 5), dtype=np.float32),
        sp.csr_array(np.array([[0, 1, 0, 0, 0], [0] * 5, [0, 0, 0, 1, 1]])),
    )
    train_texts = PackedTexts.of(["ein Ärmel", "zwei", "", "vier \u2028 fünf", "日本", "six", "seven"])
    labels = PackedTexts.of(["rot", "grün", "blau", "weiß", "schwarz"])
    card = DatasetCard(name="small", num_train=7, num_test=3, num_labels=5)
    splits = (
        Split(train_texts, train.astype(np.float32)),
        Split(PackedTexts.of(["a", "b", "c"]), test.astype(np.float32)),
    )
    return Dataset(card, *splits, labels, ignored[0], ignored[1].astype(np.float32))


def write_lines(path: Path, lines: list[str]) -> None:
    """Write the lines, compressed where the name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def rows_of(matrix: sp.csr_array) -> list[list[int]]:
    return [row.tolist() for row in np.split(matrix.indices, matrix.indptr[1:-1])]


def sparse_lines(matrix: sp.csr_array, value: str = "1.00000") -> list[str]:
    """The repository's text of a target matrix."""
    header = f"{matrix.shape[0]} {matrix.shape[1]}"
    return [header, *(" ".join(f"{label}:{value}" for label in row) for row in rows_of(matrix))]


def pair_lines(matrix: sp.csr_array) -> list[str]:
    return [f"{i} {label}" for i, row in enumerate(rows_of(matrix)) for label in row]


def write_json(directory: Path, dataset: Dataset) -> None:
    for name, split in (("trn", dataset.train), ("tst", dataset.test)):
        pairs = zip(split.texts, rows_of(split.targets), strict=True)
        entries = [
            {"uid": str(i), "title": text, "content": "", "target_ind": row, "target_rel": [1.0] * len(row)}
            for i, (text, row) in enumerate(pairs)
        ]
        write_lines(directory / f"{name}.json.gz", [json.dumps(entry) for entry in entries])
    write_lines(directory / "lbl.json.gz", [json.dumps({"uid": "", "title": text}) for text in dataset.label_texts])
    write_lines(directory / "filter_labels_train.txt", pair_lines(dataset.ignore_train))
    write_lines(directory / "filter_labels_test.txt", pair_lines(dataset.ignore_test))


def write_raw(directory: Path, dataset: Dataset, suffix: str = "") -> None:
    for name, split in (("trn", dataset.train), ("tst", dataset.test)):
        write_lines(directory / f"{name}_X.txt{suffix}", list(split.texts))
        write_lines(directory / f"{name}_X_Y.txt{suffix}", sparse_lines(split.targets))
    write_lines(directory / f"Y.txt{suffix}", list(dataset.label_texts))
    write_lines(directory / "tst_filter_labels.txt", pair_lines(dataset.ignore_test))


def write_raw_gz(directory: Path, dataset: Dataset) -> None:
    write_raw(directory, dataset, ".gz")


def write_dexml(directory: Path, dataset: Dataset) -> None:
    write_lines(directory / "raw" / "trn_X.txt", list(dataset.train.texts))
    write_lines(directory / "raw" / "tst_X.txt", list(dataset.test.texts))
    write_lines(directory / "raw" / "Y.txt", list(dataset.label_texts))
    write_lines(directory / "filter_labels_test.txt", pair_lines(dataset.ignore_test))
    sp.save_npz(directory / "Y.trn.npz", dataset.train.targets)
    sp.save_npz(directory / "Y.tst.npz", dataset.test.targets)


def write_xr(directory: Path, dataset: Dataset) -> None:
    write_lines(directory / "X.trn.txt", list(dataset.train.texts))
    write_lines(directory / "X.tst.txt", list(dataset.test.texts))
    write_lines(directory / "output-items.txt", list(dataset.label_texts))
    write_lines(directory / "filter_labels_test.txt", pair_lines(dataset.ignore_test))
    sp.save_npz(directory / "Y.trn.npz", dataset.train.targets)
    sp.save_npz(directory / "Y.tst.npz", dataset.test.targets)


@pytest.fixture(params=[write_json, write_raw, write_raw_gz, write_dexml, write_xr], ids=lambda f: f.__name__[6:])
def write(request: pytest.FixtureRequest) -> Write:
    """Each layout's writer in turn."""
    return request.param


@pytest.fixture(scope="module")
def written() -> Callable[[Path, str], None]:
    """Writes the small dataset into a folder in the layout named."""
    writers = {"json": write_json, "raw": write_raw, "xr": write_xr}
    return lambda directory, layout: writers[layout](directory, small_dataset())


@pytest.fixture
def raw(tmp_path: Path, small: Dataset) -> Path:
    """A folder `small` with the dataset as raw text; tests damage a file of it."""
    write_raw(tmp_path / "small", small)
    return tmp_path / "small"


@pytest.fixture
def json_folder(tmp_path: Path, small: Dataset) -> Path:
    write_json(tmp_path / "small", small)
    return tmp_path / "small"


@pytest.fixture
def xr(tmp_path: Path, small: Dataset) -> Path:
    write_xr(tmp_path / "small", small)
    return tmp_path / "small"
