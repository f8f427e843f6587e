"""The repository's sparse text: `label:value` rows and `row label` pairs, parsed as arrays of bytes.

A file is walked in blocks of whole lines. Inside a block nothing loops over entries: entries begin after white space,
their digits are read a decimal place at a time over all entries at once, and the few different value strings are read
once each.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.sparse as sp

from xmcbench.data.blocks import Block, read_blocks
from xmcbench.errors import XMCBenchError

MAX_DIGITS = 18  # any integer of so many digits fits int64
ENTRY = "label:value"


def binary_csr(indptr: np.ndarray, indices: np.ndarray, values: np.ndarray, num_labels: int) -> sp.csr_array:
    """The matrix [len(indptr) - 1, num_labels] of ones where a value is not zero, indices sorted and unique."""
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    kept = values != 0
    counts = np.bincount(rows[kept], minlength=len(indptr) - 1)
    starts = np.concatenate([[0], np.cumsum(counts)])
    parts = (np.ones(kept.sum(), np.float32), np.asarray(indices)[kept], starts)
    matrix = sp.csr_array(parts, shape=(len(indptr) - 1, num_labels))
    matrix.sum_duplicates()
    matrix.data[:] = 1.0
    return matrix


def pairs_csr(rows: np.ndarray, labels: np.ndarray, shape: tuple[int, int]) -> sp.csr_array:
    """The matrix of ones at `(rows[i], labels[i])`; a pair given twice counts once."""
    order = np.argsort(rows, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=shape[0]))])
    return binary_csr(indptr, labels[order], np.ones(len(rows), np.float32), shape[1])


def no_pairs(shape: tuple[int, int]) -> sp.csr_array:
    """The matrix of that shape without entries."""
    return pairs_csr(np.zeros(0, np.int64), np.zeros(0, np.int64), shape)


def read_targets(path: Path) -> sp.csr_array:
    """Read `rows labels` and then `label:value ...` a row, where an empty line is a row without labels."""
    shape: tuple[int, int] | None = None
    counts: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    values: list[np.ndarray] = []
    for block in read_blocks(path):
        if shape is None:
            shape = _header(block)
            first = int(block.newlines[0]) + 1
            block = Block(path, block.data[first:], block.first_line + 1, block.offset + first)
        block_counts, block_labels, block_values = _entries(block, shape[1])
        counts.append(block_counts)
        labels.append(block_labels)
        values.append(block_values)
    if shape is None:
        raise XMCBenchError(f"{path}: found an empty file, expected a header 'rows labels'")
    per_row = np.concatenate(counts)
    if len(per_row) != shape[0]:
        raise XMCBenchError(
            f"{path}: line 1: found a header of {shape[0]} rows, expected {len(per_row)}, as many as follow"
        )
    indptr = np.concatenate([[0], np.cumsum(per_row)])
    return binary_csr(indptr, np.concatenate(labels), np.concatenate(values), shape[1])


def read_pairs(path: Path, shape: tuple[int, int]) -> sp.csr_array:
    """Read `row label` a line into a matrix of ones; the file may be empty."""
    rows: list[np.ndarray] = [np.zeros(0, np.int64)]
    labels: list[np.ndarray] = [np.zeros(0, np.int64)]
    for block in read_blocks(path):
        starts, ends, line = _tokens(block)
        wrong = np.flatnonzero(np.bincount(line, minlength=len(block.newlines)) != 2)
        if len(wrong):
            position = int(np.concatenate([[0], block.newlines + 1])[wrong[0]])
            raise block.error(position, _line(block, position), "two integers 'row label'")
        numbers = _integers(block, starts, ends, "an integer")
        for column, (name, limit) in enumerate(zip(("row", "label"), shape, strict=True)):
            _check_range(block, starts[column::2], numbers[column::2], name, limit)
        rows.append(numbers[0::2])
        labels.append(numbers[1::2])
    return pairs_csr(np.concatenate(rows), np.concatenate(labels), shape)


def _header(block: Block) -> tuple[int, int]:
    line = _line(block, 0)
    fields = block.data[: block.newlines[0]].tobytes().split()
    if len(fields) != 2 or not all(field.isdigit() and len(field) <= MAX_DIGITS for field in fields):
        raise block.error(0, line, "a header 'rows labels' of two integers")
    return int(fields[0]), int(fields[1])


def _entries(block: Block, num_labels: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Entries a row, and the label and value of each entry."""
    starts, ends, line = _tokens(block)
    colons = np.flatnonzero(block.data == ord(":"))
    inside = np.searchsorted(colons, starts)  # the first colon at or after each entry
    padded = np.append(colons, len(block.data))
    colon = padded[inside]
    wrong = np.flatnonzero((colon >= ends) | (padded[np.minimum(inside + 1, len(colons))] < ends))
    if len(wrong):
        first = wrong[0]
        raise block.error(int(starts[first]), _text(block, starts[first], ends[first]), ENTRY)
    labels = _integers(block, starts, colon, ENTRY)
    _check_range(block, starts, labels, "label", num_labels)
    return np.bincount(line, minlength=len(block.newlines)), labels, _values(block, colon + 1, ends)


