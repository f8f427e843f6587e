"""The repository's sparse text: `label:value` rows and `row label` pairs, parsed as arrays of bytes.

A file is walked in blocks of whole lines. Inside a block nothing loops over entries: entries begin after white space,
their digits are read a decimal place at a time over all entries at once, and all values in one conversion.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from xmcbench.data.blocks import Block, read_blocks
from xmcbench.errors import XMCBenchError

MAX_DIGITS = 18  # any integer of so many digits fits int64
MAX_VALUE = 64  # characters of a value
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


@dataclass(frozen=True)
class Rows:
    """The entries of a file, row after row: `counts` int64 [N] per row, `labels` int64 [E], `values` float64 [E]."""

    header: tuple[int, int] | None  # rows and labels, where the file says so
    counts: np.ndarray
    labels: np.ndarray
    values: np.ndarray

    @property
    def indptr(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.counts)])


def read_rows(path: Path, num_labels: int | None = None, max_bytes: int | None = None) -> Rows:
    """Read `label:value ...` a row, where an empty line is a row without labels, after a header `rows labels`.

    Where `num_labels` is given, the header may be missing.
    """
    header: tuple[int, int] | None = None
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for block in read_blocks(path, max_bytes=max_bytes):
        first_line = block.data[: block.newlines[0]].tobytes()
        if not parts and (num_labels is None or (first_line.strip() and b":" not in first_line)):
            header = _header(block)
            first = int(block.newlines[0]) + 1
            block = Block(path, block.data[first:], block.first_line + 1, block.offset + first)
        parts.append(_entries(block, header[1] if header else num_labels or 0))
    if not parts:
        raise XMCBenchError(f"{path}: found an empty file, expected a header 'rows labels'")
    rows = Rows(header, *(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    if header and len(rows.counts) != header[0]:
        raise XMCBenchError(
            f"{path}: line 1: found a header of {header[0]} rows, expected {len(rows.counts)}, as many as follow"
        )
    return rows


def read_targets(path: Path) -> sp.csr_array:
    """Read the rows of `path`, which begins with a header, into a matrix of ones where a value is not zero."""
    rows = read_rows(path)
    assert rows.header is not None
    return binary_csr(rows.indptr, rows.labels, rows.values, rows.header[1])


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
    """The numbers between `starts` and `ends`, float64; one string that all values share is read once."""
    lengths = ends - starts
    width = int(lengths.max(initial=1))
    if width > MAX_VALUE:
        position = int(starts[np.argmax(lengths)])
        raise block.error(position, f"a value of {width:,} characters", f"{ENTRY} with at most {MAX_VALUE}")
    columns = np.arange(width)
    live = columns < lengths[:, None]
    # A zero byte fills up short values: fixed-width strings compare as if it were not there.
    letters = np.where(live, block.data[np.where(live, starts[:, None] + columns, 0)], 0).astype(np.uint8)
    strings = np.ascontiguousarray(letters).view(f"S{width}").ravel()
    if len(strings) and (strings == strings[0]).all():
        strings = strings[:1]
    try:
        numbers = strings.astype(np.float64)
    except ValueError:
        numbers = np.array([_number(string) for string in strings])
    if not (finite := np.isfinite(numbers)).all():
        first = int(np.argmin(finite))
        found = repr(strings[first].decode(errors="replace"))
        raise block.error(int(starts[first]), found, f"{ENTRY} with a finite number as value")
    return np.broadcast_to(numbers, len(starts)) if len(strings) == 1 else numbers


def _number(string: bytes) -> float:
    try:
        return float(string)
    except ValueError:
        return np.nan


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
