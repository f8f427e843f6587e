"""What pages show without scripts: the curve of a record, the intervals of claims, the cards of datasets.

Coordinates of the drawings are numbers alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import asinh, sqrt

from xmcbench.errors import XMCBenchError
from xmcbench.reporting.claims import Claim
from xmcbench.reporting.curated import dataset_facts
from xmcbench.reporting.rows import Leaderboard
from xmcbench.trial.record import Record

WIDTH, HEIGHT = 560, 200
LEFT, BOTTOM, ROOM = 46, 26, 10
FOREST, ROW = 420, 18  # pixels of an interval's plot
FAR = 50.0  # points at the ends of the axis of claims; it is linear near 0 and logarithmic beyond
TICKS = (-50, -20, -5, -2, 0, 2, 5, 20, 50)


@dataclass(frozen=True)
class Curve:
    """A metric over the share of the budget, as coordinates of a picture of `WIDTH` by `HEIGHT`."""

    metric: str
    points: tuple[tuple[float, float], ...]
    lowest: tuple[str, float]  # text and place of the ticks at the ends of the axis
    highest: tuple[str, float]
    shares: tuple[tuple[str, float], ...]  # of the budget: ticks

    @property
    def line(self) -> str:
        """For a polyline."""
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in self.points)


def curve(record: Record) -> Curve | None:
    """The curve of the metric that chose the checkpoint; None for a record with fewer than two points."""
    chosen = record.trial.selection.metric if record.trial.selection else ""
    metric = next((name for name in (chosen, *record.metrics) if record.curve and name in record.curve[0]), "")
    known = [(at["fraction"], 100 * at[metric]) for at in record.curve if metric in at and "fraction" in at]
    if len(known) < 2:
        return None
    low, high = min(value for _, value in known), max(value for _, value in known)
    end, height = max(1.0, *(fraction for fraction, _ in known)), high - low or 1.0
    points = [
        (_across(fraction / end), ROOM + (HEIGHT - BOTTOM - 2 * ROOM) * (1 - (value - low) / height))
        for fraction, value in known
    ]
    top, bottom = min(y for _, y in points), max(y for _, y in points)
    shares = tuple((f"{share} %", _across(share / 100 / end)) for share in (0, 25, 50, 75, 100))
    return Curve(metric, tuple(points), (f"{low:.1f}", bottom), (f"{high:.1f}", top), shares)


def _across(share: float) -> float:
    return LEFT + (WIDTH - LEFT - 2 * ROOM) * share


@dataclass(frozen=True)
class Bar:
    """The interval of a regime on the axis of claims, in pixels."""

    low: float
    middle: float
    high: float
    clear: bool  # significant after correction
    made: bool  # on made data
    name: str


def bars(claim: Claim) -> list[Bar]:
    """An interval for each regime that ran, in the metric that the claim's figure shows."""
    found = []
    for regime in claim.regimes:
        column = regime.column(claim.shown)
        if column is None or regime.scale is None:
            continue
        low, middle, high = (place(float(text)) for text in (column.interval[0], column.difference, column.interval[1]))
        text = f"{column.metric} {column.difference} ({column.interval[0]} to {column.interval[1]})"
        made = dataset_facts(regime.scale.dataset).made
        found.append(Bar(low, middle, high, column.sign != "?", made, f"{regime.scale}: {text}"))
    return found


def place(points: float) -> float:
    """The place of a difference on the axis of claims."""
    return FOREST / 2 * (1 + asinh(max(-FAR, min(FAR, points))) / asinh(FAR) * 0.94)


def ticks() -> Sequence[tuple[int, float]]:
    """The ticks of the axis of claims."""
    return [(tick, place(tick)) for tick in TICKS]


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
    train, test, labels = (
        getattr(facts, size) or getattr(draft, size, None) for size in ("num_train", "num_test", "num_labels")
    )
    if texts := " and ".join(f"{count:,} {part}" for count, part in ((train, "training"), (test, "test")) if count):
        yield "queries", texts
    if labels:
        yield "labels", f"{labels:,}"
    if per_text := facts.labels_per_text or (draft and draft.labels_per_query):
        yield "labels per text", f"{per_text:g}"
    if facts.texts:
        yield "texts", facts.texts
    yield "data", "made by a rule" if facts.made else "real"
    if test:
        yield "smallest visible difference", f"{100 * POWER * SPREAD / sqrt(test):.1f} points of P@1, one seed"
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
