"""Figures of analysed predictions: DEXML's Figures 5 to 8, and precision beside propensity-scored precision."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from xmcbench.evaluation.analysis import DECILES, SIMILARITY, SIMILARITY_OF_TAIL, Analysis
from xmcbench.reporting.plots.canvas import COLOURS, MARKERS, PAGE, drawing, legend_below, plain


def write_analysis_figures(analyses: Mapping[str, Analysis], out: Path, format: str) -> list[Path]:
    """Draw the analyses of trials on one dataset, by name, into the folder `out`; the paths of the figures."""
    drawn = {"deciles": deciles, "precision-recall": precision_recall, "scores": scores, "trade-off": trade_off}
    if SIMILARITY in next(iter(analyses.values())).breakdowns:
        drawn["similarity"] = similarity
    paths = [out / f"{name}.{format}" for name in drawn]
    for path, draw in zip(paths, drawn.values(), strict=True):
        draw(analyses, path)
    return paths


def deciles(analyses: Mapping[str, Analysis], path: Path) -> None:
    """What the labels of each decile add to P@k (DEXML, Figure 7)."""
    with drawing(path, PAGE) as axes:
        found = {name: each.breakdowns[DECILES].contribution for name, each in analyses.items()}
        _bars(axes, [str(decile) for decile in range(1, 11)], found)
        axes.set_xlabel("decile of the labels, 1 the most frequent in training")
        axes.set_ylabel(_contribution(analyses))
        legend_below(axes)


def similarity(analyses: Mapping[str, Analysis], path: Path) -> None:
    """Bins of labels by similarity to others, tail labels left and all right (DEXML, Figure 8).

    Of several trials, how much more each adds to P@k than the first; of one, what it adds.
    """
    with drawing(path, PAGE, panels=2) as panels:
        for axes, partition, title in zip(
            panels, (SIMILARITY_OF_TAIL, SIMILARITY), ("tail labels", "all labels"), strict=True
        ):
            found = {name: each.breakdowns[partition].contribution[:3] for name, each in analyses.items()}
            axes.set_ylabel(_contribution(analyses))
            if len(found) > 1:
                reference, first = next(iter(found.items()))
                found = {name: _relative(first, shares) for name, shares in found.items() if name != reference}
                axes.set_ylabel(f"gain over {plain(reference)} (%)")
                axes.axhline(0, color="#444444", linewidth=0.6)
            bins = next(iter(analyses.values())).breakdowns[partition].bins[:3]
            _bars(axes, list(bins), found, first_colour=1 if len(analyses) > 1 else 0)
            axes.set_title(title)
        legend_below(panels[0])


def precision_recall(analyses: Mapping[str, Analysis], path: Path) -> None:
    """Precision against recall (DEXML, Figure 5); dotted where a query may have labels that were not kept."""
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
    """How true and false pairs score, a panel a trial (DEXML, Figure 6)."""
    count = len(analyses)
    with drawing(path, min(PAGE, 2.4 * count + 1.0), 2.1, panels=count) as panels:
        for axes, (name, analysis) in zip(panels if count > 1 else [panels], analyses.items(), strict=True):
            found = analysis.scores
            for density, label, colour in ((found.true, "true", COLOURS[0]), (found.false, "false", COLOURS[1])):
                axes.stairs(density, found.edges, fill=True, alpha=0.35, color=colour, label=label)
                axes.stairs(density, found.edges, color=colour, linewidth=0.9)
            axes.set(title=plain(name), xlabel="score", yticks=[])
            axes.grid(visible=False)
            axes.legend()
        (panels[0] if count > 1 else panels).set_ylabel("density")


def trade_off(analyses: Mapping[str, Analysis], path: Path) -> None:
    """P against PSP at each k: up is better for all labels, right for rare ones."""
    with drawing(path) as axes:
        for at, (name, analysis) in enumerate(analyses.items()):
            precision, propensity = zip(*analysis.trade_off.values(), strict=True)
            x, y = 100 * np.array(propensity), 100 * np.array(precision)
            style = {"color": COLOURS[at % len(COLOURS)], "marker": MARKERS[at % len(MARKERS)], "markersize": 4}
            axes.plot(x, y, linewidth=0.8, label=plain(name), **style)
            for k, left, up in zip(analysis.trade_off, x, y, strict=True):
                axes.annotate(f"@{k}", (left, up), xytext=(3, 3), textcoords="offset points", fontsize=6)
        axes.set(xlabel="PSP@k (%)", ylabel="P@k (%)")
        axes.margins(0.12)
        legend_below(axes, 2)


def _bars(axes: Any, names: list[str], found: Mapping[str, np.ndarray], first_colour: int = 0) -> None:
    """Groups of bars, in per cent: a group for each of `names`, a bar for each trial."""
    width, places = 0.82 / max(1, len(found)), np.arange(len(names))
    for at, (name, shares) in enumerate(found.items()):
        left = places - 0.41 + (at + 0.5) * width
        colour = COLOURS[(at + first_colour) % len(COLOURS)]
        axes.bar(left, 100 * np.asarray(shares), width * 0.92, label=plain(name), color=colour)
    axes.set_xticks(places, names)
    axes.grid(visible=False, axis="x")


def _relative(reference: np.ndarray, shares: np.ndarray) -> np.ndarray:
    nothing = np.full(len(shares), np.nan)
    gains: np.ndarray = np.divide(shares - reference, reference, out=nothing, where=reference > 0)
    return gains


def _contribution(analyses: Mapping[str, Analysis]) -> str:
    return f"added to P@{next(iter(analyses.values())).k} (%)"
