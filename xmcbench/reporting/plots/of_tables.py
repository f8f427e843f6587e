"""Figures of a leaderboard: quality against cost, quality over the budget, contributions of deciles."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

from xmcbench.evaluation.analysis import Analysis
from xmcbench.reporting.costs import CHART_COSTS, CURVE_COSTS, costs, mean_curve
from xmcbench.reporting.numbers import short_number
from xmcbench.reporting.plots.canvas import (
    COLOURS,
    LEADER,
    PAGE,
    apart,
    drawing,
    family_legend,
    label_points,
    line_styles,
    plain,
)
from xmcbench.reporting.plots.of_analyses import deciles
from xmcbench.reporting.rows import Group, Leaderboard, Row, budget_text
from xmcbench.trial.record import Record

DIRECT = 8  # names beside points and lines; where there are more, numbers, and a key below
MAX_CURVES = 24  # the best methods only: readers cannot distinguish more
DRAWN_COSTS = ("negative_pool", "encoder_tokens", "device_hours")
SPAN = 1e4  # of a logarithmic axis of costs: what costs less is drawn at its end
LOG_RATIO = 4.0  # the axis is logarithmic if the largest cost is more than this times the smallest


class Point(NamedTuple):
    """A row in a chart of costs."""

    source: str
    name: str
    family: int
    x: float
    y: float
    error: tuple[float, float]  # from the value down and up to the ends of its interval


def write_figures(
    table: Leaderboard,
    records: Mapping[str, Record],
    out: Path,
    format: str,
    analyses: Mapping[str, Analysis] | None = None,
) -> list[Path]:
    """Draw all figures for which the datasets of the table have data, to the folder `out`. Returns their paths."""
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
    """Draw the figures of trials with the same budget."""
    stem = f"{name}-{_stem(budget_text(group.budget))}" if group.budget else name
    paths = []
    curves = [(row, mean_curve([records[key] for key in row.keys if key in records])) for row in group.rows]
    drawn = [(row, curve) for row, curve in curves if len(curve.get(group.sort, ())) > 1]
    if drawn:
        paths.append(out / f"{stem}-curve.{format}")
        _curves(drawn, group.sort, paths[-1])
    known = {row.called: analyses[row.keys[0]] for row in group.rows if row.keys and row.keys[0] in analyses}
    if known:
        paths.append(out / f"{stem}-deciles.{format}")
        deciles(dict(list(known.items())[:DIRECT]), paths[-1])
    return paths


def _by_dataset(table: Leaderboard) -> dict[str, list[Group]]:
    """The groups of each dataset and track, by the prefix of their file names."""
    groups: dict[str, list[Group]] = defaultdict(list)
    for group in table.groups:
        track = "" if group.track == "supervised" else f"-{_stem(group.track)}"
        groups[f"{_stem(group.dataset)}{track}"].append(group)
    return groups


def _stem(text: str) -> str:
    return re.sub(r"[^\w.]+", "-", text.replace(",", "")).strip("-.") or "unnamed"


def _cost(rows: Sequence[Row], cost: str, metric: str, path: Path) -> None:
    """Quality against cost (PRIME, Figure 1), with the Pareto front as steps; published rows are hollow."""
    least = max(costs(row)[cost] for row in rows) / SPAN
    found = {_point(row, max(least, costs(row)[cost]), metric) for row in rows}  # papers repeat rows
    points = sorted(found, key=lambda point: (-point.y, point.name, point.x))
    front = _front(points)
    named = list({point.name: point for point in reversed(points)}.values())[::-1][:MAX_CURVES]
    with drawing(path, PAGE, 3.3 + _height(named)) as axes:
        for point in points:
            colour, filled = COLOURS[point.family], point.source != "published"
            axes.errorbar(point.x, point.y, [[end] for end in point.error], color=colour, linewidth=0.7, zorder=2)
            style = {"facecolors": colour if filled else "white", "edgecolors": colour, "linewidths": 0.9, "zorder": 3}
            axes.scatter(point.x, point.y, 22, **style)
        if max(point.x for point in points) > LOG_RATIO * min(point.x for point in points):
            axes.set_xscale("log")
        axes.margins(0.1)
        right = axes.get_xlim()[1]
        x, y = [*(point.x for point in front), right], [*(point.y for point in front), front[-1].y]
        axes.step(x, y, where="post", color="#888888", linewidth=0.8, linestyle="--", zorder=1, label="Pareto front")
        axes.set(xlabel=CHART_COSTS[cost], ylabel=f"{metric} (%)", xlim=(None, right))
        axes.xaxis.set_major_formatter(lambda value, _: short_number(value))
        for source, fill in (("measured", "#565b62"), ("published", "none")):
            if any(point.source == source for point in points):
                axes.scatter([], [], 22, facecolors=fill, edgecolors="#565b62", label=source)
        key = _label(axes, named, points)
        family_legend(axes, [point.family for point in points], key)


def _point(row: Row, cost: float, metric: str) -> Point:
    value, ends = row.metrics[metric], row.intervals.get(metric)
    error = (100 * (value - ends[0]), 100 * (ends[1] - value)) if ends else (0.0, 0.0)
    return Point(
        row.source,
        row.called,
        row.family,
        cost,
        100 * value,
        (min(max(0.0, error[0]), 100 * value), max(0.0, error[1])),
    )


def _front(points: Sequence[Point]) -> list[Point]:
    """The points that no other point beats in both cost and metric, cheapest first."""
    front: list[Point] = []
    for point in sorted(points, key=lambda point: (point.x, -point.y)):
        if not front or point.y > front[-1].y:
            front.append(point)
    return front


def _label(axes: Any, named: Sequence[Point], points: Sequence[Point]) -> list[str]:
    """Write names beside at most `DIRECT` points, else numbers, without overlap. Returns the key of the numbers."""
    direct = len(named) <= DIRECT
    words = [shorten(point.name, 48) if direct else str(at) for at, point in enumerate(named, start=1)]
    labels = [(point.x, point.y, word) for point, word in zip(named, words, strict=True)]
    label_points(axes, labels, [(point.x, point.y) for point in points])
    return [] if direct else [f"{at}  {point.name}" for at, point in enumerate(named, start=1)]


def _curves(rows: Sequence[tuple[Row, Mapping[str, list[float]]]], metric: str, path: Path) -> None:
    """Quality on held-out queries against the amount spent, means over seeds with 95 % intervals, a line a row."""
    shown = sorted(rows, key=lambda pair: -pair[1][metric][-1])[:MAX_CURVES]
    spent = next(name for name in (*CURVE_COSTS, "fraction") if all(name in curve for _, curve in shown))
    styles = line_styles([row.family for row, _ in shown])
    with drawing(path, PAGE, 3.0 + _height(shown)) as axes:
        ends = []
        for (_, curve), style in zip(shown, styles, strict=True):
            marks = {"marker": "o", "markersize": 2.5, "elinewidth": 0.6, "linewidth": 1.1}
            axes.errorbar(curve[spent], curve[metric], curve.get(f"{metric} ±"), **marks, **style)
            ends.append((curve[spent][-1], curve[metric][-1]))
        axes.margins(0.03, 0.06)
        axes.xaxis.set_major_formatter(lambda value, _: short_number(value))
        axes.set(xlabel=CURVE_COSTS.get(spent, "share of the budget"), ylabel=f"{metric} on held-out queries (%)")
        direct = len(shown) <= DIRECT
        low, high = axes.get_ylim()
        places = apart([y for _, y in ends], (high - low) / 23)
        for at, ((x, y), (row, _), place) in enumerate(zip(ends, shown, places, strict=True), start=1):
            word = plain(shorten(row.called, 40)) if direct else str(at)
            edge = axes.get_yaxis_transform()
            axes.annotate(word, (x, y), (1.02, place), textcoords=edge, fontsize=6, va="center", arrowprops=LEADER)
        key = [] if direct else [f"{at}  {row.called}" for at, (row, _) in enumerate(shown, start=1)]
        family_legend(axes, [row.family for row, _ in shown], key)


def _height(named: Sequence[Any]) -> float:
    """Inches that the key of the numbers takes below a figure."""
    return 0 if len(named) <= DIRECT else 0.15 * (1 + len(named) / 3)
