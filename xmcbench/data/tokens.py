"""Tokenised texts: a flat array of token ids and the place of each text in it, tokenised once and cached on disk.

Legend: N texts, M texts of a micro-batch, W its longest text in tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import xxhash

from xmcbench.data.texts import PackedTexts, batches
from xmcbench.files.manifest import open_or_make

IDS, OFFSETS = "ids.npy", "offsets.npy"
CHUNK = 8192  # texts passed to the tokenizer at once
ALIKE_SAMPLE = 10_000  # texts that are compared
GROUP_SHARE = 32  # beside its tokens a micro-batch costs about this share of a full one (measured on a CPU)
Tokenize = Callable[[Sequence[str]], list[list[int]]]
Progress = Callable[[int], object]  # called with the number of texts that are tokenised


def text_hash(texts: Sequence[str], identity: str) -> str:
    """32 hexadecimal digits (XXH3, 128 bits) of `identity` and `texts`: the key of what `identity` makes of them."""
    packed = PackedTexts.of(texts)
    digest = xxhash.xxh3_128(identity.encode())
    digest.update(np.ascontiguousarray(packed.lengths, "<i8").data)
    digest.update(np.ascontiguousarray(packed.data).data)
    return digest.hexdigest()


class Tokens:
    """N tokenised texts: text i is `ids[starts[i]:starts[i] + lengths[i]]`. The arrays may be memory-mapped."""

    def __init__(self, ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> None:
        self.ids = ids
        self.starts = starts
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    @classmethod
    def from_offsets(cls, ids: np.ndarray, offsets: np.ndarray) -> Tokens:
        """Texts end to end: text i is `ids[offsets[i]:offsets[i + 1]]`."""
        return cls(ids, offsets[:-1], np.diff(offsets))

    @classmethod
    def of(cls, texts: Sequence[str], tokenize: Tokenize, progress: Progress = int) -> Tokens:
        """Tokenise `texts` in memory. A thread tokenises the next chunk while this one packs the last."""
        parts = [np.empty(0, np.int32)]
        lengths = [np.zeros(1, np.int64)]
        with ThreadPoolExecutor(1) as tokenizer:
            pending, finished = None, 0
            for rows in chain(batches(texts, CHUNK), [None]):
                done, pending = pending, rows and tokenizer.submit(tokenize, rows)
                if done:
                    tokens = done.result()
                    lengths.append(np.fromiter(map(len, tokens), np.int64, len(tokens)))
                    parts.append(np.fromiter(chain.from_iterable(tokens), np.int32, int(lengths[-1].sum())))
                    finished += len(tokens)
                    progress(finished)
        return cls.from_offsets(np.concatenate(parts), np.cumsum(np.concatenate(lengths)))

    @classmethod
    def cached(
        cls, texts: Sequence[str], tokenize: Tokenize, identity: str, cache: Path, progress: Progress = int
    ) -> Tokens:
        """Like `of`, but cached in the folder `cache` under a key of the tokenizer's `identity` and the texts."""

        def write(directory: Path) -> None:
            ids, offsets = cls.of(texts, tokenize, progress).flat()
            np.save(directory / IDS, ids)
            np.save(directory / OFFSETS, offsets)

        directory = cache / "tokens" / text_hash(texts, identity)
        return open_or_make(directory, lambda place: cls.open(place, len(texts)), write, "a token cache")

    @classmethod
    def open(cls, directory: Path, num_texts: int) -> Tokens:
        """The cached tokens in `directory`, memory-mapped. Raises ValueError, OSError or EOFError for damaged files."""
        ids, offsets = (np.load(directory / name, mmap_mode="r", allow_pickle=False) for name in (IDS, OFFSETS))
        if ids.ndim != 1 or ids.dtype != np.int32 or offsets.dtype != np.int64 or offsets.shape != (num_texts + 1,):
            raise ValueError(f"found ids {ids.dtype} {ids.shape} and offsets {offsets.dtype} {offsets.shape}")
        if offsets[0] != 0 or offsets[-1] != len(ids) or bool((offsets[1:] < offsets[:-1]).any()):
            raise ValueError(f"{OFFSETS}: offsets do not fit {len(ids)} token ids")
        return cls.from_offsets(ids, offsets)

    @classmethod
    def joined(cls, parts: Sequence[Tokens]) -> Tokens:
        """The texts of all parts, one part after another, with a copy of their token ids."""
        flat = [part.flat()[0] for part in parts]
        lengths = np.concatenate([part.lengths for part in parts])
        return cls.from_offsets(np.concatenate(flat), np.concatenate(([0], np.cumsum(lengths))))

    def alike(self, texts: Sequence[str]) -> float:
        """The share of these texts, whose tokens they are, that repeat the tokens of a different one; of a sample.

        Texts in a script that the tokenizer cannot read are alike.
        """
        rows = np.unique(np.linspace(0, len(texts) - 1, min(len(texts), ALIKE_SAMPLE)).astype(int))
        ids = np.asarray(self.ids)
        places = ((texts[row], int(self.starts[row]), int(self.lengths[row])) for row in rows.tolist())
        by_text = {text: ids[start : start + length].tobytes() for text, start, length in places}
        return (len(by_text) - len(set(by_text.values()))) / max(1, len(by_text))

    def take(self, rows: np.ndarray) -> Tokens:
        """The texts `rows`, in that order, without a copy of their token ids."""
        return Tokens(self.ids, self.starts[rows], self.lengths[rows])

    def flat(self) -> tuple[np.ndarray, np.ndarray]:
        """The token ids of all texts end to end and the offsets [N + 1]; a copy only where they lie otherwise."""
        offsets = np.concatenate(([0], np.cumsum(self.lengths)))
        if len(self.ids) == offsets[-1] and bool((self.starts == offsets[:-1]).all()):
            return self.ids, offsets
        return self.ids[np.repeat(self.starts - offsets[:-1], self.lengths) + np.arange(offsets[-1])], offsets

    def padded(self, rows: np.ndarray, pad_id: int) -> tuple[np.ndarray, np.ndarray]:
        """Token ids [M, W] int64 and mask [M, W] bool of the given texts."""
        lengths = self.lengths[rows]
        columns = np.arange(lengths.max(initial=1))
        mask = columns < lengths[:, None]
        places = np.where(mask, self.starts[rows][:, None] + columns, 0)
        return np.where(mask, self.ids[places], pad_id).astype(np.int64), mask


