"""The figure of `xmcbench answer-cost --figures`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from xmcbench_plugins.analysis.plots import COLOURS, PAGE, drawing, label_points, plain
from xmcbench_plugins.serving.cost import WITHIN, Cost, on_front

DECADE = 10  # ratio of the slowest model to the fastest one, above which milliseconds have a logarithmic axis


def draw_costs(costs: Sequence[Cost], path: Path) -> None:
    """Draw the first metric of the models of one dataset against milliseconds of a text that is asked alone.

    Steps join the models that no other one replaces; dotted lines are at `WITHIN` milliseconds.
    """
    name = costs[0].decides
    points = [(one.alone_ms, 100 * one.metrics[name]) for one in costs]
    front = sorted({point for point, first in zip(points, on_front(costs), strict=True) if first})
    fastest, slowest = min(points)[0], max(points)[0]
    with drawing(path, PAGE, 3.3) as axes:
        axes.scatter(*zip(*points, strict=True), 22, color=COLOURS[0], zorder=3)
        if slowest > DECADE * fastest:
            axes.set_xscale("log")
        axes.margins(0.1)
        left, right = axes.get_xlim()
        ends = [*front, (right, front[-1][1])]
        axes.step(*zip(*ends, strict=True), where="post", color="#888888", linewidth=0.8, linestyle="--", zorder=1)
        for limit in WITHIN:
            if left < limit < right:
                axes.axvline(limit, color=COLOURS[7], linewidth=0.6, linestyle=":", zorder=1)
        axes.set(
            xlabel="milliseconds of a text that is asked alone, the median", ylabel=f"{name} (%)", xlim=(left, right)
        )
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_title(plain(costs[0].dataset))
        label_points(axes, [(*point, one.name) for point, one in zip(points, costs, strict=True)], points)
