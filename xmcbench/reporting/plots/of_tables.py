"""Figures of a leaderboard: quality against cost, quality over the budget, contributions of deciles."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

from xmcbench.evaluation.analysis import Analysis
from xmcbench.plugins.extras import import_extra
from xmcbench.reporting.costs import CHART_COSTS, CURVE_COSTS, costs, curves
from xmcbench.reporting.numbers import short_number
from xmcbench.reporting.plots.canvas import COLOURS, MARKERS, PAGE, drawing, legend_below, plain
from xmcbench.reporting.plots.of_analyses import deciles
from xmcbench.reporting.rows import Group, Leaderboard, Row, budget_text
from xmcbench.trial.record import Record

MAX_LABELS = 16  # points with a name beside them
DRAWN_COSTS = ("negative_pool", "encoder_tokens", "device_hours")
MIN_AREA, AREA_RANGE = 16.0, 260.0  # of a marker, in square points
LOG_RATIO = 4.0  # the axis is logarithmic if the largest cost is more than this times the smallest


class Point(NamedTuple):
    """A row in a chart of costs."""

    source: str
    name: str
    x: float
    y: float
    area: float  # of the marker, in square points


MAX_CURVES = len(COLOURS)  # the best methods only: readers cannot distinguish more


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
    drawn = [curve for curve in curves(group.rows, records).values() if any(group.sort in at for at in curve[1])]
    if drawn:
        paths.append(out / f"{stem}-curve.{format}")
        _curves(drawn[:MAX_CURVES], group.sort, paths[-1])
    known = {row.method: analyses[row.keys[0]] for row in group.rows if row.keys and row.keys[0] in analyses}
    if known:
        paths.append(out / f"{stem}-deciles.{format}")
        deciles(dict(list(known.items())[:MAX_CURVES]), paths[-1])
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
    """Quality against cost (PRIME, Figure 1). A marker's area is the batch size; published rows are hollow."""
    largest = max(costs(row).get("batch_size", 0.0) for row in rows)
    areas = [MIN_AREA + AREA_RANGE * costs(row).get("batch_size", 0.0) / (largest or 1.0) for row in rows]
    points = [
        Point(row.source, row.method, costs(row)[cost], 100 * row.metrics[metric], area)
        for row, area in zip(rows, areas, strict=True)
    ]
    points = sorted(set(points), key=lambda point: (-point.y, point.name, point.x))  # papers repeat rows
    with drawing(path, PAGE, 3.4) as axes:
        for at, source in enumerate(("measured", "published")):
            if sourced := [point for point in points if point.source == source]:
                fill = COLOURS[at] + "66" if source == "measured" else "none"
                x, y, areas = ([getattr(point, name) for point in sourced] for name in ("x", "y", "area"))
                axes.scatter(x, y, areas, facecolors=fill, edgecolors=COLOURS[at], linewidths=0.9, label=source)
        if max(point.x for point in points) > LOG_RATIO * min(point.x for point in points):
            axes.set_xscale("log")
        axes.set(xlabel=CHART_COSTS[cost], ylabel=f"{metric} (%)")
        axes.margins(0.1)
        axes.xaxis.set_major_formatter(lambda value, _: short_number(value))
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, markerscale=0.6)
        _label(axes, points)


def _label(axes: Any, points: Sequence[Point]) -> None:
    """Write the names of the best points beside them, each name once, without overlap."""
    adjust = import_extra("adjustText", "plots", "labelling points")
    best = list({point.name: point for point in reversed(points)}.values())[::-1][:MAX_LABELS]
    texts = [axes.text(point.x, point.y, plain(shorten(point.name, 48)), fontsize=6) for point in best]
    lines = {"arrowstyle": "-", "color": "#888888", "linewidth": 0.4}
    adjust.adjust_text(
        texts, [point.x for point in points], [point.y for point in points], ax=axes, arrowprops=lines, iter_lim=200
    )


def _curves(lines: Sequence[tuple[str, list[dict[str, float]]]], metric: str, path: Path) -> None:
    """Quality on held-out training queries against the amount spent of the budget."""
    with drawing(path, PAGE, 2.8) as axes:
        spent = next(
            name for name in (*CURVE_COSTS, "fraction") if any(name in point for _, points in lines for point in points)
        )
        for at, (name, points) in enumerate(lines):
            known = [point for point in points if metric in point and spent in point]
            style = {"color": COLOURS[at], "marker": MARKERS[at], "markersize": 3}
            x, y = [point[spent] for point in known], [100 * point[metric] for point in known]
            axes.plot(x, y, label=plain(name), **style)
        axes.xaxis.set_major_formatter(lambda value, _: short_number(value))
        axes.set(xlabel=CURVE_COSTS.get(spent, "fraction of the budget"), ylabel=f"{metric} on held-out queries (%)")
        legend_below(axes, 3)
