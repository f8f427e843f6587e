"""The figures of docs/findings.md and docs/results.md, from the methods of a study (`studies.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from findings_tables import SHARES
from studies import ALONG, Method, Study

from xmcbench.evaluation.significance import estimate
from xmcbench.reporting.names import FAMILIES
from xmcbench.reporting.rows import mean_curve
from xmcbench.suite.tables import RANKS
from xmcbench_plugins.analysis import plots

BEHIND = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
OVER_CURVES = {"fontsize": 6, "va": "center", "arrowprops": plots.LEADER, "bbox": BEHIND}  # a method's number
KEY_LINE = 0.05  # inches below a figure for each method in its key of three columns


def draw_quality(methods: Sequence[Method], study: Study, path: Path) -> None:
    """Final quality with its interval, best first."""
    with plots.drawing(path, plots.PAGE, 0.6 + 0.19 * len(methods)) as axes:
        for row, method in enumerate(methods):
            own = estimate(method.samples[RANKS])
            low, high = (100 * value for value in own.interval)
            axes.plot([low, high], [row, row], color=method.colour, linewidth=1.6)
            axes.plot(100 * own.value, row, "o", color=method.colour, markersize=4)
        axes.set_yticks(range(len(methods)), [plots.plain(method.name) for method in methods])
        axes.set(ylim=(len(methods) - 0.5, -0.5), xlabel=f"{RANKS} on {study.dataset}, 95 % over queries and seeds")
        plots.family_legend(axes, [method.family for method in methods])


def above_floors(methods: Sequence[Method]) -> list[Method]:
    """Without what stands at the bottom for comparison, such as `popular`."""
    floor = FAMILIES.index("other")
    return [method for method in methods if method.family != floor]


def by_budget(methods: Sequence[Method]) -> list[Method]:
    """Those that spend the budget, best first by held-out queries."""
    return sorted((method for method in methods if method.trained), key=lambda one: -one.at(1.0))


def draw_budget(methods: Sequence[Method], study: Study, path: Path) -> None:  # noqa: ARG001
    """Quality along the budget; a dashed line for the best of a family that is not evaluated along it."""
    trained = by_budget(methods)
    ends_alone = (own for own in reversed(above_floors(methods)) if not own.evaluated_along and own.at(1.0))
    flat = {method.family: method for method in ends_alone}.values()
    drawn = [method for method in trained if method.evaluated_along and method.operations]
    key = numbered(drawn)
    with plots.drawing(path, plots.PAGE, 3.4 + KEY_LINE * len(key)) as axes:
        ends = []
        for method, style in zip(drawn, plots.line_styles([method.family for method in drawn]), strict=True):
            curve = mean_curve(method.records)
            axes.errorbar(curve["flops"], curve[ALONG], curve.get(f"{ALONG} ±"), elinewidth=0.6, **style)
            ends.append((curve["flops"][-1], curve[ALONG][-1], method))
        last = max(x for x, _, _ in ends)
        for early in (False, True):  # lines that end elsewhere need no room beside these
            own = sorted((end for end in ends if (end[0] < last / 2) is early), key=lambda end: -end[1])
            right = 1.08 * max((x for x, _, _ in own), default=last)
            for (x, y, method), place in zip(own, plots.apart([y for _, y, _ in own], 2.6), strict=True):
                number = str(1 + drawn.index(method))
                axes.annotate(number, (x, y), (right, place), color=method.colour, **OVER_CURVES)
        for method in flat:
            axes.axhline(
                100 * method.at(1.0), color=method.colour, linestyle="--", linewidth=0.9, label=plots.plain(method.name)
            )
        axes.set(xscale="log", xlabel="operations", ylabel=f"{ALONG}, held-out training queries")
        axes.margins(x=0.16)
        plots.family_legend(axes, [method.family for method in trained], key)


def numbered(methods: Sequence[Method]) -> list[str]:
    """The key of a figure with too many methods for their names."""
    return [f"{at}  {plots.plain(method.name)}" for at, method in enumerate(methods, start=1)]


def draw_ranks(methods: Sequence[Method], study: Study, path: Path) -> None:  # noqa: ARG001
    """Ranks along the budget."""
    trained = by_budget(methods)
    with plots.drawing(path, plots.PAGE, 3.0) as axes:
        for method in trained:
            seen = [place for place, share in enumerate(SHARES) if method.at(share)]
            ranks = [1 + sum(one.at(SHARES[place]) > method.at(SHARES[place]) for one in trained) for place in seen]
            axes.plot(seen, ranks, "o-", color=method.colour, markersize=3)
            axes.annotate(plots.plain(method.name), (len(SHARES) - 1, ranks[-1]), (6, -2), textcoords="offset points")
        axes.set_xticks(range(len(SHARES)), [f"{100 * share:g} %" for share in SHARES])
        axes.set(ylim=(len(trained) + 0.5, 0.5), xlabel="share of the operations", ylabel=f"rank by {ALONG}, held out")
        axes.set_xlim(-0.1, len(SHARES) - 0.3)
        plots.family_legend(axes, [method.family for method in trained])


def draw_tail(methods: Sequence[Method], study: Study, path: Path) -> None:  # noqa: ARG001
    """Frequent against rare labels."""
    above = above_floors(methods)
    key = numbered(above)
    with plots.drawing(path, plots.PAGE, 4.2 + KEY_LINE * len(key)) as axes:
        points = []
        for method in above:
            x, y = (estimate(method.samples[metric]) for metric in (RANKS, "macro-F1@5"))
            (left, right), (low, high) = ([100 * end for end in own.interval] for own in (x, y))
            points.append((100 * x.value, 100 * y.value))
            axes.plot([left, right], [points[-1][1]] * 2, color=method.colour, linewidth=0.7)
            axes.plot([points[-1][0]] * 2, [low, high], color=method.colour, linewidth=0.7)
            axes.plot(*points[-1], "o", color=method.colour, markersize=4)
        axes.margins(0.08)
        plots.label_points(axes, [(x, y, str(at)) for at, (x, y) in enumerate(points, start=1)], points)
        axes.set(xlabel=f"{RANKS} (frequent labels count most)", ylabel="macro-F1@5 (every label counts alike)")
        plots.family_legend(axes, [method.family for method in above], key)


DRAWN = {"quality": draw_quality, "budget": draw_budget, "ranks": draw_ranks, "tail": draw_tail}
