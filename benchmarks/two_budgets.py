"""The order of methods with equal encoder tokens and with equal epochs: a table and figure of `docs/measurements.md`.

Reads the trials of `suites/real/tate-two-budgets.yaml` from a store: those of the seeds that all methods have within
both budgets. Trains nothing.

    python benchmarks/two_budgets.py --store results
    python benchmarks/two_budgets.py --markdown docs/measurements.md --figure docs/pictures/two-budgets.svg
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from report import options, report, write_table

from xmcbench.errors import XMCBenchError
from xmcbench.reporting.numbers import short_number
from xmcbench.reporting.plots.canvas import COLOURS, MARKERS, PAGE, drawing, legend_below
from xmcbench.trial.record import Record, Status
from xmcbench.trial.store import Store

SUITE = "tate-two-budgets"
BUDGETS = ("tokens", "epochs")
METRIC = "P@1"


Cells = dict[str, list[Record]]  # a record for each seed, by method, best first


def values(records: list[Record]) -> list[float]:
    return [100 * record.metrics[METRIC] for record in records]


def tokens(records: list[Record]) -> float:
    return fmean(record.spent["encoder_tokens"] for record in records)


def read_cells(store: Store) -> dict[str, Cells]:
    """The cells of methods that train, by budget, with the seeds that all methods have within both budgets.

    Raises `XMCBenchError` where they have no seed in common.
    """
    found: dict[str, Cells] = {budget: defaultdict(list) for budget in BUDGETS}
    for record in store.records():
        if record.suite == SUITE and record.status is Status.OK and record.spent["encoder_tokens"]:
            method, _, budget = record.trial.label.removesuffix("]").partition("[budget=")
            found[budget][method].append(record)
    methods = {method for cells in found.values() for method in cells}
    seeds = [{record.trial.seed for record in found[budget][method]} for method in methods for budget in BUDGETS]
    common = set[int]().union(*seeds).intersection(*seeds)
    if methods and not common:
        raise XMCBenchError(f"{SUITE}: no seed has trials of all methods with equal tokens and with equal epochs")

    def of_common_seeds(cells: Cells) -> Cells:
        own = {method: [record for record in cells[method] if record.trial.seed in common] for method in cells}
        return dict(sorted(own.items(), key=lambda cell: -fmean(values(cell[1]))))

    return {budget: of_common_seeds(cells) for budget, cells in found.items()}


def rows(cells: dict[str, Cells]) -> list[dict[str, Any]]:
    """A row for each method, in the order of equal tokens."""
    places = {budget: list(own) for budget, own in cells.items()}
    table = []
    for method in places["tokens"]:
        row: dict[str, Any] = {"method": method}
        for budget in BUDGETS:
            cell = cells[budget][method]
            spread = f" ± {stdev(values(cell)):.2f}" if len(cell) > 1 else ""
            row[f"{METRIC}, equal {budget}"] = f"{fmean(values(cell)):.2f}{spread}"
            row[f"rank, equal {budget}"] = str(places[budget].index(method) + 1)
            row[f"tokens, equal {budget}"] = short_number(tokens(cell))
        table.append(row)
    return table


def draw(cells: dict[str, Cells], path: Path) -> None:
    """A line for each method from its metric and tokens within one budget to those within the other."""
    with drawing(path, PAGE, 3.6) as axes:
        for number, method in enumerate(cells["tokens"]):
            ends = [cells[budget][method] for budget in BUDGETS]
            x, y = [tokens(end) for end in ends], [fmean(values(end)) for end in ends]
            colour, line = COLOURS[number % len(COLOURS)], "-" if number < len(COLOURS) else "--"
            style = {"color": colour, "marker": MARKERS[number % len(MARKERS)], "markersize": 4, "linestyle": line}
            axes.plot(x, y, label=method, **style)
            axes.plot(x[1:], y[1:], **style, markerfacecolor="white")
        axes.set(
            xscale="log", xlabel="encoder tokens (filled: equal tokens, hollow: equal epochs)", ylabel=f"{METRIC} (%)"
        )
        axes.xaxis.set_major_formatter(lambda value, _: short_number(value))
        axes.xaxis.set_minor_formatter(lambda value, _: short_number(value))
        legend_below(axes, columns=4)


def main() -> None:
    parser = options(__doc__, store=Path("leaderboard/measured"))
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the table into a Markdown file")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="also draw a figure: svg, pdf or png")
    asked = parser.parse_args()
    try:
        cells = read_cells(Store(asked.store))
    except XMCBenchError as problem:
        sys.exit(str(problem))
    if not cells["tokens"]:
        parser.error(f"{asked.store}: no trials of {SUITE}, expected those of suites/real/{SUITE}.yaml")
    table = rows(cells)
    if asked.markdown:
        write_table("two_budgets", table, asked.markdown)
    if asked.figure:
        draw(cells, asked.figure)
    report("two_budgets", table, asked.out)


if __name__ == "__main__":
    main()
