"""Texts packed into one array of bytes: millions of texts need no Python list, and open from a file at once."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, overload

import numpy as np
import xxhash

AT_ONCE = 8192  # texts of a batch, at most
BATCH_BYTES = 2**20  # of a batch of texts, about: a tokenizer takes 10 to 200 times as much before it cuts them
BLOCK = 2**18  # texts that are made or read together, at most, where not all are wanted in memory
PIECE = 2**16  # characters of a piece of a long text, at most, where it has spaces


class PackedTexts(Sequence[str]):
    """A sequence of n texts: their UTF-8 bytes end to end, and int64 `offsets` [n + 1] where each begins.

    The constructor does not check that every text is valid UTF-8; the classmethods do.

    >>> texts = PackedTexts.of(["ärmel", "", "hut"])
    >>> texts[0], texts[-1], list(texts[1:])
    ('ärmel', 'hut', ['', 'hut'])
    """

    def __init__(self, data: np.ndarray, offsets: np.ndarray) -> None:
        fit = offsets.ndim == 1 and len(offsets) >= 1 and offsets[0] == 0 and offsets[-1] == len(data)
        if not fit or bool((offsets[1:] < offsets[:-1]).any()):
            raise ValueError(f"offsets {offsets.shape} do not fit {len(data)} bytes")
        self.data = data
        self.offsets = offsets

    @classmethod
    def of(cls, texts: Iterable[str]) -> PackedTexts:
        """Pack `texts`. Raises UnicodeEncodeError for half a surrogate pair, which UTF-8 cannot encode."""
        if isinstance(texts, PackedTexts):
            return texts
        if isinstance(texts, TextBlocks):
            return texts[:]
        return cls.of_encoded(text.encode() for text in texts)

    @classmethod
    def of_encoded(cls, texts: Iterable[bytes | memoryview]) -> PackedTexts:
        """Pack texts that are UTF-8 already."""
        data, lengths = bytearray(), array("q")
        for text in texts:
            data += text
            lengths.append(len(text))
        return cls.from_lengths(np.frombuffer(data, np.uint8), np.frombuffer(lengths, np.int64))

    @classmethod
    def from_lengths(cls, data: np.ndarray, lengths: np.ndarray) -> PackedTexts:
        """Texts that lie end to end in `data` (uint8, valid UTF-8), each `lengths[i]` bytes long."""
        return cls(data, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64))

    @classmethod
    def open(cls, stem: Path) -> PackedTexts:
        """The texts that `save` wrote, memory-mapped."""
        data = np.load(stem.with_name(stem.name + ".bytes.npy"), mmap_mode="r", allow_pickle=False)
        return cls(data, np.load(stem.with_name(stem.name + ".offsets.npy"), mmap_mode="r", allow_pickle=False))

    def save(self, stem: Path) -> None:
        """Write `<stem>.bytes.npy` and `<stem>.offsets.npy`."""
        np.save(stem.with_name(stem.name + ".bytes.npy"), self.data)
        np.save(stem.with_name(stem.name + ".offsets.npy"), self.offsets)

    @property
    def lengths(self) -> np.ndarray:
        """Length of each text in bytes, int64 [n]."""
        return np.diff(self.offsets)

    @property
    def nbytes(self) -> int:
        """The bytes that `save` writes."""
        return int(self.data.nbytes + self.offsets.nbytes)

    def hashes(self) -> np.ndarray:
        """The XXH3 hash of each text, uint64 [n]: equal for equal texts."""
        return np.fromiter(map(xxhash.xxh3_64_intdigest, self._encoded()), np.uint64, len(self))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[str]:
        return (str(text, "utf-8") for text in self._encoded())

    def _encoded(self) -> Iterator[memoryview]:
        data = self.data.data
        return (data[begin:end] for begin, end in pairwise(np.asarray(self.offsets)))

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> PackedTexts: ...
    def __getitem__(self, index: int | slice) -> str | PackedTexts:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return self.take(np.arange(start, stop, step))
            offsets = self.offsets[start : max(start, stop) + 1]
            return PackedTexts(self.data[offsets[0] : offsets[-1]], offsets - offsets[0])
        if not -len(self) <= index < len(self):
            raise IndexError(f"text {index} of {len(self)}")
        i = index % len(self)
        return self.data[self.offsets[i] : self.offsets[i + 1]].tobytes().decode()

    def take(self, ids: np.ndarray) -> PackedTexts:
        """A copy of the texts `ids` [m], in that order."""
        data, begins, ends = self.data.data, self.offsets[:-1][ids], self.offsets[1:][ids]
        return PackedTexts.of_encoded(data[begin:end] for begin, end in zip(begins, ends, strict=True))

    def join_rows(self, ids: np.ndarray) -> PackedTexts:
        """One text per row of `ids` [n, width]: the words with these ids, separated by spaces; -1 is no word.

        >>> joined = PackedTexts.of(["red", "hat"]).join_rows(np.array([[0, 1], [1, -1]]))
        >>> joined[0]
        'red hat'
        """
        parts = [_joined(self._padded, self.lengths, ids[part]) for part in blocks(len(ids), AT_ONCE)]
        data, lengths = zip(*parts, strict=True) if parts else ((np.empty(0, np.uint8),), (np.empty(0, np.int64),))
        return PackedTexts.from_lengths(np.concatenate(data), np.concatenate(lengths))

    @cached_property
    def _padded(self) -> np.ndarray:
        """The bytes of each text and a space, uint8 [n, longest + 1], with more spaces up to the longest."""
        padded = np.full((len(self), int(self.lengths.max(initial=0)) + 1), ord(" "), np.uint8)
        padded[np.arange(padded.shape[1]) < self.lengths[:, None]] = self.data
        return padded


def _joined(words: np.ndarray, lengths: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of the texts of `join_rows`, and how many each has; `words` are padded."""
    there = ids >= 0
    last = there & (np.cumsum(there[:, ::-1], axis=1)[:, ::-1] == 1)
    taken = np.where(there, lengths[ids] + ~last, 0)  # bytes of each word, and the space after it
    data: np.ndarray = words[ids][np.arange(words.shape[1]) < taken[..., None]]
    return data, taken.sum(axis=1)


