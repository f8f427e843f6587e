"""Tokenised texts: one flat array of token ids and the offsets of each text, tokenised once and kept on disk.

Legend: N texts, M texts of a micro-batch, W its longest text in tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import numpy as np

CHUNK = 8192  # texts handed to the tokenizer at once
GROUP_SHARE = 32  # a micro-batch costs, beside its tokens, about this share of a full one (measured on a CPU)
Tokenize = Callable[[Sequence[str]], list[list[int]]]


def text_hash(texts: Sequence[str], identity: str) -> str:
    """32 hexadecimal digits for what `identity` makes of `texts`."""
    digest = sha256(identity.encode())
    for start in range(0, len(texts), CHUNK):
        rows = [texts[i] for i in range(start, min(start + CHUNK, len(texts)))]
        digest.update(np.fromiter(map(len, rows), np.int64, len(rows)).tobytes() + "".join(rows).encode())
    return digest.hexdigest()[:32]


@contextmanager
def made_once(directory: Path) -> Iterator[Path]:
    """A folder to fill that becomes `directory` whole or not at all; where another process was faster, its stays."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(mkdtemp(dir=directory.parent, prefix=".partial-"))
    try:
        yield partial
        partial.rename(directory)
    except OSError:
        if not directory.is_dir():
            raise
    finally:
        rmtree(partial, ignore_errors=True)


class Tokens:
    """N tokenised texts: text i is `ids[offsets[i]:offsets[i + 1]]`. The arrays may be memory-mapped."""

    def __init__(self, ids: np.ndarray, offsets: np.ndarray) -> None:
        self.ids = ids
        self.offsets = offsets
        self.lengths = np.diff(offsets)

    def __len__(self) -> int:
        return len(self.lengths)

    @classmethod
    def of(cls, texts: Sequence[str], tokenize: Tokenize) -> Tokens:
        """Tokenise `texts` in memory."""
        parts: list[np.ndarray] = []
        lengths: list[np.ndarray] = []
        for start in range(0, len(texts), CHUNK):
            rows = tokenize([texts[i] for i in range(start, min(start + CHUNK, len(texts)))])
            lengths.append(np.fromiter(map(len, rows), np.int64, len(rows)))
            parts.append(np.fromiter((t for row in rows for t in row), np.int32, int(lengths[-1].sum())))
        offsets = np.concatenate(([0], np.cumsum(np.concatenate(lengths or [np.empty(0, np.int64)]))))
        return cls(np.concatenate(parts or [np.empty(0, np.int32)]), offsets.astype(np.int64))

    @classmethod
    def cached(cls, texts: Sequence[str], tokenize: Tokenize, identity: str, cache: Path) -> Tokens:
        """As `of`, but kept under `cache`, keyed by the tokenizer's `identity` and the texts themselves."""
        directory = cache / "tokens" / text_hash(texts, identity)
        if not directory.is_dir():
            tokens = cls.of(texts, tokenize)
            with made_once(directory) as partial:
                np.save(partial / "ids.npy", tokens.ids)
                np.save(partial / "offsets.npy", tokens.offsets)
        arrays = (np.load(directory / name, mmap_mode="r", allow_pickle=False) for name in ("ids.npy", "offsets.npy"))
        return cls(*arrays)

    def take(self, rows: np.ndarray) -> Tokens:
        """The texts `rows`, in that order; these themselves where that is all of them."""
        if len(rows) == len(self) and bool((rows == np.arange(len(self))).all()):
            return self
        lengths = self.lengths[rows]
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        places = np.repeat(self.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return Tokens(self.ids[places], offsets)

    def padded(self, rows: np.ndarray, pad_id: int) -> tuple[np.ndarray, np.ndarray]:
        """Token ids [M, W] int64 and mask [M, W] bool of the given texts."""
        lengths = self.lengths[rows]
        columns = np.arange(lengths.max(initial=1))
        mask = columns < lengths[:, None]
        places = np.where(mask, self.offsets[rows][:, None] + columns, 0)
        return np.where(mask, self.ids[places], pad_id).astype(np.int64), mask


def micro_batches(lengths_N: np.ndarray, token_budget: int) -> list[np.ndarray]:
    """Split texts into groups of like length whose padded size stays within `token_budget` (one text may exceed it).

    Longest first. Lengths share a group where that costs less padding than one more group is worth.
    """
    order = np.argsort(lengths_N, kind="stable")[::-1]
    groups: list[np.ndarray] = []
    for start, stop in _classes(lengths_N[order], token_budget):
        size = max(1, token_budget // max(1, int(lengths_N[order[start]])))
        groups += [order[here : min(here + size, stop)] for here in range(start, stop, size)]
    return groups


def _classes(descending_N: np.ndarray, token_budget: int) -> list[tuple[int, int]]:
    """Cut texts sorted by length where the sum of padded tokens and of what groups cost beside them is smallest.

    The best cuts up to a place are the best up to an earlier one and a class of the texts between: a shortest path.
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
