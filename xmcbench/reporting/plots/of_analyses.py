"""Figures of analysed predictions, of datasets and of claims.

Of predictions: DEXML's Figures 5 to 8, and precision against propensity-scored precision. Of a dataset: training
queries per label. Of claims: a forest plot, a row for each claim, an interval for each regime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xmcbench.data.dataset import Dataset
from xmcbench.evaluation.analysis import DECILES, SIMILARITY, SIMILARITY_OF_TAIL, Analysis
from xmcbench.reporting.analyses import relative_gain
from xmcbench.reporting.claims import Claim
from xmcbench.reporting.curated import dataset_facts
from xmcbench.reporting.plots.canvas import COLOURS, MARKERS, PAGE, drawing, legend_below, plain
from xmcbench.reporting.published import PublishedRow


def write_analysis_figures(analyses: Mapping[str, Analysis], out: Path, format: str) -> list[Path]:
    """Draw the analyses of trials on one dataset, by name, to the folder `out`. Returns the paths of the figures."""
    figures = {"deciles": deciles, "precision-recall": precision_recall, "scores": scores, "trade-off": trade_off}
    if SIMILARITY in next(iter(analyses.values())).breakdowns:
        figures["similarity"] = similarity
    paths = [out / f"{name}.{format}" for name in figures]
    for path, draw in zip(paths, figures.values(), strict=True):
        draw(analyses, path)
    return paths


def deciles(analyses: Mapping[str, Analysis], path: Path) -> None:
    """The contribution of the labels of each decile to P@k (DEXML, Figure 7)."""
    with drawing(path, PAGE) as axes:
        for at, (name, analysis) in enumerate(analyses.items()):
            style = {"color": COLOURS[at % len(COLOURS)], "marker": MARKERS[at % len(MARKERS)], "markersize": 3}
            axes.plot(
                range(1, 11), 100 * np.asarray(analysis.breakdowns[DECILES].contribution), label=plain(name), **style
            )
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
            bins = next(iter(analyses.values())).breakdowns[partition].bins[:3]
            _bars(axes, list(bins), shares, first_colour=1 if len(analyses) > 1 else 0)
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
    count = len(analyses)
    with drawing(path, min(PAGE, 2.4 * count + 1.0), 2.1, panels=count) as panels:
        for axes, (name, analysis) in zip(panels if count > 1 else [panels], analyses.items(), strict=True):
            pairs = analysis.scores
            for density, label, colour in ((pairs.true, "true", COLOURS[0]), (pairs.false, "false", COLOURS[1])):
                axes.stairs(density, pairs.edges, fill=True, alpha=0.35, color=colour, label=label)
                axes.stairs(density, pairs.edges, color=colour, linewidth=0.9)
            axes.set(title=plain(name), xlabel="score", yticks=[])
            axes.grid(visible=False)
            axes.legend()
        (panels[0] if count > 1 else panels).set_ylabel("density")


def trade_off(analyses: Mapping[str, Analysis], path: Path) -> None:
    """P@k against PSP@k at each k. Higher is better on all labels, further right is better on rare labels."""
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


def _bars(axes: Any, bins: list[str], shares: Mapping[str, np.ndarray], first_colour: int = 0) -> None:
    """Grouped bars in per cent: one group per bin, one bar per trial."""
    width, places = 0.82 / max(1, len(shares)), np.arange(len(bins))
    for at, (name, values) in enumerate(shares.items()):
        left = places - 0.41 + (at + 0.5) * width
        colour = COLOURS[(at + first_colour) % len(COLOURS)]
        axes.bar(left, 100 * np.asarray(values), width * 0.92, label=plain(name), color=colour)
    axes.set_xticks(places, bins)
    axes.grid(visible=False, axis="x")


def _contribution(analyses: Mapping[str, Analysis]) -> str:
    return f"contribution to P@{next(iter(analyses.values())).k} (%)"


MAX_POINTS = 2000  # of the curve


def label_distribution(dataset: Dataset, path: Path) -> None:
    """Draw the training queries per label, from frequent to rare, with the card's bounds of head and tail."""
    card = dataset.card
    counts = np.sort(np.bincount(dataset.train.targets.indices, minlength=card.num_labels))[::-1]
    seen = counts[counts > 0]
    ranks = np.unique(np.geomspace(1, max(1, len(seen)), MAX_POINTS).astype(int))
    with drawing(path) as axes:
        axes.loglog(ranks[ranks <= len(seen)], seen[ranks[ranks <= len(seen)] - 1], color=COLOURS[0])
        for count, name in ((card.head_at_least, "head"), (card.tail_at_most, "tail")):
            axes.axhline(max(count, 0.5), color=COLOURS[7], linewidth=0.6, linestyle=":")
            axes.annotate(name, (1, max(count, 0.5)), xytext=(0, 2), textcoords="offset points", fontsize=7)
        axes.set_xlabel("labels, most frequent first")
        axes.set_ylabel("training queries per label")
        axes.set_title(plain(f"{card.name}: {card.num_labels - len(seen):,} labels without a training query"))