class TextBlocks(Sequence[str]):
    """`n` texts that `make` makes from a slice of them, whenever they are asked for: not all have to be in memory."""

    def __init__(self, n: int, make: Callable[[slice], PackedTexts]) -> None:
        self._n = n
        self._make = make

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[str]:
        return (text for block in self.blocks() for text in block)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> PackedTexts: ...
    def __getitem__(self, index: int | slice) -> str | PackedTexts:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._n)
            return self._make(slice(start, max(start, stop)))[::step]
        if not -self._n <= index < self._n:
            raise IndexError(f"text {index} of {self._n}")
        return self._make(slice(index % self._n, index % self._n + 1))[0]

    def blocks(self) -> Iterator[PackedTexts]:
        """All texts, `BLOCK` at a time."""
        return map(self._make, blocks(self._n))

    @property
    def nbytes(self) -> int:
        """About how many bytes `save` writes, by the first block."""
        first = self[: min(self._n, AT_ONCE)]
        return int(first.data.nbytes / max(1, len(first)) * self._n) + 8 * (self._n + 1)

    def save(self, stem: Path) -> None:
        """Write what `PackedTexts.save` would write of all texts, a block at a time."""
        lengths, size, file_of = [np.zeros(1, np.int64)], 0, stem.with_name(stem.name + ".bytes.npy")
        with file_of.open("wb") as file:
            _write_header(file, 0)
            for block in self.blocks():
                file.write(np.ascontiguousarray(block.data).data)
                lengths.append(block.lengths)
                size += len(block.data)
            file.seek(0)
            _write_header(file, size)
        np.save(stem.with_name(stem.name + ".offsets.npy"), np.cumsum(np.concatenate(lengths)))


def _write_header(file: BinaryIO, size: int) -> None:
    """The head of an array of `size` bytes as numpy writes it: as long for every size."""
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (size,)})


def blocks(n: int, size: int | None = None) -> Iterator[slice]:
    """Slices of at most `size`, or else of `BLOCK`, that cover 0..n-1 in order.

    >>> list(blocks(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = size or BLOCK
    return (slice(start, min(start + step, n)) for start in range(0, n, step))


class TextSubset(PackedTexts):
    """The texts `ids` [m] of `whole`, in that order. Tokenizers and token caches are made of `whole`."""

    def __init__(self, whole: PackedTexts, ids: np.ndarray) -> None:
        taken = whole.take(ids)
        super().__init__(taken.data, taken.offsets)
        self.whole = whole
        self.ids = ids


def take(texts: Sequence[str], ids: np.ndarray) -> Sequence[str]:
    """The texts `ids` [m] of any sequence, in that order."""
    if isinstance(texts, PackedTexts):
        return texts.take(ids)
    return [texts[int(i)] for i in ids]


def head(text: str, size: int) -> str:
    """The text up to its last space or line end within `size` characters; all of it where it has none there.

    >>> head("red hat", 6), head("red hat", 7), head("red hat", 2)
    ('red', 'red hat', 'red hat')
    """
    if len(text) <= size:
        return text
    end = max(text.rfind(" ", 1, size), text.rfind("\n", 1, size))
    return text if end < 0 else text[:end]


def in_pieces(texts: Iterable[str]) -> Iterator[str]:
    """The texts, long ones in pieces that begin with a space or a line end: their words are the same."""
    for text in texts:
        rest = text
        while len(part := head(rest, PIECE)) < len(rest):
            yield part
            rest = rest[len(part) :]
        yield rest


def batches(texts: Iterable[str], size: int = AT_ONCE) -> Iterator[list[str]]:
    """The texts as lists of at most `size` texts, and of about a megabyte: fewer texts where they are long."""
    batch: list[str] = []
    room = BATCH_BYTES
    for text in texts:
        batch.append(text)
        room -= len(text)
        if len(batch) == size or room <= 0:
            yield batch
            batch, room = [], BATCH_BYTES
    if batch:
        yield batch


def repeated(texts: PackedTexts) -> np.ndarray:
    """Which texts another one equals, bool [N]; empty texts do not count.

    >>> repeated(PackedTexts.of(["a", "b", "a", "", ""])).tolist()
    [True, False, True, False, False]
    """
    _, which, counts = np.unique(texts.hashes(), return_inverse=True, return_counts=True)
    equal: np.ndarray = (counts[which] > 1) & (texts.lengths > 0)
    return equal
