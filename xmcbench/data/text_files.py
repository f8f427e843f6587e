"""Text files of datasets, plain or compressed: texts, and the repository's `label:value` rows and `row label` pairs.

A file is read in blocks of whole lines; an unreadable one is an error of one line. Inside a block nothing loops over
entries: the digits of all labels are read eight at a time as one integer, and all values in one conversion.
"""

from __future__ import annotations

import gzip
import lzma
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import scipy

from xmcbench.data.texts import PackedTexts
from xmcbench.errors import XMCBenchError

BLOCK_BYTES = 1 << 20  # enough for numpy to be fast, little enough for a processor's cache
MAX_LINE_BYTES = 1 << 24  # a longer line is an error: no dataset has one, a damaged or hostile file may


@dataclass(frozen=True)
class Block:
    """Whole lines of a file, each ended by a newline: `data` is uint8, `first_line` counts from 1."""

    path: Path | str  # the place in errors
    data: np.ndarray
    first_line: int
    offset: int  # bytes of the (uncompressed) file before it

    @cached_property
    def newlines(self) -> np.ndarray:
        return np.flatnonzero(self.data == ord("\n"))

    def error(self, position: int, found: str, expected: str) -> XMCBenchError:
        """What is wrong at byte `position` of the block, with its line in the file."""
        line = self.first_line + int(np.count_nonzero(self.data[:position] == ord("\n")))
        return XMCBenchError(f"{self.path}: line {line}: found {found}, expected {expected}")


def open_binary(path: Path) -> BinaryIO:
    """The uncompressed bytes of a plain, .gz or .xz file."""
    openers: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}
    return cast("BinaryIO", openers.get(path.suffix, Path.open)(path, "rb"))


def read_blocks(path: Path, block_bytes: int = BLOCK_BYTES, *, max_bytes: int | None = None) -> Iterator[Block]:
    """The lines of `path` in blocks; a last line without a newline is given one, a byte order mark is left out. An
    empty file yields nothing.

    A file of more than `max_bytes` uncompressed bytes is an error: reading stops there.
    """
    rest, line, offset = b"", 1, 0
    try:
        with open_binary(path) as file:
            while chunk := file.read(block_bytes):
                if not offset and not rest and chunk.startswith(BOM_UTF8):
                    chunk, offset = chunk.removeprefix(BOM_UTF8), len(BOM_UTF8)
                if max_bytes is not None and offset + len(rest) + len(chunk) > max_bytes:
                    raise XMCBenchError(f"{path}: found more than {max_bytes:,} bytes of text, expected at most that")
                end = chunk.find(b"\n")
                if len(rest) + (len(chunk) if end < 0 else end) > MAX_LINE_BYTES:
                    found = f"found a line of more than {MAX_LINE_BYTES:,} bytes"
                    raise XMCBenchError(f"{path}: line {line}: {found}, expected a shorter one")
                whole, newline, tail = chunk.rpartition(b"\n")
                if newline:
                    data = np.frombuffer(rest + whole + newline, np.uint8)
                    block = Block(path, data, line, offset)
                    yield block
                    line, offset, rest = line + len(block.newlines), offset + len(data), tail
                else:
                    rest += chunk
    except EOFError as error:
        raise XMCBenchError(f"{path}: found a file that ends early (truncated), expected a whole one") from error
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise XMCBenchError(f"{path}: found damaged compressed data ({error}), expected a whole file") from error
    except OSError as error:
        raise XMCBenchError(f"{path}: cannot be read ({error.strerror or error})") from error
    if rest:
        yield Block(path, np.frombuffer(rest + b"\n", np.uint8), line, offset)


def check_utf8(block: Block) -> None:
    """Raise where the block holds bytes that are not UTF-8, naming line and byte."""
    try:
        block.data.tobytes().decode()
    except UnicodeDecodeError as error:
        byte = f"byte 0x{int(block.data[error.start]):02x} at offset {block.offset + error.start}"
        raise block.error(error.start, byte, "UTF-8 text") from error


def read_texts(path: Path) -> PackedTexts:
    """One text a line; a line may be empty, the file not. A carriage return before the newline is dropped."""

    def lines() -> Iterator[bytes]:
        for block in read_blocks(path):
            check_utf8(block)
            yield from (line.removesuffix(b"\r") for line in block.data.tobytes().split(b"\n")[:-1])

    texts = PackedTexts.of_encoded(lines())
    if not len(texts):
        raise XMCBenchError(f"{path}: found an empty file, expected one text a line")
    return texts


MAX_DIGITS = 18  # any integer of so many digits fits int64
MAX_VALUE = 64  # characters of a value
ENTRY = "label:value"


