"""Writes a dataset as the raw text of the Extreme Classification Repository, which other programs read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import scipy

from xmcbench.data.dataset import Dataset
from xmcbench.data.formats import IGNORE_FILES
from xmcbench.data.texts import batches
from xmcbench.errors import XMCBenchError
from xmcbench.files.atomic import atomic_directory


def export(dataset: Dataset, folder: Path) -> None:
    """Write `folder`, whole or not at all: texts one a line, targets as `label:1.0`, ignored pairs as `row label`.

    A line break within a text becomes a space. Raises XMCBenchError if `folder` is there already.
    """
    if folder.exists():
        raise XMCBenchError(f"{folder}: found a file or folder of this name, expected a new one")
    with atomic_directory(folder) as partial:
        write_texts(dataset.label_texts, partial / "Y.txt")
        for name, split in (("trn", dataset.train), ("tst", dataset.test)):
            write_texts(split.texts, partial / f"{name}_X.txt")
            write_targets(split.targets, partial / f"{name}_X_Y.txt")
        for name, pairs in (("train", dataset.ignore_train), ("test", dataset.ignore_test)):
            if pairs.nnz:
                write_pairs(pairs, partial / IGNORE_FILES[name][0])


def write_texts(texts: Sequence[str], path: Path) -> None:
    """Write one text a line; a line break within a text becomes a space."""
    with path.open("w", encoding="utf-8", newline="") as file:
        for batch in batches(texts):
            lines = "\n".join(batch)
            if "\r" in lines or lines.count("\n") >= len(batch):
                lines = "\n".join(text.replace("\r", " ").replace("\n", " ") for text in batch)
            file.write(lines + "\n")


def write_targets(targets: scipy.sparse.csr_array, path: Path) -> None:
    """Write a line `rows labels`, then `label:1.0 ...` a row of `targets` [N, L]."""
    with path.open("w", encoding="ascii") as file:
        file.write("{} {}\n".format(*targets.shape))
        file.writelines(" ".join(f"{label}:1.0" for label in labels) + "\n" for labels in _rows(targets))


def write_pairs(pairs: scipy.sparse.csr_array, path: Path) -> None:
    """Write `row label` a line for each entry of `pairs` [N, L]."""
    with path.open("w", encoding="ascii") as file:
        for row, labels in enumerate(_rows(pairs)):
            file.writelines(f"{row} {label}\n" for label in labels)


def _rows(pairs: scipy.sparse.csr_array) -> Iterator[list[int]]:
    """The labels of each row."""
    return (pairs.indices[start:end].tolist() for start, end in pairwise(pairs.indptr.tolist()))
