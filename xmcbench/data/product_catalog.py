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
"""

from __future__ import annotations

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


class ProductCatalog(Generated):
    """The catalogue of as many labels as its name says; `catalog-5k` and `catalog-5000` are the same."""

    def __init__(self, name: str) -> None:
        self.size = size = size_of(name)
        if size < 2 * LINE:
            raise XMCBenchError(f"dataset {name}: found {size} labels, expected at least {2 * LINE}")
        self.draft = Draft(
            name=name,
            num_train=round(size * TRAIN_PER_LABEL),
            num_test=round(size * TEST_PER_LABEL),
            num_labels=size,
            source="made, see docs/datasets.md",
            licence="Apache-2.0",
        )

    def read(self, data_dir: Path) -> Dataset:  # noqa: ARG002 (nothing is read)
        products = make_products(self.size)
        vocabulary = Vocabulary(products.num_concepts, min(self.size, CODES))
        splits = [
            make_queries(products, Draws(3, self.size, split), round(self.size * share))
            for split, share in enumerate((TRAIN_PER_LABEL, TEST_PER_LABEL))
        ]
        train, test = (vocabulary.query_texts(part.said, Draws(4, i)) for i, part in enumerate(splits))
        labels = vocabulary.label_texts(products.concepts, Draws(5))
        return make_dataset(self.draft, (train, test, labels), (splits[0].targets, splits[1].targets))


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


def make_queries(products: Products, draws: Draws, n: int) -> Queries:
    """`n` queries, what they say and what they are labelled with."""
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
    is_label = (draws.uniform(n, LINE) < np.array(RELATED)[shared]) | (candidates == anchor[:, None])
    is_label &= real & (draws.uniform(n, LINE) >= MISSING)
    row, column = np.nonzero(is_label)
    targets = pairs_csr(row, candidates[row, column], (n, size))
    said = np.where(draws.uniform(*meant.shape) < OMITTED, -1, meant)
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


FAMILY = Family(
    name="catalog-<n>",
    regex=f"catalog-{SIZE}",
    summary="a made product catalogue with n labels, a semantic gap and a Zipf tail (catalog-5k, catalog-131k)",
    make=ProductCatalog,
)