def binary_csr(indptr: np.ndarray, indices: np.ndarray, values: np.ndarray, num_labels: int) -> scipy.sparse.csr_array:
    """The matrix [len(indptr) - 1, num_labels] of ones where a value is not zero, indices sorted and unique."""
    indices, starts = np.asarray(indices), np.asarray(indptr)
    if not (nonzero := values != 0).all():
        indices, starts = indices[nonzero], np.append(0, np.cumsum(nonzero))[starts]
    shape = len(indptr) - 1, num_labels
    kind = np.dtype("int32" if max(*shape, len(indices)) <= np.iinfo(np.int32).max else "int64")
    # Both of one type: otherwise scipy copies the indices to the wider one.
    parts = (np.ones(len(indices), np.float32), indices.astype(kind, copy=False), starts.astype(kind, copy=False))
    matrix = scipy.sparse.csr_array(parts, shape=shape)
    matrix.sum_duplicates()
    matrix.data[:] = 1.0
    return matrix


def pairs_csr(rows: np.ndarray, labels: np.ndarray, shape: tuple[int, int]) -> scipy.sparse.csr_array:
    """The matrix of ones at `(rows[i], labels[i])`; a pair given twice counts once."""
    order = np.argsort(rows, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=shape[0]))])
    return binary_csr(indptr, labels[order], np.ones(len(rows), np.float32), shape[1])


def no_pairs(shape: tuple[int, int]) -> scipy.sparse.csr_array:
    """The matrix of that shape without entries."""
    return pairs_csr(np.zeros(0, np.int64), np.zeros(0, np.int64), shape)


@dataclass(frozen=True)
class Rows:
    """The entries of a file, row after row: `counts` [N] per row, `labels` [E], both integers, `values` float64 [E]."""

    header: tuple[int, int] | None  # rows and labels, where the file says so
    counts: np.ndarray
    labels: np.ndarray
    values: np.ndarray


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
    rows = Rows(header, *(_joined(columns) for columns in zip(*parts, strict=True)))
    if header and len(rows.counts) != header[0]:
        raise XMCBenchError(
            f"{path}: line 1: found a header of {header[0]} rows, expected {len(rows.counts)}, the number that follow"
        )
    return rows


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The parts end to end; one value that all of them repeat stays one value in memory."""
    one = parts[0][:1]
    if all(part.strides == (0,) and np.array_equal(part[:1], one) for part in parts):
        return np.broadcast_to(one, sum(len(part) for part in parts))
    return np.concatenate(parts)


def read_targets(path: Path) -> scipy.sparse.csr_array:
    """Read the rows of `path`, which begins with a header, into a matrix of ones where a value is not zero."""
    rows = read_rows(path)
    assert rows.header is not None
    indptr = np.concatenate([[0], np.cumsum(rows.counts)])
    return binary_csr(indptr, rows.labels, rows.values, rows.header[1])


def read_pairs(path: Path, shape: tuple[int, int]) -> scipy.sparse.csr_array:
    """Read `row label` a line into a matrix of ones; the file may be empty."""
    pairs = [np.zeros(0, np.int64)]
    for block in read_blocks(path):
        starts, ends, counts = _tokens(block)
        if len(wrong := np.flatnonzero(counts != 2)):
            position = int(np.concatenate([[0], block.newlines + 1])[wrong[0]])
            raise block.error(position, _line(block, position), "two integers 'row label'")
        numbers = _integers(block, starts, ends, "an integer")
        for column, (name, limit) in enumerate(zip(("row", "label"), shape, strict=True)):
            _check_range(block, starts[column::2], numbers[column::2], name, limit)
        pairs.append(numbers)
    rows, labels = np.concatenate(pairs).reshape(-1, 2).T
    return pairs_csr(rows, labels, shape)


def _header(block: Block) -> tuple[int, int]:
    fields = block.data[: block.newlines[0]].tobytes().split()
    if len(fields) != 2 or not all(field.isdigit() and len(field) <= MAX_DIGITS for field in fields):
        raise block.error(0, _line(block, 0), "a header 'rows labels' of two integers")
    return int(fields[0]), int(fields[1])


def _entries(block: Block, num_labels: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Number of entries per row, and the label and value of each entry."""
    starts, ends, counts = _tokens(block)
    colons = np.flatnonzero(block.data == ord(":"))
    # One colon inside each token: both are in ascending order, so the two lists fit place by place.
    if len(colons) != len(starts) or bool(((colons <= starts) | (colons >= ends)).any()):
        first, after = np.searchsorted(colons, starts), np.searchsorted(colons, ends)
        place = np.append(colons, len(block.data))[first]
        # The first token without exactly one colon, or with an empty label or value.
        wrong = int(np.argmax((after - first != 1) | (place <= starts) | (place >= ends)))
        raise block.error(int(starts[wrong]), _text(block, starts[wrong], ends[wrong]), ENTRY)
    labels = _integers(block, starts, colons, ENTRY)
    _check_range(block, starts, labels, "label", num_labels)
    if num_labels <= np.iinfo(np.int32).max:
        labels = labels.astype(np.int32)
    return counts, labels, _values(block, colons + 1, ends)


