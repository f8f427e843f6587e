"""`catalog-<n>`: a made product catalogue with n labels, learnable structure, a semantic gap and a Zipf tail.

How it is made:

1. Labels are products of a *line*: ten products of one category and one brand, which differ in three attributes.
   Each line draws its attribute values from a palette of its own.
2. A concept (category, brand, attribute value) has words: three that queries use and one for labels, which for some
   concepts is the first query word and for the others a word that no query ever uses. What such a word means must be
   learnt from which labels come with which queries.
3. A query is about one product, its anchor, drawn by a Zipf law, and may leave out or mistake an attribute. Its labels
   are the anchor and those products of the line that share attributes with it: labels come together.
4. Each pair goes missing with a small probability, in train and test independently.

Options follow the size in the name: `catalog-1k-test-20k-missing-0.2-labels-6` has 20,000 test queries, 20 % of the
training pairs missing, and 6 labels per query on average before pairs go missing.

Legend: N queries, L labels, C candidate labels of a query, the products of its anchor's line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from xmcbench.data.dataset import Dataset
from xmcbench.data.source import Draft, Family
from xmcbench.data.sparse_text import pairs_csr
from xmcbench.data.synthetic import SIZE, Draws, Generated, make_dataset, make_words, size_of
from xmcbench.data.texts import PackedTexts
from xmcbench.errors import XMCBenchError

LINE = 10  # products of a line
ATTRIBUTES = 3
PALETTE = 3  # values of each attribute that a line knows
LABELS_PER_CATEGORY = 80
LABELS_PER_BRAND = 150
LABELS_PER_VALUE = 25
CODES = 20_000  # words that label texts alone hold, at most

TRAIN_PER_LABEL, TEST_PER_LABEL = 2.4, 0.6
ZIPF_SHIFT = 20.0  # product of rank r is asked for in proportion to 1 / (r + shift)
SHARED = 0.75  # concepts whose label word is a query word
QUERY_WORDS = (0.6, 0.2, 0.2)  # how often a query uses each of the words it has for a concept
OMITTED = 0.2  # concepts that a query leaves out
MISTAKEN = 0.12  # attributes of a query that are not the anchor's
RELATED = (0.05, 0.2, 0.5, 0.9)  # a product of the line is a label, by attributes shared with the query
MISSING = 0.04  # pairs that go missing
FEWEST, MOST = 1.2, 9.0  # labels per query that can be asked for: a line has ten products
NOISE_WORDS, NOISE_MIN, NOISE_MAX = 3000, 2, 6  # words that mean nothing, and how many a query holds
SHORTEST = 5  # words; a query that says little holds more that mean nothing


@dataclass(frozen=True)
class Products:
    """Concept ids [L, 2 + ATTRIBUTES] of L products, columns category, brand, attributes; `popularity` [L]."""

    concepts: np.ndarray
    palettes: np.ndarray  # [lines, ATTRIBUTES, PALETTE] concept ids
    popularity: np.ndarray
    num_concepts: int


@dataclass(frozen=True)
class Queries:
    """What N queries say, concept ids [N, 2 + ATTRIBUTES] with -1 for left out, and their labels [N, L]."""

    said: np.ndarray
    targets: sp.csr_array


@dataclass(frozen=True)
class Options:
    """What a name says after the number of labels; None stands for the plain catalogue's value."""

    test: int | None = None  # test queries
    missing: float = MISSING  # share of the training pairs that go missing
    labels: float | None = None  # mean number of labels per query, before pairs go missing

    @classmethod
    def of(cls, name: str) -> Options:
        """The options in a name that the family's pattern matches."""
        said = re.fullmatch(REGEX, name)
        assert said, name
        test, missing, labels = (said[option] for option in OPTIONS)
        options = cls(
            test=size_of(f"test-{test}") if test else None,
            missing=float(missing) if missing else MISSING,
            labels=float(labels) if labels else None,
        )
        if options.labels is not None and not FEWEST <= options.labels <= MOST:
            expected = f"expected {FEWEST} to {MOST:g} labels per query"
            raise XMCBenchError(f"dataset {name}: found {options.labels:g}, {expected}")
        return options


