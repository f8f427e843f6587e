"""`shop-1k`: a small made dataset whose texts read as English: what people ask a shop for, and a thousand products.

It is built as the product catalogue is (`made.py`), from the word lists below in place of invented words. In a list
each line is a concept: the words that queries use, from the usual to the rare, and after the colon the word of labels.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from xmcbench.data.dataset import Dataset, Split
from xmcbench.data.draws import Draws
from xmcbench.data.texts import PackedTexts
from xmcbench_plugins.sources.made import (
    LINE,
    OMITTED,
    PALETTE,
    QUERY_WORDS,
    TEST_PER_LABEL,
    TRAIN_PER_LABEL,
    ZIPF_SHIFT,
    Generated,
    Products,
    Queries,
)

SIZE = 1000  # labels
QUERIES = round(SIZE * TRAIN_PER_LABEL), round(SIZE * TEST_PER_LABEL)  # for training, and for testing

CATEGORIES = """
armchair, easy chair, reading chair: armchair
rucksack, backpack, daypack: backpack
lamp, desk light, reading light: lamp
kettle, water boiler, tea kettle: kettle
jacket, coat, anorak: jacket
blanket, bedspread, cover: throw
saucepan, pot, cooking pot: saucepan
notebook, journal, diary: notebook
tent, camping shelter, pop-up tent: tent
bike, bicycle, city bike: bicycle
headphones, headset, earphones: headphones
rug, mat, floor covering: carpet
"""
BRANDS = """
Halden, Haldens, Hallden: Halden
Norrick, Norick, Norricks: Norrick
Bellweather, Belweather, Bellwether: Bellweather
Castor, Castors, Kastor: Castor
Ostend, Ostende, Ostends: Ostend
Wrenfield, Wren, Renfield: Wrenfield
"""
COLOURS = """
navy, dark blue, midnight blue: navy
red, scarlet, crimson: red
green, olive, mossy: green
black, jet-black, dark: black
white, snowy, bright: white
grey, slate, ash-coloured: grey
yellow, lemon, sunny: mustard
brown, chestnut, nut-brown: brown
pink, rosy, pale red: pink
purple, violet, lilac: purple
beige, sandy, cream: sand
turquoise, teal, sea-green: turquoise
orange, tangerine, amber: orange
silver, metallic, shiny: silver
"""
MATERIALS = """
wool, woollen, knitted: wool
cotton, soft cotton, jersey: cotton
leather, cowhide, suede: leather
steel, iron, metal: steel
oak, wooden, solid wood: oak
glass, see-through, crystal: glass
linen, flax, woven: linen
plastic, nylon, synthetic: polyester
bamboo, cane, rattan: bamboo
paper, cardboard, recycled paper: paper
copper, brass, bronze: copper
felt, fleece, fluffy: felt
canvas, sailcloth, tarpaulin: canvas
ceramic, clay, porcelain: ceramic
"""
FEATURES = """
foldable, folding, collapsible: foldable
waterproof, rainproof, watertight: waterproof
light, lightweight, featherweight: lightweight
small, compact, tiny: compact
large, big, roomy: oversized
quiet, silent, noiseless: silent
warm, cosy, heated: insulated
sturdy, strong, unbreakable: robust
washable, easy to clean, stain-proof: washable
adjustable, flexible, height-adjustable: adjustable
handmade, hand-crafted, artisan: handmade
cheap, affordable, budget: basic
elegant, stylish, classy: classic
children's, kids', junior: junior
"""
OPENINGS = """
looking for a; I need a; I want a new; any good; can you suggest a; where to buy a; my sister wants a; we need
another; please recommend a; searching for a used; is there a; do you have a; help me find a; show me a; a friend
asked for a
"""
CLOSINGS = """
for my flat; as a birthday gift; for the garden; for my daughter; before Friday; that lasts for years; for a student;
for long trips; for the office; with free delivery; for cold evenings; for my parents; under fifty euros; for the
weekend; on sale; for two people; for a small kitchen; like the one in the window; for everyday use; for travelling;
for the holidays
"""
SERIES = """
Aurora, Tessa, Milano, Fjord, Juniper, Atlas, Nova, Clara, Odin, Sierra, Lumen, Vela, Pippa, Orion, Delta, Maple,
Iris, Koto, Bergen, Luca, Astrid, Saga, Rio, Elba, Hugo, Nils, Freya, Otto, Ida, Marlow
"""
MODELS = 900  # model numbers of the labels, which no query uses


def concepts(text: str) -> list[list[str]]:
    """The words of each concept, those of queries first and that of labels last."""
    return [line.replace(":", ",").split(", ") for line in text.strip().splitlines()]


def phrases(text: str, between: str) -> list[str]:
    """The phrases of a list."""
    return " ".join(text.split()).split(between)


ATTRIBUTES = tuple(map(concepts, (FEATURES, COLOURS, MATERIALS)))  # in the order in which they stand before a product
FORMS = [form for kind in (concepts(CATEGORIES), concepts(BRANDS), *ATTRIBUTES) for form in kind]


class Shop(Generated):
    """A thousand products in lines, with the popularity, gaps and mistakes of the product catalogue."""

    def __init__(self) -> None:
        super().__init__("shop-1k", (*QUERIES, SIZE), "sentences and products made of word lists")

    def read(self, data_dir: Path) -> Dataset:  # noqa: ARG002 (nothing is read)
        products = shop_products()
        splits = []
        for i, size in enumerate(QUERIES):
            queries = Queries(products, Draws(8, i), size)
            splits.append(Split(query_texts(queries.stated(slice(0, size)), Draws(9, i)), queries.targets()))
        train, test = splits
        return self.dataset(train, test, label_texts(products.concepts, Draws(10)))


def shop_products() -> Products:
    """The labels. Concept ids number the categories first, then the brands, then features, colours and materials."""
    draws, lines = Draws(7), SIZE // LINE
    first = [len(concepts(CATEGORIES)), len(concepts(BRANDS)), *map(len, ATTRIBUTES)]
    categories, brands, *values = first
    category = draws.weighted(1.0 / (np.arange(categories) + 5.0), lines)
    brand = categories + draws.integers(brands, lines)
    starts = np.cumsum([categories + brands, *values[:-1]])
    palettes = np.stack([start + draws.integers(n, lines, PALETTE) for start, n in zip(starts, values, strict=True)], 1)
    line = np.arange(SIZE) // LINE
    choice = draws.integers(PALETTE, SIZE, len(ATTRIBUTES))
    attributes = palettes[line[:, None], np.arange(len(ATTRIBUTES)), choice]
    popularity = 1.0 / (draws.permutation(SIZE) + ZIPF_SHIFT)
    return Products(np.column_stack([category[line], brand[line], attributes]), palettes, popularity, sum(first))


def query_texts(stated_NC: np.ndarray, draws: Draws) -> PackedTexts:
    """A sentence for each query: an opening, features, colour, material, category, brand and an end, where stated."""
    openings, closings = phrases(OPENINGS, "; "), phrases(CLOSINGS, "; ")
    said = [*[form[i] for form in FORMS for i in range(len(QUERY_WORDS))], "product", "from", *openings, *closings]
    product = len(FORMS) * len(QUERY_WORDS)
    n = len(stated_NC)
    form = np.searchsorted(np.cumsum(QUERY_WORDS[:-1]), draws.uniform(*stated_NC.shape), side="right")
    words_NC = np.where(stated_NC < 0, -1, stated_NC * len(QUERY_WORDS) + form)
    category, brand = words_NC[:, :1], words_NC[:, 1:2]
    opening = product + 2 + draws.integers(len(openings), n, 1)
    closing = product + 2 + len(openings) + draws.integers(len(closings), n, 1)
    parts = [opening, words_NC[:, 2:], np.where(category < 0, product, category)]
    parts += [np.where(brand < 0, -1, product + 1), brand, closing]
    return PackedTexts.of(said).join_rows(np.hstack(parts))


def label_texts(concepts_LC: np.ndarray, draws: Draws) -> PackedTexts:
    """Brand, feature, colour, material and category of each product, some left out, with its series and its number."""
    series = phrases(SERIES, ", ")
    said = [*[form[-1] for form in FORMS], *series, *(str(100 + number) for number in range(MODELS))]
    n = len(concepts_LC)
    attributes = np.where(draws.uniform(n, len(ATTRIBUTES)) < OMITTED, -1, concepts_LC[:, 2:])
    codes = [len(FORMS) + draws.integers(len(series), n, 1), len(FORMS) + len(series) + draws.integers(MODELS, n, 1)]
    return PackedTexts.of(said).join_rows(np.hstack([concepts_LC[:, 1:2], attributes, concepts_LC[:, :1], *codes]))