def _tokens(block: Block) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where each run of non-blank bytes starts and ends, and the index within the block of the line it lies in."""
    blank = np.isin(block.data, np.frombuffer(b" \t\r\n", np.uint8))
    edges = np.flatnonzero(np.diff(np.concatenate([[True], blank, [True]])))
    starts, ends = edges[0::2], edges[1::2]
    return starts, ends, np.searchsorted(block.newlines, starts)


def _integers(block: Block, starts: np.ndarray, ends: np.ndarray, expected: str) -> np.ndarray:
    """The integers whose digits lie between `starts` and `ends`, int64."""
    lengths = ends - starts
    numbers = np.zeros(len(starts), np.int64)
    wrong = (lengths < 1) | (lengths > MAX_DIGITS)
    for place in range(min(int(lengths.max(initial=0)), MAX_DIGITS)):
        live = place < lengths
        digits = block.data[np.where(live, starts + place, 0)].astype(np.int64) - ord("0")
        wrong |= live & ((digits < 0) | (digits > 9))
        numbers = np.where(live, numbers * 10 + digits, numbers)
    if wrong.any():
        first = int(np.argmax(wrong))
        raise block.error(int(starts[first]), _text(block, starts[first], ends[first]), f"{expected}, digits alone")
    return numbers


def _values(block: Block, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The numbers between `starts` and `ends`, float64; values are few different strings, each read once."""
    lengths = ends - starts
    width = int(lengths.max(initial=1))
    columns = np.arange(width)
    live = columns < lengths[:, None]
    # A zero byte fills up short values: fixed-width strings compare as if it were not there.
    letters = np.where(live, block.data[np.where(live, starts[:, None] + columns, 0)], 0).astype(np.uint8)
    strings = np.ascontiguousarray(letters).view(f"S{width}").ravel()
    if len(strings) and (strings == strings[0]).all():
        unique, first, inverse = strings[:1], np.zeros(1, np.int64), np.zeros(len(strings), np.int64)
    else:
        unique, first, inverse = np.unique(strings, return_index=True, return_inverse=True)
    numbers = np.zeros(len(unique))
    for i, string in enumerate(unique):
        try:
            numbers[i] = float(string)
        except ValueError:
            numbers[i] = np.nan
        if not np.isfinite(numbers[i]):
            position = int(starts[first[i]])
            raise block.error(position, repr(string.decode(errors="replace")), f"{ENTRY} with a finite number as value")
    return numbers[inverse]


def _check_range(block: Block, starts: np.ndarray, numbers: np.ndarray, name: str, limit: int) -> None:
    beyond = np.flatnonzero(numbers >= limit)
    if len(beyond):
        first = beyond[0]
        raise block.error(int(starts[first]), f"{name} {numbers[first]}", f"0 to {limit - 1}")


def _text(block: Block, start: int, end: int) -> str:
    """What lies there, short enough for a message."""
    return repr(block.data[start : min(end, start + 40)].tobytes().decode(errors="replace"))


def _line(block: Block, position: int) -> str:
    newlines = block.newlines
    return _text(block, position, int(newlines[np.searchsorted(newlines, position)]))