class ProductCatalog(Generated):
    """The catalogue of as many labels as its name says; `catalog-5k` and `catalog-5000` are the same."""

    def __init__(self, name: str) -> None:
        self.size = size = size_of("-".join(name.split("-", 2)[:2]))
        if size < 2 * LINE:
            raise XMCBenchError(f"dataset {name}: found {size} labels, expected at least {2 * LINE}")
        self.options = Options.of(name)
        self.draft = Draft(
            name=name,
            num_train=round(size * TRAIN_PER_LABEL),
            num_test=self.options.test or round(size * TEST_PER_LABEL),
            num_labels=size,
            source="made, see docs/datasets.md",
            licence="Apache-2.0",
        )

    def read(self, data_dir: Path) -> Dataset:  # noqa: ARG002 (nothing is read)
        """Make the data. The training queries depend on neither the number of test queries nor the missing pairs."""
        products, options = make_products(self.size), self.options
        vocabulary = Vocabulary(products.num_concepts, min(self.size, CODES))
        related = RELATED if options.labels is None else self._related(products, options.labels)
        splits = [
            make_queries(products, Draws(3, self.size, split), count, missing, related)
            for split, (count, missing) in enumerate(
                ((self.draft.num_train or 0, options.missing), (self.draft.num_test or 0, MISSING))
            )
        ]
        train, test = (vocabulary.query_texts(part.said, Draws(4, i)) for i, part in enumerate(splits))
        labels = vocabulary.label_texts(products.concepts, Draws(5))
        return make_dataset(self.draft, (train, test, labels), (splits[0].targets, splits[1].targets))

    def _related(self, products: Products, wanted: float) -> tuple[float, ...]:
        """`RELATED` with its log-odds shifted so that the training queries have `wanted` labels on average."""
        candidates = draw_candidates(products, Draws(3, self.size, 0), self.draft.num_train or 0)
        log_odds = np.log(RELATED) - np.log1p(-np.array(RELATED))
        low, high = -20.0, 20.0
        for _ in range(60):
            middle = (low + high) / 2
            shifted = 1 / (1 + np.exp(-(log_odds + middle)))
            mean = candidates.chances(shifted).sum(axis=1).mean()
            low, high = (middle, high) if mean < wanted else (low, middle)
        return tuple(shifted.tolist())