def _tokens(block: Block) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The starts and ends of the runs of non-blank bytes, and the number of runs per line."""
    data = block.data
    blank = np.empty(len(data) + 2, bool)
    blank[0] = blank[-1] = True
    np.less_equal(data, ord(" "), out=blank[1:-1])
    if np.count_nonzero(data < ord(" ")) > len(block.newlines):  # control characters other than line ends
        blank[1:-1] &= (data == ord(" ")) | (data == ord("\n")) | (data == ord("\t")) | (data == ord("\r"))
    edges = np.flatnonzero(blank[1:] != blank[:-1])
    starts = edges[0::2]
    return starts, edges[1::2], np.diff(np.searchsorted(starts, block.newlines), prepend=0)


def _integers(block: Block, starts: np.ndarray, ends: np.ndarray, expected: str) -> np.ndarray:
    """The integers whose digits lie between `starts` and `ends`, int64."""
    lengths = ends - starts
    wrong = (lengths < 1) | (lengths > MAX_DIGITS)
    # The last eight digits of each number, then the eight before these, and so on.
    padded = np.concatenate([np.zeros(_WORD, np.uint8), block.data])
    numbers = np.zeros(len(starts), np.int64)
    for power in range(0, min(int(lengths.max(initial=0)), MAX_DIGITS), _WORD):
        words, bad = _eight_digits(padded, ends - power, np.clip(lengths - power, 0, _WORD))
        numbers += words * 10**power
        wrong |= bad
    if wrong.any():
        first = int(np.argmax(wrong))
        raise block.error(int(starts[first]), _text(block, starts[first], ends[first]), f"{expected}, digits alone")
    return numbers


_WORD = 8  # digits read at a time


def _eight_digits(padded: np.ndarray, ends: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of `counts` (at most eight) digits that end before `ends`, int64, and where a byte is no digit.

    `padded` is the text after eight more bytes. Eight bytes are read as one integer, whose digits are added up in three
    steps: pairs of digits, fours, eights (Lemire, "Quickly parsing eight digits", 2018).
    """
    windows = np.ndarray(len(padded) - _WORD + 1, "<u8", padded, strides=(1,))
    words = windows[np.maximum(ends, 0)]
    words ^= np.uint64(0x3030303030303030)
    unused = ((_WORD - np.maximum(counts, 1)) * 8).view(np.uint64)
    words >>= unused
    words <<= unused  # the first character is the lowest byte
    words[counts == 0] = 0
    bad = words + np.uint64(0x7676767676767676)
    bad |= words
    bad &= np.uint64(0x8080808080808080)
    words *= np.uint64(10 * 2**8 + 1)
    words >>= np.uint64(8)
    words &= np.uint64(0x00FF00FF00FF00FF)
    words *= np.uint64(100 * 2**16 + 1)
    words >>= np.uint64(16)
    words &= np.uint64(0x0000FFFF0000FFFF)
    words *= np.uint64(10000 * 2**32 + 1)
    words >>= np.uint64(32)
    return words.view(np.int64), bad != 0


def _values(block: Block, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The numbers between `starts` and `ends`, float64; one string that all values share is read once."""
    count = len(starts)
    lengths = ends - starts
    width = int(lengths.max(initial=1))
    if len(starts) and width <= _WORD and bool((lengths == width).all()):
        padded = np.concatenate([block.data, np.zeros(_WORD, np.uint8)])
        unused = np.uint64((_WORD - width) * 8)
        words = np.ndarray(len(block.data) + 1, "<u8", padded, strides=(1,))[starts] << unused
        if bool((words == words[0]).all()):
            starts, ends, lengths = starts[:1], ends[:1], lengths[:1]
    if width > MAX_VALUE:
        position = int(starts[np.argmax(lengths)])
        raise block.error(position, f"a value of {width:,} characters", f"{ENTRY} with at most {MAX_VALUE}")
    columns = np.arange(width)
    live = columns < lengths[:, None]
    # A zero byte fills up short values: fixed-width strings compare as if it were not there.
    letters = np.where(live, block.data[np.where(live, starts[:, None] + columns, 0)], 0).astype(np.uint8)
    strings = np.ascontiguousarray(letters).view(f"S{width}").ravel()
    try:
        numbers = strings.astype(np.float64)
    except ValueError:
        numbers = np.array([_number(string) for string in strings])
    if not (finite := np.isfinite(numbers)).all():
        first = int(np.argmin(finite))
        value_text = repr(strings[first].decode(errors="replace"))
        raise block.error(int(starts[first]), value_text, f"{ENTRY} with a finite number as value")
    return np.broadcast_to(numbers, count) if len(strings) == 1 else numbers


def _number(string: bytes) -> float:
    try:
        return float(string)
    except ValueError:
        return np.nan


def _check_range(block: Block, starts: np.ndarray, numbers: np.ndarray, name: str, limit: int) -> None:
    if len(beyond := np.flatnonzero(numbers >= limit)):
        raise block.error(int(starts[beyond[0]]), f"{name} {numbers[beyond[0]]}", f"0 to {limit - 1}")


def _text(block: Block, start: int, end: int) -> str:
    """The text from `start` to `end`, at most 40 bytes, for an error message."""
    return repr(block.data[start : min(end, start + 40)].tobytes().decode(errors="replace"))


def _line(block: Block, position: int) -> str:
    return _text(block, position, int(block.newlines[np.searchsorted(block.newlines, position)]))
