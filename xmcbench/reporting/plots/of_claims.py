"""The forest plot of claims: a row for each claim, an interval for each regime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from xmcbench.reporting.claims import Claim
from xmcbench.reporting.curated import dataset_facts
from xmcbench.reporting.plots.canvas import COLOURS, MARKERS, PAGE, drawing, legend_below, plain
from xmcbench.reporting.published import PublishedRow

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