def make_products(size: int) -> Products:
    """The labels: concept ids are numbered categories first, then brands, then attribute values."""
    draws = Draws(2, size)
    lines = -(-size // LINE)
    categories, brands, values = (
        max(4, size // per) for per in (LABELS_PER_CATEGORY, LABELS_PER_BRAND, LABELS_PER_VALUE)
    )
    category = draws.weighted(1.0 / (np.arange(categories) + 5.0), lines)
    brand = categories + draws.integers(brands, lines)
    palettes = categories + brands + draws.integers(values, lines, ATTRIBUTES, PALETTE)
    line = np.arange(size) // LINE
    choice = draws.integers(PALETTE, size, ATTRIBUTES)
    attributes = palettes[line[:, None], np.arange(ATTRIBUTES), choice]
    popularity = 1.0 / (draws.permutation(size) + ZIPF_SHIFT)
    concepts = np.column_stack([category[line], brand[line], attributes])
    return Products(concepts, palettes, popularity, categories + brands + values)


@dataclass(frozen=True)
class Candidates:
    """What N queries mean, and the products that may be their labels: those of the anchor's line."""

    meant: np.ndarray  # [N, 2 + ATTRIBUTES] concept ids
    labels: np.ndarray  # [N, C] products
    real: np.ndarray  # [N, C] False where the last line is short
    is_anchor: np.ndarray  # [N, C]
    shared: np.ndarray  # [N, C] attributes that query and product share

    def chances(self, related: np.ndarray) -> np.ndarray:
        """[N, C] the probability that a candidate is a label."""
        chances: np.ndarray = np.where(self.is_anchor, 1.0, related[self.shared]) * self.real
        return chances


def draw_candidates(products: Products, draws: Draws, n: int) -> Candidates:
    """Draw the anchors of `n` queries and what the queries mean by them."""
    size = len(products.popularity)
    anchor = draws.weighted(products.popularity, n)
    meant = products.concepts[anchor]
    mistaken = draws.uniform(n, ATTRIBUTES) < MISTAKEN
    other = products.palettes[(anchor // LINE)[:, None], np.arange(ATTRIBUTES), draws.integers(PALETTE, n, ATTRIBUTES)]
    meant[:, 2:] = np.where(mistaken, other, meant[:, 2:])
    candidates = (anchor // LINE * LINE)[:, None] + np.arange(LINE)
    real = candidates < size  # the last line may be short
    candidates = np.minimum(candidates, size - 1)
    shared = (products.concepts[candidates][:, :, 2:] == meant[:, None, 2:]).sum(axis=2)
    return Candidates(meant, candidates, real, candidates == anchor[:, None], shared)


def make_queries(
    products: Products, draws: Draws, n: int, missing: float = MISSING, related: tuple[float, ...] = RELATED
) -> Queries:
    """`n` queries, what they say and what they are labelled with.

    The same draws decide whatever `missing` is: pairs that are there with a larger share missing are there with a
    smaller one.
    """
    size = len(products.popularity)
    candidates = draw_candidates(products, draws, n)
    is_label = (draws.uniform(n, LINE) < np.array(related)[candidates.shared]) | candidates.is_anchor
    is_label &= candidates.real & (draws.uniform(n, LINE) >= missing)
    row, column = np.nonzero(is_label)
    targets = pairs_csr(row, candidates.labels[row, column], (n, size))
    said = np.where(draws.uniform(*candidates.meant.shape) < OMITTED, -1, candidates.meant)
    return Queries(said, targets)


class Vocabulary:
    """The words of all concepts: of `forms` [concepts, words] the last is for labels, the others are for queries."""

    def __init__(self, num_concepts: int, num_codes: int) -> None:
        draws = Draws(6, num_concepts)
        self.first_noise = num_concepts * (len(QUERY_WORDS) + 1)
        self.words = PackedTexts.of(make_words(self.first_noise + NOISE_WORDS + num_codes, draws))
        self.forms = np.arange(self.first_noise).reshape(num_concepts, -1)
        shared = draws.uniform(num_concepts) < SHARED
        self.forms[shared, -1] = self.forms[shared, 0]
        self.first_code = self.first_noise + NOISE_WORDS
        self.num_codes = num_codes

    def query_texts(self, said: np.ndarray, draws: Draws) -> PackedTexts:
        """Texts of queries: a word a concept said, and some that mean nothing, in random order."""
        n = len(said)
        form = np.searchsorted(np.cumsum(QUERY_WORDS[:-1]), draws.uniform(*said.shape), side="right")
        meaning = np.where(said < 0, -1, self.forms[said, form])
        noise = self.first_noise + draws.integers(NOISE_WORDS, n, NOISE_MAX)
        count = NOISE_MIN + draws.integers(NOISE_MAX - NOISE_MIN + 1, n, 1)
        count = np.maximum(count, SHORTEST - (said >= 0).sum(axis=1, keepdims=True))
        words = np.hstack([meaning, np.where(np.arange(NOISE_MAX) < count, noise, -1)])
        order = np.argsort(draws.uniform(*words.shape), axis=1, kind="stable")
        return self.words.join_rows(np.take_along_axis(words, order, axis=1))

    def label_texts(self, concepts: np.ndarray, draws: Draws) -> PackedTexts:
        """Texts of labels: brand, attributes, category, and two code words that no query uses."""
        n = len(concepts)
        words = self.forms[concepts, -1]
        category, brand, attributes = words[:, :1], words[:, 1:2], words[:, 2:]
        attributes = np.where(draws.uniform(*attributes.shape) < OMITTED, -1, attributes)
        codes = self.first_code + draws.integers(self.num_codes, n, 2)
        return self.words.join_rows(np.hstack([brand, attributes, category, codes]))


OPTIONS = {"test": SIZE, "missing": r"0?\.\d+", "labels": r"\d+(?:\.\d+)?"}
REGEX = f"catalog-{SIZE}" + "".join(f"(?:-{name}-(?P<{name}>{value}))?" for name, value in OPTIONS.items())

FAMILY = Family(
    name="catalog-<n>",
    regex=REGEX,
    summary="a made product catalogue with n labels, a semantic gap and a Zipf tail (catalog-5k, catalog-131k)",
    make=ProductCatalog,
    options=tuple(OPTIONS),
)
