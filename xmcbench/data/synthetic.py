"""Synthetic datasets: the two of DEXML, and the words and random draws that all synthetic datasets share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy

from xmcbench.data.dataset import Dataset, Split
from xmcbench.data.source import Draft, Family, Source
from xmcbench.data.sparse_text import no_pairs, pairs_csr
from xmcbench.data.texts import PackedTexts
from xmcbench.errors import XMCBenchError

ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "br", "kr", "st", "tr")
VOWELS = ("a", "e", "i", "o", "u", "ai", "ou")
SYLLABLES = tuple(onset + vowel for onset in ONSETS for vowel in VOWELS)

LARGEST = 10_000_000  # the number in a dataset's name
VOCABULARY = 2000  # words of DEXML's random texts; the paper draws from a tokenizer's vocabulary of about 30,000
TEXT_WORDS = 16
STAR = "tstar"  # the paper's t*, as a word that a tokenizer splits in the same way everywhere
STAR_TRAIN, STAR_TEST, STAR_LABELS = 1000, 1000, 5000
STAR_QUERIES, STAR_POSITIVES = 100, 5


class Draws:
    """Random draws that are the same in every version of numpy.

    They use only the raw bit stream of PCG64, which numpy guarantees. What `Generator` draws from it may change.
    """

    def __init__(self, *seed: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(seed))

    def uniform(self, *shape: int) -> np.ndarray:
        """Numbers in [0, 1), float64."""
        raw: np.ndarray = self._bits.random_raw(int(np.prod(shape)))
        return ((raw >> np.uint64(11)) * 2.0**-53).reshape(shape)

    def integers(self, below: int, *shape: int) -> np.ndarray:
        """Integers in [0, below), int64."""
        return (self.uniform(*shape) * below).astype(np.int64)

    def permutation(self, n: int) -> np.ndarray:
        """0..n-1 in random order."""
        return np.argsort(np.asarray(self._bits.random_raw(n)), kind="stable")

    def weighted(self, weights: np.ndarray, n: int) -> np.ndarray:
        """`n` indices, each with probability proportional to its weight."""
        ends = np.cumsum(weights)
        indices: np.ndarray = np.searchsorted(ends, self.uniform(n) * ends[-1], side="right")
        return indices.clip(max=len(weights) - 1)


def make_words(n: int, draws: Draws) -> list[str]:
    """`n` distinct pronounceable words of two or more syllables."""
    count, base = 2, len(SYLLABLES)
    while base**count < 2 * n:
        count += 1
    # The step is coprime to the number of words, so the walk visits every word before it repeats one.
    start, step = int(draws.integers(base**count, 1)[0]), 1_000_003
    numbers = (start + step * np.arange(n, dtype=np.int64)) % base**count
    syllables = np.array(SYLLABLES)
    parts = [syllables[numbers // base**place % base] for place in range(count)]
    return ["".join(word) for word in zip(*parts, strict=True)]


def make_dataset(
    draft: Draft,
    texts: tuple[PackedTexts, PackedTexts, PackedTexts],
    targets: tuple[scipy.sparse.csr_array, scipy.sparse.csr_array],
) -> Dataset:
    """A dataset without ignored pairs, from the texts of (train, test, labels) and the targets of (train, test)."""
    train, test, labels = texts
    card = draft.card(len(train), len(test), len(labels), where=draft.name)
    ignored = (no_pairs((len(split), len(labels))) for split in (train, test))
    return Dataset(card, Split(train, targets[0]), Split(test, targets[1]), labels, *ignored)


def synthetic_draft(name: str, sizes: tuple[int, int, int], origin: str) -> Draft:
    """The card of a synthetic dataset with these numbers of training queries, test queries and labels."""
    train, test, labels = sizes
    return Draft(
        name=name,
        num_train=train,
        num_test=test,
        num_labels=labels,
        source=f"synthetic, {origin}",
        licence="Apache-2.0",
    )


class Generated(Source):
    """A source that generates its data. Every change of the generated data raises `version`."""

    version = 1

    def missing(self, data_dir: Path) -> str | None:  # noqa: ARG002 (nothing is read)
        return None

    def fingerprint(self, data_dir: Path) -> str:  # noqa: ARG002
        return f"{type(self).__name__} {self.version}"


class TStar(Generated):
    """DEXML Section 4.1: five labels always occur together, and only one of them shares a word with the query.

    The first 100 training queries start with t* and have the labels 0 to 4; the text of label 0 ends with t*. Test
    queries are new texts that start with t* and have only label 0. The paper does not give the labels of the other 900
    training queries; here each has one label, drawn uniformly from 5 to 4,999.
    """

    def __init__(self) -> None:
        self.draft = synthetic_draft("tstar", (STAR_TRAIN, STAR_TEST, STAR_LABELS), "after DEXML Section 4.1")

    def read(self, data_dir: Path) -> Dataset:  # noqa: ARG002
        draws = Draws(41)
        words = PackedTexts.of([*make_words(VOCABULARY, draws), STAR])
        train = draws.integers(VOCABULARY, STAR_TRAIN, TEXT_WORDS)
        labels = np.full((STAR_LABELS, TEXT_WORDS + 1), -1)
        labels[:, :TEXT_WORDS] = draws.integers(VOCABULARY, STAR_LABELS, TEXT_WORDS)
        test = draws.integers(VOCABULARY, STAR_TEST, TEXT_WORDS)
        train[:STAR_QUERIES, 0] = test[:, 0] = labels[0, -1] = VOCABULARY  # the index of t* in `words`
        rows = np.concatenate([np.repeat(np.arange(STAR_QUERIES), STAR_POSITIVES), np.arange(STAR_QUERIES, STAR_TRAIN)])
        others = STAR_POSITIVES + draws.integers(STAR_LABELS - STAR_POSITIVES, STAR_TRAIN - STAR_QUERIES)
        columns = np.concatenate([np.tile(np.arange(STAR_POSITIVES), STAR_QUERIES), others])
        targets = (
            pairs_csr(rows, columns, (STAR_TRAIN, STAR_LABELS)),
            pairs_csr(np.arange(STAR_TEST), np.zeros(STAR_TEST, np.int64), (STAR_TEST, STAR_LABELS)),
        )
        return make_dataset(
            self.draft, (words.join_rows(train), words.join_rows(test), words.join_rows(labels)), targets
        )


class RandomPairs(Generated):
    """DEXML Section C.1: n random query texts and n random label texts. Query i has label i. Test equals train."""

    def __init__(self, name: str) -> None:
        self.size = size = size_of(name)
        self.draft = synthetic_draft(name, (size, size, size), "after DEXML Section C.1")

    def read(self, data_dir: Path) -> Dataset:  # noqa: ARG002
        draws = Draws(1, self.size)
        words = PackedTexts.of(make_words(VOCABULARY, draws))
        queries = words.join_rows(draws.integers(VOCABULARY, self.size, TEXT_WORDS))
        labels = words.join_rows(draws.integers(VOCABULARY, self.size, TEXT_WORDS))
        same = np.arange(self.size)
        targets = pairs_csr(same, same, (self.size, self.size))
        return make_dataset(self.draft, (queries, queries, labels), (targets, targets))


def size_of(name: str) -> int:
    """The number at the end of a dataset's name; `k` stands for thousands and `m` for millions.

    >>> size_of("catalog-131k"), size_of("catalog-1.3m"), size_of("random-pairs-500")
    (131000, 1300000, 500)
    """
    text = name.rpartition("-")[2]
    scale = {"k": 1_000, "m": 1_000_000}.get(text[-1], 1)
    size = float(text.rstrip("km")) * scale
    if not 1 <= size <= LARGEST:
        raise XMCBenchError(f"dataset {name:.100}: found a size of {size:,.9g}, expected 1 to {LARGEST:,}")
    return round(size)


SIZE = r"[0-9]+(\.[0-9]+)?[km]?"

RANDOM_PAIRS = Family(
    name="random-pairs-<n>",
    regex=f"random-pairs-{SIZE}",
    summary="n random query texts, each with its own random label text, to be memorised (DEXML Section C.1)",
    make=RandomPairs,
)
