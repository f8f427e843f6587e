"""Figures of a leaderboard: cost against quality, quality along the budget, deciles."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from xmcbench.evaluation.analysis import Analysis
from xmcbench.reporting.costs import COSTS, SPENT, costs, curves
from xmcbench.reporting.plots.canvas import COLOURS, MARKERS, PAGE, drawing, legend_below, plain
from xmcbench.reporting.plots.of_analyses import deciles
from xmcbench.reporting.rows import Group, Row, Table, budget_text
from xmcbench.trial.record import Record

NAMED = 16  # points with their name beside them
DRAWN_COSTS = ("negative_pool", "encoder_tokens", "device_hours")
SMALLEST, LARGEST = 16.0, 260.0  # square points of a blob
WIDE = 4.0  # the largest cost over the smallest from which on the axis is logarithmic
UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


class Spot(NamedTuple):
    """A row in a chart of costs."""

    source: str
    name: str
    x: float
    y: float
    size: float  # square points

    @property
    def radius(self) -> float:
        """In points."""
        return math.sqrt(self.size / math.pi)


MOST = len(COLOURS)  # methods of a figure, the best ones: more cannot be told apart


def write_figures(
    table: Table,
    records: Mapping[str, Record],
    out: Path,
    format: str,
    analyses: Mapping[str, Analysis] | None = None,
) -> list[Path]:
    """Draw what can be drawn of each dataset of the table into the folder `out`; the paths of the figures."""
    paths = []
    for name, groups in _by_dataset(table).items():
        rows = [row for group in groups for row in group.rows]
        sort = groups[0].sort
        for cost in DRAWN_COSTS:
            shown = [row for row in rows if cost in costs(row) and sort in row.metrics]
            if len(shown) > 1:
                paths.append(out / f"{name}-{sort}-{cost}.{format}".replace("@", ""))
                _cost(shown, cost, sort, paths[-1])
        for group in groups:
            paths += _of_group(group, name, records, analyses or {}, out, format)
    return paths


def _of_group(
    group: Group, name: str, records: Mapping[str, Record], analyses: Mapping[str, Analysis], out: Path, format: str
) -> list[Path]:
    """What is drawn of trials that had one budget."""
    stem = f"{name}-{_stem(budget_text(group.budget))}" if group.budget else name
    paths = []
    found = [curve for curve in curves(group.rows, records).values() if any(group.sort in at for at in curve[1])]
    if found:
        paths.append(out / f"{stem}-curve.{format}")
        _curves(found[:MOST], group.sort, paths[-1])
    known = {row.method: analyses[row.keys[0]] for row in group.rows if row.keys and row.keys[0] in analyses}
    if known:
        paths.append(out / f"{stem}-deciles.{format}")
        deciles(dict(list(known.items())[:MOST]), paths[-1])
    return paths


def _by_dataset(table: Table) -> dict[str, list[Group]]:
    """The groups of each dataset and track, by the beginning of their files' names."""
    found: dict[str, list[Group]] = defaultdict(list)
    for group in table.groups:
        track = "" if group.track == "supervised" else f"-{_stem(group.track)}"
        found[f"{_stem(group.dataset)}{track}"].append(group)
    return found


def _stem(text: str) -> str:
    return re.sub(r"[^\w.]+", "-", text.replace(",", "")).strip("-.") or "unnamed"


def _cost(rows: Sequence[Row], cost: str, metric: str, path: Path) -> None:
    """PRIME's Figure 1: quality against cost, a blob as large as the batch; published rows are hollow."""
    largest = max(costs(row).get("batch_size", 0.0) for row in rows)
    sizes = [SMALLEST + LARGEST * costs(row).get("batch_size", 0.0) / (largest or 1.0) for row in rows]
    spots = [
        Spot(row.source, row.method, costs(row)[cost], 100 * row.metrics[metric], size)
        for row, size in zip(rows, sizes, strict=True)
    ]
    spots = sorted(set(spots), key=lambda spot: (-spot.y, spot.name, spot.x))  # papers repeat one another's rows
    with drawing(path, PAGE, 3.4) as axes:
        for at, source in enumerate(("measured", "published")):
            if some := [spot for spot in spots if spot.source == source]:
                fill = COLOURS[at] + "66" if source == "measured" else "none"
                x, y, areas = ([getattr(spot, name) for spot in some] for name in ("x", "y", "size"))
                axes.scatter(x, y, areas, facecolors=fill, edgecolors=COLOURS[at], linewidths=0.9, label=source)
        if max(spot.x for spot in spots) > WIDE * min(spot.x for spot in spots):
            axes.set_xscale("log")
        axes.set(xlabel=COSTS[cost], ylabel=f"{metric} (%)")
        axes.margins(0.1)
        axes.xaxis.set_major_formatter(lambda value, _: tick(value))
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, markerscale=0.6)
        _name(axes, spots)


def tick(value: float) -> str:
    """
    >>> tick(20_000.0), tick(1_500_000.0), tick(0.05)
    ('20k', '1.5M', '0.05')
    """
    size, unit = next(((size, unit) for size, unit in UNITS if value >= size), (1.0, ""))
    return f"{value / size:.6g}{unit}"


def _name(axes: Any, spots: Sequence[Spot]) -> None:
    """Names beside the best points, once each, left out where they would cover something or leave the axes."""
    axes.figure.draw_without_rendering()
    inside, pixels = axes.get_window_extent(), axes.figure.dpi / 72
    places = [tuple(axes.transData.transform((spot.x, spot.y))) for spot in spots]
    taken = [_around(place, spot.radius * pixels) for place, spot in zip(places, spots, strict=True)]
    named: dict[str, tuple[float, ...]] = {}
    for spot, place in zip(spots, places, strict=True):
        if len(named) >= NAMED or spot.name in named or any(math.dist(place, other) < 3 for other in named.values()):
            continue
        for side, way in (("left", 1), ("right", -1)):
            style = {"textcoords": "offset points", "fontsize": 6, "ha": side, "va": "center_baseline"}
            text = axes.annotate(plain(spot.name), (spot.x, spot.y), xytext=(way * (spot.radius + 2), 0), **style)
            box = tuple(text.get_window_extent().extents)
            if box[0] > inside.x0 and box[2] < inside.x1 and not any(_meet(box, other) for other in taken):
                taken.append(box)
                named[spot.name] = place
                break
            text.remove()


def _around(place: tuple[float, ...], radius: float) -> tuple[float, ...]:
    return place[0] - radius, place[1] - radius, place[0] + radius, place[1] + radius


def _meet(box: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]


def _curves(found: Sequence[tuple[str, list[dict[str, float]]]], metric: str, path: Path) -> None:
    """Quality on held-out training queries along what the budget limits."""
    with drawing(path, PAGE, 2.8) as axes:
        spent = next(
            name for name in (*SPENT, "fraction") if any(name in point for _, points in found for point in points)
        )
        for at, (name, points) in enumerate(found):
            known = [point for point in points if metric in point and spent in point]
            style = {"color": COLOURS[at], "marker": MARKERS[at], "markersize": 3}
            x, y = [point[spent] for point in known], [100 * point[metric] for point in known]
            axes.plot(x, y, label=plain(name), **style)
        axes.xaxis.set_major_formatter(lambda value, _: tick(value))
        axes.set(xlabel=SPENT.get(spent, "share of the budget"), ylabel=f"{metric} on held-out queries (%)")
        legend_below(axes, 3)
