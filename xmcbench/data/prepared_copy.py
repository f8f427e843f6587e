"""Prepared copies of datasets: folders of arrays that are memory-mapped, with a manifest that is checked on opening."""

from __future__ import annotations

import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from xmcbench.data.dataset import Dataset, DatasetCard, Split
from xmcbench.data.statistics import Statistics, statistics
from xmcbench.data.texts import PackedTexts
from xmcbench.errors import XMCBenchError

PREPARED_VERSION = 5  # of the files below; a change makes every copy a new one
CARD = "card.json"
TEXTS = ("train", "test", "labels")
MATRICES = ("train_targets", "test_targets", "ignore_train", "ignore_test")


def content_hash(dataset: Dataset) -> str:
    """SHA-256 of all that training sees: texts and their maximum lengths in tokens, targets and ignored pairs.

    It does not depend on where the files lie. The card's other facts change metrics, but no prediction.
    """
    digest = sha256()
    _update(digest, np.array([dataset.card.max_length, dataset.card.max_label_length]), "<i8")
    for texts in _texts(dataset):
        _update(digest, texts.offsets - texts.offsets[0], "<i8")
        _update(digest, texts.data[texts.offsets[0] : texts.offsets[-1]], "u1")
    for matrix in _matrices(dataset):
        _update(digest, np.array(matrix.shape), "<i8")
        _update(digest, matrix.indptr, "<i8")
        _update(digest, matrix.indices, "<i4")
    return digest.hexdigest()


def _update(digest: Any, values: np.ndarray, kind: str) -> None:
    digest.update(np.ascontiguousarray(values, dtype=kind))


def _texts(dataset: Dataset) -> list[PackedTexts]:
    return [PackedTexts.of(texts) for texts in (dataset.train.texts, dataset.test.texts, dataset.label_texts)]


def _matrices(dataset: Dataset) -> tuple[scipy.sparse.csr_array, ...]:
    return dataset.train.targets, dataset.test.targets, dataset.ignore_train, dataset.ignore_test


def write_copy(dataset: Dataset, directory: Path) -> None:
    """Write the files of a prepared copy into the empty folder `directory`."""
    texts, matrices = _texts(dataset), _matrices(dataset)
    needed = sum(part.data.nbytes + part.offsets.nbytes for part in texts)
    needed += sum(matrix.indptr.nbytes + matrix.indices.nbytes for matrix in matrices)
    if (free := shutil.disk_usage(directory).free) < needed:
        raise XMCBenchError(f"{directory}: found {free:,} bytes of free disk space, expected {needed:,} or more")
    card = dataset.card.model_copy(update={"content_hash": content_hash(dataset)})
    for name, part in zip(TEXTS, texts, strict=True):
        part.save(directory / name)
    for name, matrix in zip(MATRICES, matrices, strict=True):
        np.save(directory / f"{name}.indptr.npy", matrix.indptr)
        np.save(directory / f"{name}.indices.npy", matrix.indices)
    (directory / CARD).write_text(card.model_dump_json(indent=2), encoding="utf-8")
    (directory / "statistics.json").write_text(statistics(dataset).model_dump_json(indent=2), encoding="utf-8")


def read_copy(directory: Path) -> Dataset:
    """The dataset in a prepared copy, memory-mapped. Raises ValueError, OSError or EOFError where parts do not fit."""
    card = read_card(directory)
    train, test, labels = (PackedTexts.open(directory / name) for name in TEXTS)
    rows = (card.num_train, card.num_test) * 2
    for texts, size in zip((train, test, labels), (*rows[:2], card.num_labels), strict=True):
        if len(texts) != size:
            raise ValueError(f"found {len(texts)} texts, expected {size} by the card")
    y_train, y_test, ignore_train, ignore_test = (
        _open_matrix(directory, name, (n, card.num_labels)) for name, n in zip(MATRICES, rows, strict=True)
    )
    return Dataset(card, Split(train, y_train), Split(test, y_test), labels, ignore_train, ignore_test)


def read_card(directory: Path) -> DatasetCard:
    """The card of a prepared copy. Raises ValueError or OSError where it is none."""
    return DatasetCard.model_validate_json((directory / CARD).read_bytes())


def read_statistics(directory: Path) -> Statistics:
    """The statistics of a prepared copy that was opened."""
    return Statistics.model_validate_json((directory / "statistics.json").read_bytes())


def _open_matrix(directory: Path, name: str, shape: tuple[int, int]) -> scipy.sparse.csr_array:
    parts = (directory / f"{name}.indptr.npy", directory / f"{name}.indices.npy")
    indptr, indices = (np.load(path, mmap_mode="r", allow_pickle=False) for path in parts)
    fits = indptr.shape == (shape[0] + 1,) and indices.ndim == 1 and indptr[0] == 0 and indptr[-1] == len(indices)
    if not fits or bool((indptr[1:] < indptr[:-1]).any()):
        raise ValueError(f"{name}: row pointers do not fit {shape[0]} rows and {len(indices)} entries")
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < shape[1]:
        raise ValueError(f"{name}: labels {indices.min()} to {indices.max()}, expected 0 to {shape[1] - 1}")
    matrix = scipy.sparse.csr_array((np.ones(len(indices), np.float32), indices, indptr), shape=shape)
    # Known from `binary_csr`; without it the first use of the matrix would look at every entry.
    matrix.has_canonical_format = True
    return matrix
