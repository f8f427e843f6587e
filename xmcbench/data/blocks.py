"""Files read a block of whole lines at a time, plain or gzip; an unreadable one is an error of one line."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from xmcbench.data.texts import PackedTexts
from xmcbench.errors import XMCBenchError

BLOCK_BYTES = 1 << 20  # enough for numpy to be fast, little enough for a processor's cache
MAX_LINE_BYTES = 1 << 24  # a longer line is an error: no dataset has one, a damaged or hostile file may


@dataclass(frozen=True)
class Block:
    """Whole lines of a file, each ended by a newline: `data` is uint8, `first_line` counts from 1."""

    path: Path
    data: np.ndarray
    first_line: int
    offset: int  # bytes of the (uncompressed) file before it

    @cached_property
    def newlines(self) -> np.ndarray:
        return np.flatnonzero(self.data == ord("\n"))

    def line_of(self, position: int) -> int:
        """The line number in the file of byte `position` of the block."""
        return self.first_line + int(np.count_nonzero(self.data[:position] == ord("\n")))

    def error(self, position: int, found: str, expected: str) -> XMCBenchError:
        return XMCBenchError(f"{self.path}: line {self.line_of(position)}: found {found}, expected {expected}")


def open_binary(path: Path) -> BinaryIO:
    """The uncompressed bytes of a plain, .gz or .xz file."""
    if path.suffix == ".gz":
        return cast("BinaryIO", gzip.open(path, "rb"))
    if path.suffix == ".xz":
        return cast("BinaryIO", lzma.open(path, "rb"))
    return path.open("rb")


def read_blocks(path: Path, block_bytes: int = BLOCK_BYTES, *, max_bytes: int | None = None) -> Iterator[Block]:
    """The lines of `path` in blocks; a last line without a newline is given one. An empty file yields nothing.

    A file of more than `max_bytes` uncompressed bytes is an error: reading stops there.
    """
    rest, line, offset = b"", 1, 0
    try:
        with open_binary(path) as file:
            while chunk := file.read(block_bytes):
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
    parts: list[np.ndarray] = []
    lengths: list[np.ndarray] = []
    for block in read_blocks(path):
        check_utf8(block)
        ends = block.newlines
        returns = ends[(ends > 0) & (block.data[ends - 1] == ord("\r"))] - 1
        keep = np.ones(len(block.data), bool)
        keep[ends] = keep[returns] = False
        parts.append(block.data[keep])
        kept_before = np.cumsum(keep)[ends]
        lengths.append(np.diff(kept_before, prepend=0))
    if not parts:
        raise XMCBenchError(f"{path}: found an empty file, expected one text a line")
    return PackedTexts.from_lengths(np.concatenate(parts), np.concatenate(lengths))
