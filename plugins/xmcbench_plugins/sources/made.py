"""Synthetic datasets: the two of DEXML, a product catalogue, and the words that all share.

docs/datasets.md says what is in them, and the options of the catalogue.

A concept of the catalogue (a category, brand or attribute value) has three words that queries use and one that labels
use, for some the first of the three. Each line of products draws its attribute values from its own palette. Each pair
is missing independently in train and test.

Legend: N queries, L labels, C candidate labels of a query, the products of its anchor's line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy

from xmcbench.data.dataset import Dataset, Split, Texts
from xmcbench.data.draws import Draws
from xmcbench.data.source import SIZES, Draft, Family, Source
from xmcbench.data.text_files import binary_csr, no_pairs, pairs_csr
from xmcbench.data.texts import PackedTexts, TextBlocks, blocks
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


class Generated(Source):
    """A source that generates its data. Every change of the generated data raises `version`."""

    version = 1

    def __init__(self, name: str, sizes: tuple[int, int, int], origin: str) -> None:
        """`sizes` are the numbers of training queries, test queries and labels."""
        facts = dict(zip(SIZES, sizes, strict=True))
        self.draft = Draft(name=name, **facts, source=f"synthetic, {origin}", licence="Apache-2.0")

    def missing(self, data_dir: Path) -> str | None:  # noqa: ARG002 (nothing is read)
        return None

    def fingerprint(self, data_dir: Path) -> str:  # noqa: ARG002
        return f"{type(self).__name__} {self.version}"

    def dataset(self, train: Split, test: Split, labels: Texts) -> Dataset:
        """The dataset of these parts, without ignored pairs."""
        card = self.draft.card(len(train.texts), len(test.texts), len(labels), where=self.name)
        ignored = (no_pairs((len(split.texts), len(labels))) for split in (train, test))
        return Dataset(card, train, test, labels, *ignored)


class TStar(Generated):
    """DEXML Section 4.1: five labels always occur together, and only one of them shares a word with the query.

    The paper does not give the labels of the training queries without t*; here each has one, drawn uniformly.
    """

    def __init__(self) -> None:
        super().__init__("tstar", (STAR_TRAIN, STAR_TEST, STAR_LABELS), "after DEXML Section 4.1")

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
        firsts = np.zeros(STAR_TEST, np.int64)
        return self.dataset(
            Split(words.join_rows(train), pairs_csr(rows, columns, (STAR_TRAIN, STAR_LABELS))),
            Split(words.join_rows(test), pairs_csr(np.arange(STAR_TEST), firsts, (STAR_TEST, STAR_LABELS))),
            words.join_rows(labels),
        )


class RandomPairs(Generated):
    """DEXML Section C.1: n random query texts and n random label texts. Query i has label i. Test equals train."""

    def __init__(self, name: str) -> None:
        self.size = size = size_of(name)
        super().__init__(name, (size, size, size), "after DEXML Section C.1")

    def read(self, data_dir: Path) -> Dataset:  # noqa: ARG002
        draws = Draws(1, self.size)
        words = PackedTexts.of(make_words(VOCABULARY, draws))
        queries = words.join_rows(draws.integers(VOCABULARY, self.size, TEXT_WORDS))
        labels = words.join_rows(draws.integers(VOCABULARY, self.size, TEXT_WORDS))
        same = np.arange(self.size)
        split = Split(queries, pairs_csr(same, same, (self.size, self.size)))
        return self.dataset(split, split, labels)


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


LINE = 10  # products of a line
ATTRIBUTES = 3
PALETTE = 3  # values per attribute in the palette of a line
LABELS_PER_CATEGORY = 80
LABELS_PER_BRAND = 150
LABELS_PER_VALUE = 25
CODES = 20_000  # most words that occur only in label texts

TRAIN_PER_LABEL, TEST_PER_LABEL = 2.4, 0.6
ZIPF_SHIFT = 20.0  # the product of rank r is an anchor with probability proportional to 1 / (r + shift)
SHARED = 0.75  # share of the concepts whose label word is a query word
QUERY_WORDS = (0.6, 0.2, 0.2)  # probability of each query word of a concept
OMITTED = 0.2  # share of the concepts that a query omits
MISTAKEN = 0.12  # share of the attributes of a query that are wrong
RELATED = (0.05, 0.2, 0.5, 0.9)  # probability that a product of the line is a label, by number of shared attributes
OTHERS = (1.0, 0.0)  # likewise of the anchor itself, and of what lies beyond the end of a short last line
MISSING = 0.04  # share of the pairs that are missing
MIN_LABELS, MAX_LABELS = 1.2, 9.0  # allowed mean number of labels per query: a line has ten products
NOISE_WORDS, NOISE_MIN, NOISE_MAX = 3000, 2, 6  # size of the noise vocabulary, noise words per query
MIN_WORDS = 5  # of a query; shorter ones get more noise words


@dataclass(frozen=True)
class Products:
    """Concept ids [L, 2 + ATTRIBUTES] of L products, columns category, brand, attributes; `popularity` [L]."""

    concepts: np.ndarray
    palettes: np.ndarray  # [lines, ATTRIBUTES, PALETTE] concept ids
    popularity: np.ndarray
    num_concepts: int


CATALOG_OPTIONS = {"train": SIZE, "test": SIZE, "missing": r"0?\.[0-9]+", "labels": r"[0-9]+(?:\.[0-9]+)?"}
CATALOG_NAME = f"catalog-(?P<size>{SIZE})" + "".join(
    f"(?:-{name}-(?P<{name}>{value}))?" for name, value in CATALOG_OPTIONS.items()
)


class ProductCatalog(Generated):
    """The catalogue with the number of labels in its name; `catalog-5k` and `catalog-5000` are the same."""

    def __init__(self, name: str) -> None:
        match = re.fullmatch(CATALOG_NAME, name)
        assert match, name
        self.size = size = size_of(f"catalog-{match['size']}")
        if size < 2 * LINE:
            raise XMCBenchError(f"dataset {name}: found {size} labels, expected at least {2 * LINE}")
        given = ((match["train"], TRAIN_PER_LABEL), (match["test"], TEST_PER_LABEL))
        num_train, num_test = (size_of(f"queries-{n}") if n else round(size * per) for n, per in given)
        self.num_queries = num_train, num_test
        self.missing_pairs = float(match["missing"] or MISSING), MISSING
        self.mean_labels = float(match["labels"]) if match["labels"] else None  # of a query, before pairs are dropped
        if self.mean_labels is not None and not MIN_LABELS <= self.mean_labels <= MAX_LABELS:
            expected = f"expected {MIN_LABELS} to {MAX_LABELS:g} labels per query"
            raise XMCBenchError(f"dataset {name}: found {self.mean_labels:g}, {expected}")
        super().__init__(name, (*self.num_queries, size), "see docs/datasets.md")

    def read(self, data_dir: Path) -> Dataset:  # noqa: ARG002 (nothing is read)
        """Generate the pairs; texts are made when they are read, since those of millions would fill the memory.

        The training queries do not depend on the number of test queries or the missing pairs.
        """
        products = make_products(self.size)
        vocabulary = Vocabulary(products.num_concepts, min(self.size, CODES))
        related = RELATED if self.mean_labels is None else self._related(products, self.mean_labels)
        splits = []
        for i, missing in enumerate(self.missing_pairs):
            queries = Queries(products, Draws(3, self.size, i), self.num_queries[i])
            texts = vocabulary.query_texts(queries, Draws(4, i))
            splits.append(Split(texts, queries.targets(missing, related)))
        train, test = splits
        return self.dataset(train, test, vocabulary.label_texts(products.concepts, Draws(5)))

    def _related(self, products: Products, mean_labels: float) -> tuple[float, ...]:
        """`RELATED` with its log-odds shifted so that the training queries have `mean_labels` labels on average."""
        queries = Queries(products, Draws(3, self.size, 0), self.num_queries[0])
        kinds = np.concatenate([queries.candidates(part)[1].astype(np.int8) for part in blocks(queries.n)])
        log_odds = np.log(RELATED) - np.log1p(-np.array(RELATED))
        low, high = -20.0, 20.0
        for _ in range(60):
            middle = (low + high) / 2
            shifted = 1 / (1 + np.exp(-(log_odds + middle)))
            mean = np.append(shifted, OTHERS)[kinds].sum(axis=1).mean()
            low, high = (middle, high) if mean < mean_labels else (low, middle)
        return tuple(shifted.tolist())


def make_products(size: int) -> Products:
    """The labels. Concept ids number the categories first, then the brands, then the attribute values."""
    draws = Draws(2, size)
    lines = -(-size // LINE)
    categories, brands, values = (
        max(4, size // per) for per in (LABELS_PER_CATEGORY, LABELS_PER_BRAND, LABELS_PER_VALUE)
    )
    category = draws.weighted(1.0 / (np.arange(categories) + 5.0), lines)
    brand = categories + draws.integers(brands, lines)
    palettes = categories + brands + draws.integers(values, lines, ATTRIBUTES, PALETTE)
    choice = draws.rows(size, ATTRIBUTES)
    concepts = np.empty((size, 2 + ATTRIBUTES), np.int32)
    for part in blocks(size):
        line = np.arange(part.start, part.stop) // LINE
        concepts[part, 0], concepts[part, 1] = category[line], brand[line]
        concepts[part, 2:] = palettes[line[:, None], np.arange(ATTRIBUTES), _below(PALETTE, choice[part])]
    popularity = 1.0 / (draws.permutation(size) + ZIPF_SHIFT)
    return Products(concepts, palettes, popularity, categories + brands + values)


class Queries:
    """`n` queries, drawn a block at a time. The anchor of each is one of the products."""

    def __init__(self, products: Products, draws: Draws, n: int) -> None:
        self.n, self.products = n, products
        ends, anchors = np.cumsum(products.popularity), draws.rows(n)
        self.anchors = np.empty(n, np.int32)
        for part in blocks(n):
            self.anchors[part] = np.searchsorted(ends, anchors[part] * ends[-1], side="right").clip(max=len(ends) - 1)
        self._mistaken, self._others = draws.rows(n, ATTRIBUTES), draws.rows(n, ATTRIBUTES)
        self._is_label, self._is_kept = draws.rows(n, LINE), draws.rows(n, LINE)
        self._omitted = draws.rows(n, 2 + ATTRIBUTES)

    def stated(self, part: slice) -> np.ndarray:
        """The concepts that queries state, [N, 2 + ATTRIBUTES] ids with -1 for omitted ones."""
        return np.where(self._omitted[part] < OMITTED, -1, self._meant(part))

    def _meant(self, part: slice) -> np.ndarray:
        """What queries are about, [N, 2 + ATTRIBUTES] concept ids."""
        anchors = self.anchors[part]
        meant = self.products.concepts[anchors]
        choice = _below(PALETTE, self._others[part])
        other = self.products.palettes[(anchors // LINE)[:, None], np.arange(ATTRIBUTES), choice]
        meant[:, 2:] = np.where(self._mistaken[part] < MISTAKEN, other, meant[:, 2:])
        return meant

    def candidates(self, part: slice) -> tuple[np.ndarray, np.ndarray]:
        """The candidates [N, C], and their kinds, places in `RELATED` and `OTHERS`: the probability to be a label."""
        anchors, size = self.anchors[part, None], len(self.products.popularity)
        candidates = anchors // LINE * LINE + np.arange(LINE)
        exists = candidates < size  # the last line may be short
        candidates = np.minimum(candidates, size - 1)
        shared = (self.products.concepts[candidates][:, :, 2:] == self._meant(part)[:, None, 2:]).sum(axis=2)
        is_anchor, others = candidates == anchors, len(RELATED)
        return candidates, np.where(exists, np.where(is_anchor, others, shared), others + 1)

    def targets(self, missing: float = MISSING, related: tuple[float, ...] = RELATED) -> scipy.sparse.csr_array:
        """The labels [N, L]. The pairs that a larger share `missing` leaves are a subset of those of a smaller one."""
        counts, labels, chances = [np.zeros(1, np.int64)], [np.empty(0, np.int32)], np.append(related, OTHERS)
        for part in blocks(self.n):
            candidates, kinds = self.candidates(part)
            chosen = (self._is_label[part] < chances[kinds]) & (self._is_kept[part] >= missing)
            counts.append(chosen.sum(axis=1))
            labels.append(candidates[chosen].astype(np.int32))
        pairs = np.concatenate(labels)
        starts = np.cumsum(np.concatenate(counts))
        return binary_csr(starts, pairs, np.ones(len(pairs), np.float32), len(self.products.popularity))


def _below(number: int, uniform: np.ndarray) -> np.ndarray:
    """Integers in [0, number), int64, of draws in [0, 1)."""
    return (uniform * number).astype(np.int64)


class Vocabulary:
    """The words of all concepts. In `forms` [concepts, words] the last column is for labels, the others for queries."""

    def __init__(self, num_concepts: int, num_codes: int) -> None:
        draws = Draws(6, num_concepts)
        self.first_noise = num_concepts * (len(QUERY_WORDS) + 1)
        self.words = PackedTexts.of(make_words(self.first_noise + NOISE_WORDS + num_codes, draws))
        self.forms = np.arange(self.first_noise).reshape(num_concepts, -1)
        shared = draws.uniform(num_concepts) < SHARED
        self.forms[shared, -1] = self.forms[shared, 0]
        self.first_code = self.first_noise + NOISE_WORDS
        self.num_codes = num_codes

    def query_texts(self, queries: Queries, draws: Draws) -> TextBlocks:
        """Texts of queries: one word per stated concept and some noise words, in random order."""
        n, width = queries.n, 2 + ATTRIBUTES
        forms, noises, counts = draws.rows(n, width), draws.rows(n, NOISE_MAX), draws.rows(n, 1)
        places = draws.rows(n, width + NOISE_MAX)

        def made(part: slice) -> PackedTexts:
            stated = queries.stated(part)
            form = np.searchsorted(np.cumsum(QUERY_WORDS[:-1]), forms[part], side="right")
            concept_words = np.where(stated < 0, -1, self.forms[stated, form])
            noise = self.first_noise + _below(NOISE_WORDS, noises[part])
            count = NOISE_MIN + _below(NOISE_MAX - NOISE_MIN + 1, counts[part])
            count = np.maximum(count, MIN_WORDS - (stated >= 0).sum(axis=1, keepdims=True))
            words = np.hstack([concept_words, np.where(np.arange(NOISE_MAX) < count, noise, -1)])
            order = np.argsort(places[part], axis=1, kind="stable")
            return self.words.join_rows(np.take_along_axis(words, order, axis=1))

        return TextBlocks(n, made)

    def label_texts(self, concepts: np.ndarray, draws: Draws) -> TextBlocks:
        """Texts of labels: brand, attributes, category, and two code words that no query uses."""
        omitted, codes = draws.rows(len(concepts), ATTRIBUTES), draws.rows(len(concepts), 2)

        def made(part: slice) -> PackedTexts:
            words = self.forms[concepts[part], -1]
            category, brand, attributes = words[:, :1], words[:, 1:2], words[:, 2:]
            attributes = np.where(omitted[part] < OMITTED, -1, attributes)
            of_codes = self.first_code + _below(self.num_codes, codes[part])
            return self.words.join_rows(np.hstack([brand, attributes, category, of_codes]))

        return TextBlocks(len(concepts), made)


CATALOG = Family(
    name="catalog-<n>",
    regex=CATALOG_NAME,
    summary="a synthetic product catalogue with n labels, a semantic gap and a Zipf tail (catalog-5k, catalog-131k)",
    make=ProductCatalog,
    options=tuple(CATALOG_OPTIONS),
)
