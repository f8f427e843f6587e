"""The catalogue's cards, and that the documentation tells of all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from xmcbench.data import Draft, Family, find_source
from xmcbench.plugins.registry import OWN, Registry
from xmcbench_plugins.sources.catalog import PUBLISHED, SMALL

DOCS = Path(__file__).parents[3] / "docs" / "datasets.md"
CARDS = (*PUBLISHED, *SMALL)


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_every_card_is_registered_and_complete(card: Draft) -> None:
    assert find_source(card.name).draft == card
    assert card.num_train
    assert card.num_test
    assert card.num_labels
    assert card.source
    assert card.licence


def test_the_documentation_tells_of_every_dataset_and_card_field() -> None:
    text = DOCS.read_text(encoding="utf-8")
    things = [known.thing for known in Registry().all("dataset") if known.origin.distribution == OWN]
    assert any(isinstance(thing, Family) for thing in things)
    for name in [*(thing.name for thing in things), *Draft.model_fields.keys() - {"name"}, "content_hash"]:
        assert f"`{name}`" in text, name
    for card in CARDS:
        row = "".join(line for line in text.splitlines() if line.startswith(f"| `{card.name}` |"))
        assert row, f"the table of datasets in docs/datasets.md needs a row of `{card.name}`"
        told = [cell.strip() for cell in row.strip("|").split("|")[1:7]]
        sizes = [f"{size:,}" for size in (card.num_train, card.num_test, card.num_labels)]
        constants = f"{card.propensity_a:g} / {card.propensity_b:g}"
        assert told == [*sizes, constants, str(card.max_length), card.text]