def micro_batches(lengths_N: np.ndarray, token_budget: int) -> list[np.ndarray]:
    """Split texts into groups of similar length whose padded size stays within `token_budget` (one text may exceed it).

    Longest first. Different lengths share a group where the padding costs less than another group would.
    """
    order = np.argsort(lengths_N, kind="stable")[::-1]
    groups: list[np.ndarray] = []
    for start, stop in _classes(lengths_N[order], token_budget):
        size = max(1, token_budget // max(1, int(lengths_N[order[start]])))
        groups += [order[here : min(here + size, stop)] for here in range(start, stop, size)]
    return groups


def _classes(descending_N: np.ndarray, token_budget: int) -> list[tuple[int, int]]:
    """Cut texts sorted by length so that padded tokens plus the fixed costs of the groups are minimal.

    A shortest path: the best cuts up to a place are the best cuts up to an earlier place and the texts between.
    """
    overhead = token_budget / GROUP_SHARE
    edges = np.unique(np.concatenate(([0], np.flatnonzero(np.diff(descending_N)) + 1, [len(descending_N)])))
    widths = np.maximum(descending_N[edges[:-1]], 1)
    sizes = np.maximum(token_budget // widths, 1)
    costs, before = np.zeros(len(edges)), np.zeros(len(edges), np.int64)
    for end in range(1, len(edges)):
        counts = edges[end] - edges[:end]
        totals = costs[:end] + counts * widths[:end] - (-counts // sizes[:end]) * overhead
        before[end] = totals.argmin()
        costs[end] = totals[before[end]]
    cuts = [len(edges) - 1]
    while cuts[-1]:
        cuts.append(int(before[cuts[-1]]))
    return [(int(edges[a]), int(edges[b])) for b, a in pairwise(cuts)][::-1]
