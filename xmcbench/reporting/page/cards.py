"""The cards of the datasets: what one has to know of a dataset before its results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

from xmcbench.errors import XMCBenchError
from xmcbench.reporting.curated import dataset_facts
from xmcbench.reporting.rows import Leaderboard

SPREAD = 0.5  # standard deviation over queries of a paired difference in P@1: docs/datasheets.md
POWER = 2.8  # 95 % confidence and 80 % power, in standard errors


@dataclass(frozen=True)
class Card:
    """Names and values, as text."""

    name: str
    made: bool
    folded: bool  # papers alone have results on it
    rows: tuple[tuple[str, str], ...]


def cards(board: Leaderboard) -> list[Card]:
    """A card for each dataset of the board: those with measured rows first, real ones before made ones."""
    measured = {group.dataset for group in board.groups if group.source == "measured"}
    names = sorted({group.dataset for group in board.groups})
    found = [Card(name, dataset_facts(name).made, name not in measured, tuple(_rows(name, board))) for name in names]
    return sorted(found, key=lambda card: (card.folded, card.made, card.name))


def _rows(name: str, board: Leaderboard) -> Iterator[tuple[str, str]]:
    from xmcbench.data import find_source  # numpy

    facts = dataset_facts(name)
    try:
        draft = find_source(name).draft
    except XMCBenchError:
        draft = None
    sizes = [(draft.num_train, "training"), (draft.num_test, "test")] if draft else []
    if texts := " and ".join(f"{count:,} {part}" for count, part in sizes if count):
        yield "queries", texts
    if draft and draft.num_labels:
        yield "labels", f"{draft.num_labels:,}"
    if per_text := facts.labels_per_text or (draft and draft.labels_per_query):
        yield "labels per text", f"{per_text:g}"
    if facts.texts:
        yield "texts", facts.texts
    yield "data", "made by a rule" if facts.made else "real"
    if draft and draft.num_test:
        yield (
            "smallest visible difference",
            f"{100 * POWER * SPREAD / sqrt(draft.num_test):.1f} points of P@1, one seed",
        )
    shared = max(
        (_shared(row.facts.get("shared_texts", 0)) for g in board.groups if g.dataset == name for row in g.rows),
        default=0,
    )
    if leakage := facts.leakage or (f"{shared:,} test texts are also in training" if shared else ""):
        yield "leakage", leakage
    if draft and draft.licence:
        yield "licence", draft.licence
    if draft and draft.source:
        yield "source", draft.source


def _shared(fact: object) -> int:
    return fact if isinstance(fact, int) else 0
