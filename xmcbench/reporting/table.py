"""A leaderboard as text: for a terminal, a README, a paper, a spreadsheet, a program."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from io import StringIO
from typing import Any

from tabulate import SEPARATING_LINE, tabulate

from xmcbench.errors import UnknownNameError
from xmcbench.record import Status
from xmcbench.reporting.standings import SCORED, Group, Row, Table, budget_text, leaderboard

__all__ = ["FORMATS", "leaderboard", "render"]

NARROW = {"encoder_tokens": "tokens", "device_seconds": "seconds", "peak_bytes": "memory"}
SPENT = ("encoder_tokens", "steps", "train_seconds", "device_seconds", "peak_bytes")


@dataclass(frozen=True)
class Markup:
    """How a text format writes a table, a name, a best figure and the words around the table."""

    style: str  # of tabulate
    escape: Callable[[str], str]
    bold: Callable[[str], str]
    plus_minus: str
    block: Callable[[str, str], str]  # heading, table
    note: Callable[[str], str]
    narrow: bool = False  # columns are only as wide as they must be


def render(table: Table, format: str = "table") -> str:
    """The leaderboard as `format`, one of `FORMATS`. Text formats round; csv and json carry every digit."""
    if format == "json":
        return json.dumps(asdict(table), indent=1, allow_nan=False, ensure_ascii=False)
    if format == "csv":
        return _csv(table)
    if format not in MARKUP:
        raise UnknownNameError("format", format, FORMATS)
    markup = MARKUP[format]
    hashes = {(group.dataset, group.dataset_hash) for group in table.groups}
    several = len(hashes) > len({dataset for dataset, _ in hashes})
    blocks = [
        markup.block(markup.escape(_heading(group, several)), _grid(group, table, markup)) for group in table.groups
    ]
    notes = "\n".join(markup.note(markup.escape(note)) for note in table.notes)
    return "\n\n".join([*blocks, notes])


def _heading(group: Group, show_hash: bool) -> str:
    content = f" ({group.dataset_hash[:12]})" if show_hash else ""
    return f"{group.dataset}{content}, budget: {budget_text(group.budget)}"


def _grid(group: Group, table: Table, markup: Markup) -> str:
    ranked = [row for row in group.rows if row.rank is not None]
    best = {name: max((row.figure(name) for row in ranked), default=-1.0) for name in table.metrics}
    header = [markup.escape(name) for name in ("#", "method", *table.metrics, *NARROW.values(), "params", "seeds")]
    rows: list[Any] = [_cells(row, table, best, markup) for row in group.rows]
    if markup.narrow:  # tabulate pads headers by two columns each, which a row is spared
        rows, headers = [header, SEPARATING_LINE, *rows], []
    else:
        headers = header
    aligned = ["right", "left"] + ["right"] * (len(header) - 2)
    return tabulate(rows, headers=headers, tablefmt=markup.style, disable_numparse=True, colalign=aligned)


def _cells(row: Row, table: Table, best: dict[str, float], markup: Markup) -> list[str]:
    note = f" ({row.status})" if row.status == Status.OVER_BUDGET else ""
    if row.status in SCORED:
        figures = [_figure(row, name, table.sort, best[name], markup) for name in table.metrics]
        parameters = _short(row.num_parameters)
    else:
        figures = [markup.escape(row.status)] + [""] * (len(table.metrics) - 1)
        parameters = "-"
    return [
        "-" if row.rank is None else str(row.rank),
        markup.escape(row.method + note),
        *figures,
        *(_spent(row, name) for name in NARROW),
        parameters,
        str(len(row.seeds)),
    ]


def _figure(row: Row, metric: str, sort: str, best: float, markup: Markup) -> str:
    if metric not in row.metrics:
        return "-"
    text = f"{100 * row.metrics[metric]:.2f}"
    if row.rank is not None and row.metrics[metric] == best:
        text = markup.bold(text)
    if metric == sort and metric in row.std:
        text += f"{markup.plus_minus}{100 * row.std[metric]:.2f}"
    return text


def _spent(row: Row, name: str) -> str:
    if name not in row.spent:
        return "-"
    value = row.spent[name]
    if name == "device_seconds":
        return f"{value:.1f}" if value < 100 else f"{value:.0f}"
    return _short(value) + ("B" if name == "peak_bytes" else "")


def _short(value: float) -> str:
    """
    >>> _short(20_400_000), _short(512)
    ('20.4M', '512')
    """
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}"


def _csv(table: Table) -> str:
    """One line a row, everything a row knows; `keys` and `seeds` are separated by spaces."""
    deviations = [f"{name} std" for name in table.metrics]
    header = ["dataset", "dataset_hash", "budget", "rank", "method", "status", *table.metrics, *deviations, *SPENT]
    header += ["num_parameters", "seeds", "metric_version", "selection_split", "suite", "keys"]
    text = StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(header)
    for group in table.groups:
        budget = " ".join(f"{name}={limit!r}" for name, limit in group.budget.items())
        for row in group.rows:
            lines.writerow(
                [group.dataset, group.dataset_hash, budget, row.rank, row.method, row.status]
                + [row.metrics.get(name) for name in table.metrics]
                + [row.std.get(name) for name in table.metrics]
                + [row.spent.get(name) for name in SPENT]
                + [row.num_parameters, " ".join(map(str, row.seeds)), row.metric_version]
                + [row.selection_split, row.suite, " ".join(row.keys)]
            )
    return text.getvalue().rstrip("\n")


def _escape_markdown(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>|#~])", r"\\\1", text)


LATEX_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}


def _escape_latex(text: str) -> str:
    return re.sub(r"[\\~^±&%$#_{}]", lambda found: LATEX_SPECIAL.get(found[0], "\\" + found[0]), text)


MARKUP = {
    "table": Markup(
        "simple",
        escape=str,
        bold=str,
        plus_minus="±",
        block=lambda heading, grid: f"{heading}\n\n{grid}",
        note=str,
        narrow=True,
    ),
    "markdown": Markup(
        "pipe",
        escape=_escape_markdown,
        bold=lambda text: f"**{text}**",
        plus_minus="±",
        block=lambda heading, grid: f"### {heading}\n\n{grid}",
        note=lambda note: f"- {note}",
    ),
    "latex": Markup(
        "latex_raw",
        escape=_escape_latex,
        bold=lambda text: rf"\textbf{{{text}}}",
        plus_minus=r"$\pm$",
        block=lambda heading, grid: f"\\begin{{table}}\n\\caption{{{heading}}}\n{grid}\n\\end{{table}}",
        note=lambda note: f"{note}\\\\",
    ),
}
FORMATS = (*MARKUP, "csv", "json")
