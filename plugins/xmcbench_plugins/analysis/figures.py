"""Figures for papers.

Of a leaderboard: quality against cost, quality over the budget, contributions of deciles. Of predictions: DEXML's
Figures 5 to 8, and precision against propensity-scored precision.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from xmcbench.evaluation.analysis import DECILES, SIMILARITY, SIMILARITY_OF_TAIL, Analysis
from xmcbench.reporting.rows import CHART_COSTS, CURVE_COSTS, Group, Leaderboard, Row, budget_text, costs, mean_curve
from xmcbench.reporting.text_table import short_number
from xmcbench.trial.record import Record
from xmcbench_plugins.analysis.plots import (
    COLOURS,
    LEADER,
    PAGE,
    apart,
    drawing,
    family_legend,
    label_points,
    legend_below,
    plain,
    series,
)
from xmcbench_plugins.analysis.tables import relative_gain

DIRECT = 8  # lines of a figure, and names beside points: the best methods only, readers cannot distinguish more
LONGEST = 40  # characters of a name
EARLY = 0.7  # of the longest line
DRAWN_COSTS = ("flops", "negative_pool", "encoder_tokens", "device_hours")
SPAN = 1e4  # of a logarithmic axis of costs: what costs less is drawn at its end
LOG_RATIO = 4.0  # the axis is logarithmic if the largest cost is more than this times the smallest


def write_analysis_figures(analyses: Mapping[str, Analysis], out: Path, format: str) -> list[Path]:
    """Draw the analyses of trials on one dataset, by name, to the folder `out`. Returns the paths of the figures."""
    figures = {"deciles": deciles, "precision-recall": precision_recall, "scores": scores, "trade-off": trade_off}
    if SIMILARITY in next(iter(analyses.values())).breakdowns:
        figures["similarity"] = similarity
    if any(analysis.reliability for analysis in analyses.values()):
        figures["reliability"] = reliability
    paths = [out / f"{name}.{format}" for name in figures]
    for path, draw in zip(paths, figures.values(), strict=True):
        draw(analyses, path)
    return paths


def deciles(analyses: Mapping[str, Analysis], path: Path) -> None:
    """The contribution of the labels of each decile to P@k (DEXML, Figure 7)."""
    with drawing(path, PAGE) as axes:
        for at, (name, analysis) in enumerate(analyses.items()):
            shares = 100 * np.asarray(analysis.breakdowns[DECILES].contribution)
            axes.plot(range(1, 11), shares, label=plain(name), markersize=3, **series(at))
        axes.set_xticks(range(1, 11))
        axes.set_xlabel("decile of the labels (1: most frequent in training)")
        axes.set_ylabel(_contribution(analyses))
        legend_below(axes)


def similarity(analyses: Mapping[str, Analysis], path: Path) -> None:
    """Contributions to P@k of bins of labels by similarity to other labels (DEXML, Figure 8).

    The left panel shows tail labels, the right panel all labels. With several trials, bars are gains over the first.
    """
    with drawing(path, PAGE, panels=2) as panels:
        for axes, partition, title in zip(
            panels, (SIMILARITY_OF_TAIL, SIMILARITY), ("tail labels", "all labels"), strict=True
        ):
            shares = {name: analysis.breakdowns[partition].contribution[:3] for name, analysis in analyses.items()}
            axes.set_ylabel(_contribution(analyses))
            if len(shares) > 1:
                reference, first = next(iter(shares.items()))
                shares = {name: relative_gain(first, values) for name, values in shares.items() if name != reference}
                axes.set_ylabel(f"gain over {plain(reference)} (%)")
                axes.axhline(0, color="#444444", linewidth=0.6)
            width, places = 0.82 / max(1, len(shares)), np.arange(3)
            for at, (name, values) in enumerate(shares.items()):  # a group of bars for each bin, a bar for each trial
                colour = COLOURS[(at + (len(analyses) > 1)) % len(COLOURS)]
                left = places - 0.41 + (at + 0.5) * width
                axes.bar(left, 100 * np.asarray(values), width * 0.92, label=plain(name), color=colour)
            axes.set_xticks(places, next(iter(analyses.values())).breakdowns[partition].bins[:3])
            axes.grid(visible=False, axis="x")
            axes.set_title(title)
        legend_below(panels[0])


def precision_recall(analyses: Mapping[str, Analysis], path: Path) -> None:
    """Precision against recall (DEXML, Figure 5). Dotted where the curve lacks labels that are not stored."""
    with drawing(path) as axes:
        for at, (name, analysis) in enumerate(analyses.items()):
            curve, colour = analysis.precision_recall, COLOURS[at % len(COLOURS)]
            exact = int(np.count_nonzero(curve.thresholds > curve.exact_from))
            recall, precision = 100 * curve.recall, 100 * curve.precision
            axes.plot(recall[:exact], precision[:exact], color=colour, label=plain(name))
            axes.plot(recall[max(0, exact - 1) :], precision[max(0, exact - 1) :], color=colour, linestyle=":")
        axes.set(xlabel="recall (%)", ylabel="precision (%)", xlim=(0, 100), ylim=(0, None))
        axes.legend()


def scores(analyses: Mapping[str, Analysis], path: Path) -> None:
    """The score densities of true and false pairs, one panel per trial (DEXML, Figure 6)."""
    with drawing(path, min(PAGE, 2.4 * len(analyses) + 1.0), 2.1, panels=len(analyses)) as panels:
        for axes, (name, analysis) in zip(panels, analyses.items(), strict=True):
            pairs = analysis.scores
            for density, label, colour in ((pairs.true, "true", COLOURS[0]), (pairs.false, "false", COLOURS[1])):
                axes.stairs(density, pairs.edges, fill=True, alpha=0.35, color=colour, label=label)
                axes.stairs(density, pairs.edges, color=colour, linewidth=0.9)
            axes.set(title=plain(name), xlabel="score", yticks=[])
            axes.grid(visible=False)
            axes.legend()
        panels[0].set_ylabel("density")


def reliability(analyses: Mapping[str, Analysis], path: Path) -> None:
    """The share of true labels against their probability (Guo et al., 2017, Figure 1); the diagonal is calibrated."""
    with drawing(path) as axes:
        axes.plot([0, 100], [0, 100], color="0.6", linewidth=0.8, linestyle="--")
        for at, (name, analysis) in enumerate(analyses.items()):
            if (found := analysis.reliability) is not None:
                held = found.pairs > 0
                points = 100 * found.confidence[held], 100 * found.true[held]
                axes.plot(*points, linewidth=0.8, label=plain(name), markersize=4, **series(at))
        axes.set(xlabel="probability (%)", ylabel="share true (%)", xlim=(0, 100), ylim=(0, 100))
        legend_below(axes, 2)


def trade_off(analyses: Mapping[str, Analysis], path: Path) -> None:
    """P@k against PSP@k at each k. Higher is better on all labels, further right is better on rare labels."""
    with drawing(path) as axes:
        for at, (name, analysis) in enumerate(analyses.items()):
            precision, propensity = zip(*analysis.trade_off.values(), strict=True)
            x, y = 100 * np.array(propensity), 100 * np.array(precision)
            axes.plot(x, y, linewidth=0.8, label=plain(name), markersize=4, **series(at))
            for k, left, up in zip(analysis.trade_off, x, y, strict=True):
                axes.annotate(f"@{k}", (left, up), xytext=(3, 3), textcoords="offset points", fontsize=6)
        axes.set(xlabel="PSP@k (%)", ylabel="P@k (%)")
        axes.margins(0.12)
        legend_below(axes, 2)


def _contribution(analyses: Mapping[str, Analysis]) -> str:
    return f"contribution to P@{next(iter(analyses.values())).k} (%)"


class Point(NamedTuple):
    """A row in a chart of costs, quality in per cent."""

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
    analyses: Mapping[str, Analysis] = MappingProxyType({}),
) -> list[Path]:
    """Draw all figures for which the tables have data, each of one table and so of one budget, to the folder `out`.

    Returns their paths.
    """
    paths: list[Path] = []
    by_dataset: dict[str, list[Group]] = defaultdict(list)  # and track, by the prefix of their file names
    for group in table.groups:
        track = "" if group.track == "supervised" else f"-{_stem(group.track)}"
        by_dataset[f"{_stem(group.dataset)}{track}"].append(group)
    for name, groups in by_dataset.items():
        for group in groups:
            about = [budget_text(group.budget) if group.budget else "", group.protocol, *group.by.values()]
            stem = "-".join([name, *(_stem(text) for text in about if text)])
            for cost in DRAWN_COSTS:
                shown = [row for row in group.rows if cost in costs(row) and group.sort in row.metrics]
                if len(shown) > 1:
                    source = "" if group.source == "measured" else f"-{group.source}"
                    paths.append(out / f"{stem}{source}-{group.sort}-{cost}.{format}".replace("@", ""))
                    _cost(shown, cost, group.sort, paths[-1])
            curves = [(row, mean_curve([records[key] for key in row.keys if key in records])) for row in group.rows]
            if drawn := [(row, curve) for row, curve in curves if len(curve.get(group.sort, ())) > 1]:
                paths.append(out / f"{stem}-curve.{format}")
                _curves(drawn, tuple(group.budget), group.sort, paths[-1])
            analysed = [(row.called, analyses[key]) for row in group.rows for key in row.keys[:1] if key in analyses]
            if analysed:
                paths.append(out / f"{stem}-deciles.{format}")
                deciles(dict(analysed[:DIRECT]), paths[-1])
    return paths


def _stem(text: str) -> str:
    return re.sub(r"[^\w.]+", "-", text.replace(",", "")).strip("-.") or "unnamed"


def _cost(rows: Sequence[Row], cost: str, metric: str, path: Path) -> None:
    """Quality against cost (PRIME, Figure 1), with the Pareto front as steps; the front and the best others are named.
    Published rows are hollow.
    """
    least = max(costs(row)[cost] for row in rows) / SPAN
    found = dict.fromkeys(_point(row, max(least, costs(row)[cost]), metric) for row in rows)  # papers repeat rows
    points = sorted(found, key=lambda point: (-point.y, point.name, point.x))
    front = _front(points, lower=any(row.worth(metric) < 0 for row in rows))
    every = {point.name: point for point in reversed([*front[::-1], *points])}
    named = list(every.values())[::-1][:DIRECT]
    with drawing(path, PAGE, 3.3) as axes:
        for point in points:
            colour, filled = COLOURS[point.family], point.source != "published"
            axes.errorbar(point.x, point.y, [[end] for end in point.error], color=colour, linewidth=0.7, zorder=2)
            style = {"facecolors": colour if filled else "white", "edgecolors": colour, "linewidths": 0.9, "zorder": 3}
            axes.scatter(point.x, point.y, 22, **style)
        if max(point.x for point in points) > LOG_RATIO * min(point.x for point in points):
            axes.set_xscale("log")
            axes.xaxis.set_minor_formatter(lambda value, _: short_number(value))
        axes.margins(0.1)
        right = axes.get_xlim()[1]
        x, y = [*(point.x for point in front), right], [*(point.y for point in front), front[-1].y]
        axes.step(x, y, where="post", color="#888888", linewidth=0.8, linestyle="--", zorder=1, label="Pareto front")
        axes.set(xlabel=CHART_COSTS[cost], ylabel=f"{metric} (%)", xlim=(None, right))
        axes.xaxis.set_major_formatter(lambda value, _: short_number(value))
        for source, fill in (("measured", "#565b62"), ("published", "none")):
            if any(point.source == source for point in points):
                axes.scatter([], [], 22, facecolors=fill, edgecolors="#565b62", label=source)
        labels = [(point.x, point.y, shorten(point.name, LONGEST)) for point in named]
        label_points(axes, labels, [(point.x, point.y) for point in points])
        family_legend(axes, [point.family for point in points])


def _point(row: Row, cost: float, metric: str) -> Point:
    value = row.metrics[metric]
    low, high = row.intervals.get(metric, (value, value))
    error = (100 * min(max(0.0, value - low), value), 100 * max(0.0, high - value))
    return Point(row.source, row.called, row.family, cost, 100 * value, error)


def _front(points: Sequence[Point], *, lower: bool = False) -> list[Point]:
    """The points that no other point beats in both cost and metric, cheapest first; `lower` values may be better."""
    front: list[Point] = []
    sign = -1 if lower else 1
    for point in sorted(points, key=lambda point: (point.x, -sign * point.y)):
        if not front or sign * point.y > sign * front[-1].y:
            front.append(point)
    return front


def _curves(
    rows: Sequence[tuple[Row, Mapping[str, list[float]]]], limited: Sequence[str], metric: str, path: Path
) -> None:
    """Quality on held-out queries against the amount spent, means over seeds with 95 % intervals, of the best rows.

    The amount is what the budget `limited`, operations before others. Each line has a colour of its own, and the name
    of its row at its end.
    """
    shown = sorted(rows, key=lambda pair: -pair[1][metric][-1])[:DIRECT]
    spent = next(
        name
        for name in (*[own for own in ("flops", *limited) if own in limited], *CURVE_COSTS, "fraction")
        if all(name in curve for _, curve in shown)
    )
    with drawing(path, PAGE, 3.0) as axes:
        ends = []
        for at, (_, curve) in enumerate(shown):
            marks = {"markersize": 2.5, "elinewidth": 0.6, "linewidth": 1.1, **series(at)}
            axes.errorbar(curve[spent], curve[metric], curve.get(f"{metric} ±"), **marks)
            ends.append((curve[spent][-1], curve[metric][-1]))
        axes.margins(0.03, 0.06)
        axes.xaxis.set_major_formatter(lambda value, _: short_number(value))
        axes.set(xlabel=CURVE_COSTS.get(spent, "share of the budget"), ylabel=f"{metric} on held-out queries (%)")
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, 0.0), high)
        far = max(x for x, _ in ends)
        for beside in (False, True):  # the names of lines that end early stand beside their ends
            named = [at for at, (x, _) in enumerate(ends) if (x < EARLY * far) is beside]
            places = apart([ends[at][1] for at in named], (high - low) / 23)
            for at, place in zip(named, places, strict=True):
                left, within = (ends[at][0] + 0.02 * far, "data") if beside else (1.02, axes.get_yaxis_transform())
                where = {"textcoords": within, "va": "center", "arrowprops": LEADER}
                word = plain(shorten(shown[at][0].called, LONGEST))
                axes.annotate(word, ends[at], (left, place), fontsize=6, color=COLOURS[at], **where)
