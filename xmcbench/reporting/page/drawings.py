"""Drawings of pages without scripts: the curve of a record, the intervals of claims. Coordinates are numbers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import asinh

from xmcbench.reporting.claims import Claim
from xmcbench.reporting.curated import dataset_facts
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
