"""Writes a dataset as the raw text of the Extreme Classification Repository, which other programs read.

Numbers are written as arrays of bytes: a table holds the characters of every number once, and the file is the rows of
that table, picked and packed. Nothing loops over entries. Legend: T tokens of a table, W the longest in bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import scipy

from xmcbench.data.dataset import Dataset
from xmcbench.data.formats import IGNORE_FILES
from xmcbench.data.texts import batches
from xmcbench.errors import XMCBenchError
from xmcbench.files.atomic import atomic_directory

AT_ONCE = 1 << 20  # entries written at a time


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
    num_rows, num_labels = targets.shape
    table_TW = np.append(_numbers(num_labels, b":1.0 "), b"\n")
    with path.open("wb") as file:
        file.write(b"%d %d\n" % (num_rows, num_labels))
        for first, last in _row_blocks(targets.indptr):
            offsets = targets.indptr[first : last + 1]
            empty = offsets[:-1][np.diff(offsets) == 0] - offsets[0]
            tokens = np.insert(targets.indices[offsets[0] : offsets[-1]], empty, num_labels)  # a line end for each
            counts = np.maximum(np.diff(offsets), 1)
            _write_lines(file, table_TW, tokens, np.cumsum(counts))


def write_pairs(pairs: scipy.sparse.csr_array, path: Path) -> None:
    """Write `row label` a line for each entry of `pairs` [N, L]."""
    num_rows, num_labels = pairs.shape
    table_TW = _numbers(max(num_rows, num_labels), b" ")
    with path.open("wb") as file:
        for first, last in _row_blocks(pairs.indptr):
            counts = np.diff(pairs.indptr[first : last + 1])
            labels = pairs.indices[pairs.indptr[first] : pairs.indptr[last]]
            tokens = np.stack([np.repeat(np.arange(first, last), counts), labels], axis=1).ravel()
            _write_lines(file, table_TW, tokens, np.arange(2, len(tokens) + 1, 2))


def _numbers(count: int, after: bytes) -> np.ndarray:
    """The numbers below `count` as text, each followed by `after`."""
    width = len(str(count)) + len(after)
    table = np.zeros((count, width), np.uint8)
    first, digits = 0, 1
    while first < count:
        numbers = np.arange(first, min(10**digits, count))
        same_length = table[first : 10**digits]
        for place in reversed(range(digits)):
            numbers, digit = np.divmod(numbers, 10)
            same_length[:, place] = digit + ord("0")
        same_length[:, digits : digits + len(after)] = list(after)
        first, digits = 10**digits, digits + 1
    return table.view(f"S{width}").ravel()


def _row_blocks(indptr: np.ndarray) -> Iterator[tuple[int, int]]:
    """First and last row (not included) of blocks with about `AT_ONCE` entries and at most as many rows."""
    first, num_rows = 0, len(indptr) - 1
    while first < num_rows:
        last = int(np.searchsorted(indptr, indptr[first] + AT_ONCE, side="right")) - 1
        last = min(max(last, first + 1), first + AT_ONCE, num_rows)
        yield first, last
        first = last


def _write_lines(file: BinaryIO, table_TW: np.ndarray, tokens: np.ndarray, ends: np.ndarray) -> None:
    """Write rows `tokens` of the table. A line has the tokens before its end in `ends`; its last byte is a newline."""
    picked = table_TW.take(tokens)
    text = picked.view(np.uint8)
    text = text[text != 0]  # numpy fills up shorter strings with zeros
    text[np.cumsum(np.strings.str_len(picked))[ends - 1] - 1] = ord("\n")
    file.write(text)
