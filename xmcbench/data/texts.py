"""Texts packed into one array of bytes: millions of texts need no Python list, and open from a file at once."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import overload

import numpy as np
import xxhash

AT_ONCE = 8192  # texts of a batch, at most
BATCH_BYTES = 2**20  # of a batch of texts, about: a tokenizer takes 10 to 200 times as much before it cuts them
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
        words = list(self)
        return PackedTexts.of(" ".join([words[i] for i in row.tolist() if i >= 0]) for row in ids)


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
    _, place, counts = np.unique(texts.hashes(), return_inverse=True, return_counts=True)
    equal: np.ndarray = (counts[place] > 1) & (texts.lengths > 0)
    return equal