ROW = 0.3  # inches per claim
MADE = "made data"
LINEAR = 2.0  # points up to which the axis is linear; beyond it is logarithmic
TICKS = (-50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20, 50)


def forest(claims: Sequence[Claim], published: Sequence[PublishedRow], path: Path) -> None:
    """Draw each claim's difference in the metric that it shows. Hollow: not significant; grey: the paper's figures."""
    datasets = sorted(dict.fromkeys(scale for claim in claims for scale in _scales(claim)), key=MADE.__eq__)
    with drawing(path, PAGE, 1.2 + ROW * len(claims)) as axes:
        for row, claim in enumerate(claims):
            printed = list(claim.paper.printed(published).get(claim.shown, {}).values())
            axes.plot(printed, [row] * len(printed), "|", color="#999999", markersize=7, zorder=1)
            for regime in claim.regimes:
                column = regime.column(claim.shown)
                if column is None or regime.scale is None:
                    continue
                place = datasets.index(_name(regime.scale.dataset))
                y = row + 0.22 * (place - (len(datasets) - 1) / 2)
                colour = COLOURS[place % len(COLOURS)]
                fill = "white" if column.sign == "?" else colour
                low, high = map(float, column.interval)
                axes.plot([low, high], [y, y], color=colour, linewidth=1.1, zorder=2)
                marker = MARKERS[place % len(MARKERS)]
                axes.plot(
                    float(column.difference), y, marker, color=colour, markerfacecolor=fill, markersize=4, zorder=3
                )
        for place, dataset in enumerate(datasets):
            style = {"color": COLOURS[place % len(COLOURS)], "markersize": 4, "linestyle": "-"}
            axes.plot([], [], marker=MARKERS[place % len(MARKERS)], label=plain(dataset), **style)
        axes.plot([], [], "|", color="#999999", label="the paper's figures, at its own scale")
        axes.axvline(0, color="#555555", linewidth=0.8)
        axes.set_xscale("symlog", linthresh=LINEAR)
        axes.set_xticks(TICKS, [str(tick) for tick in TICKS])
        axes.minorticks_off()
        axes.set_yticks(range(len(claims)), [plain(f"{claim.claim} [{claim.shown}]") for claim in claims])
        axes.set(ylim=(len(claims) - 0.4, -0.6), xlabel="difference in points, 95 % interval (hollow: not significant)")
        legend_below(axes, columns=3)


def _scales(claim: Claim) -> list[str]:
    return [_name(regime.scale.dataset) for regime in claim.regimes if regime.scale and regime.columns]


def _name(dataset: str) -> str:
    """All data that are made count as one regime."""
    return MADE if dataset_facts(dataset).made else dataset
