"""Texts as one array of bytes: two million of them need no Python list, and a file of them opens at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import overload

import numpy as np


class PackedTexts(Sequence[str]):
    """A sequence of n texts: their UTF-8 bytes end to end, and int64 `offsets` [n + 1] where each begins.

    Whoever builds one vouches that every text is valid UTF-8; the classmethods see to it.

    >>> texts = PackedTexts.of(["ärmel", "", "hut"])
    >>> texts[0], texts[-1], list(texts[1:])
    ('ärmel', 'hut', ['', 'hut'])
    """

    def __init__(self, data: np.ndarray, offsets: np.ndarray) -> None:
        if offsets.ndim != 1 or len(offsets) < 1 or offsets[0] < 0 or offsets[-1] > len(data):
            raise ValueError(f"offsets {offsets.shape} do not fit {len(data)} bytes")
        self.data = data
        self.offsets = offsets

    @classmethod
    def of(cls, texts: Iterable[str]) -> PackedTexts:
        """Pack `texts`. UnicodeEncodeError where one holds half a surrogate pair, which UTF-8 has no bytes for."""
        if isinstance(texts, PackedTexts):
            return texts
        data, lengths = bytearray(), []
        for text in texts:
            encoded = text.encode()
            data += encoded
            lengths.append(len(encoded))
        return cls.from_lengths(np.frombuffer(bytes(data), np.uint8), np.array(lengths, np.int64))

    @classmethod
    def from_lengths(cls, data: np.ndarray, lengths: np.ndarray) -> PackedTexts:
        """Texts that lie end to end in `data` (uint8, valid UTF-8), each `lengths[i]` bytes long."""
        return cls(data, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64))

    @classmethod
    def open(cls, stem: Path) -> PackedTexts:
        """The texts that `save` wrote, mapped from disk."""
        data = np.load(stem.with_name(stem.name + ".bytes.npy"), mmap_mode="r", allow_pickle=False)
        return cls(data, np.load(stem.with_name(stem.name + ".offsets.npy"), mmap_mode="r", allow_pickle=False))

    def save(self, stem: Path) -> None:
        """Write `<stem>.bytes.npy` and `<stem>.offsets.npy`."""
        np.save(stem.with_name(stem.name + ".bytes.npy"), self.data[self.offsets[0] : self.offsets[-1]])
        np.save(stem.with_name(stem.name + ".offsets.npy"), self.offsets - self.offsets[0])

    @property
    def lengths(self) -> np.ndarray:
        """Bytes of each text, int64 [n]."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> PackedTexts: ...
    def __getitem__(self, index: int | slice) -> str | PackedTexts:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return self.take(np.arange(start, stop, step))
            return PackedTexts(self.data, self.offsets[start : max(start, stop) + 1])
        if not -len(self) <= index < len(self):
            raise IndexError(f"text {index} of {len(self)}")
        i = index % len(self)
        return self.data[self.offsets[i] : self.offsets[i + 1]].tobytes().decode()

    def take(self, ids: np.ndarray) -> PackedTexts:
        """The texts `ids` [m], in that order, copied."""
        lengths = self.lengths[ids]
        packed = np.cumsum(lengths) - lengths  # where each begins in the copy
        source = np.repeat(self.offsets[:-1][ids] - packed, lengths) + np.arange(lengths.sum())
        return PackedTexts.from_lengths(self.data[source], lengths)

    def join_rows(self, ids: np.ndarray) -> PackedTexts:
        """One text a row of `ids` [n, width]: the words `ids` points at with a space between; -1 is no word.

        >>> PackedTexts.of(["red", "hat"]).join_rows(np.array([[0, 1], [1, -1]]))[:][0]
        'red hat'
        """
        row, column = np.nonzero(ids >= 0)
        words = self.take(ids[row, column])
        ends = words.lengths + 1  # each word and the space after it
        spaced = np.full(ends.sum(), ord(" "), np.uint8)
        shift = np.repeat(np.arange(len(words)), words.lengths)  # spaces before each byte
        spaced[np.arange(len(words.data)) + shift] = words.data
        lengths = np.bincount(row, weights=ends, minlength=len(ids)).astype(np.int64)
        # The space after a row's last word belongs to no text.
        keep = np.ones(len(spaced), bool)
        keep[np.cumsum(lengths)[lengths > 0] - 1] = False
        return PackedTexts.from_lengths(spaced[keep], np.maximum(lengths - 1, 0))


def take(texts: Sequence[str], ids: np.ndarray) -> Sequence[str]:
    """The texts `ids` [m] of any sequence, in that order."""
    if isinstance(texts, PackedTexts):
        return texts.take(ids)
    return [texts[int(i)] for i in ids]
