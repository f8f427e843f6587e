"""A leaderboard as text: for a terminal, a README, a paper, a spreadsheet, a program."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from io import StringIO
from typing import Any

from tabulate import tabulate

from xmcbench.errors import UnknownNameError
from xmcbench.reporting.columns import COLUMNS, cell, heading, printable
from xmcbench.reporting.rows import Group, Row, Table, budget_text
from xmcbench.trial.record import SCORED, Status

TIE = "≈"


@dataclass(frozen=True)
class Markup:
    """How a text format writes a table, a name, the best figures and the words around the table."""

    style: str  # of tabulate
    escape: Callable[[str], str]
    best: Callable[[str], str]
    second: Callable[[str], str]
    block: Callable[[str, str], str]  # heading, table
    note: Callable[[str], str]
    narrow: bool = False  # columns are only as wide as they must be


def render(table: Table, format: str = "table", width: int | None = None) -> str:
    """The leaderboard as `format`, one of `FORMATS`. Text formats round; csv and json carry every digit.

    Long texts in a table for a terminal are cut so that its lines fit `width`, as far as that goes.
    """
    if format == "json":
        return json.dumps(_plain(asdict(table)), indent=1, allow_nan=False, ensure_ascii=False)
    if format == "csv":
        return _csv(table)
    if format not in MARKUP:
        raise UnknownNameError("format", format, FORMATS)
    markup = MARKUP[format]
    hashes = {(group.dataset, group.dataset_hash) for group in table.groups if group.dataset_hash}
    several = len(hashes) > len({dataset for dataset, _ in hashes})
    blocks = [markup.block(markup.escape(title(group, several)), _grid(group, markup, width)) for group in table.groups]
    notes = "\n".join(markup.note(markup.escape(printable(note))) for note in table.notes)
    return "\n\n".join([*blocks, notes])


def title(group: Group, show_hash: bool = False) -> str:
    """What a group of rows is about, in words."""
    content = f" ({group.dataset_hash[:12]})" if show_hash and group.dataset_hash else ""
    parts = [f"{group.dataset}{content}"]
    if group.track != "supervised":
        parts.append(group.track)
    parts.append(f"budget: {budget_text(group.budget)}" if group.source == "measured" else "published")
    if group.protocol:
        parts.append(f"protocol: {group.protocol}")
    parts += [f"{heading(name)}: {value or 'not said'}" for name, value in group.by.items()]
    return ", ".join(parts)


@dataclass(frozen=True)
class _Column:
    """A column of a group as it is shown."""

    heading: str
    cells: list[str]  # one a row
    text: bool = False  # aligned to the left, and cut where a line is too long, but
    least: int = 9  # to no fewer letters


def _grid(group: Group, markup: Markup, width: int | None) -> str:
    columns = _columns(group, markup)
    if markup.narrow and width:
        columns = _cut(columns, width)
    if markup.narrow:
        return _narrow(columns)
    rows = list(zip(*(column.cells for column in columns), strict=True))
    headers = [column.heading for column in columns]
    aligned = ["left" if column.text else "right" for column in columns]
    grid = tabulate(rows, headers=headers, tablefmt=markup.style, disable_numparse=True, colalign=aligned)
    return _booktabs(grid) if markup.style == "latex_raw" else grid


def _narrow(columns: Sequence[_Column]) -> str:
    """Columns as wide as they must be (tabulate pads headings by two, and takes seconds for thousands of rows)."""
    padded = []
    for column in columns:
        width = max(map(len, (column.heading, *column.cells)))
        pad = str.ljust if column.text else str.rjust
        padded.append([pad(text, width) for text in (column.heading, *column.cells)] + ["-" * width])
    heading, *rows, rule = ("  ".join(line).rstrip() for line in zip(*padded, strict=True))
    return "\n".join([heading, rule, *rows])


def _columns(group: Group, markup: Markup) -> list[_Column]:
    rows, escape = group.rows, markup.escape
    columns = [
        _Column(escape("#"), ["-" if row.rank is None else str(row.rank) for row in rows]),
        _Column("method", [escape(_name(row)) for row in rows], text=True, least=13),
    ]
    for name in group.metrics:
        columns.append(_Column(escape(name), _figures(group, name, markup)))
        if name == group.sort:
            columns += _spread(rows, name, markup)
    for name in group.columns:
        kind = COLUMNS[name].kind
        cells = [escape(cell(row, name)) or "-" for row in rows]
        columns.append(_Column(escape(heading(name)), cells, kind == "text", least=20 if name == "paper" else 8))
    if any(group.sort in row.against for row in rows):
        columns.append(_Column("against", [escape(_against(row, group.sort)) for row in rows], text=True))
    if not group.metrics or any(row.status not in SCORED for row in rows):
        _say_status(columns, rows, escape)
    return columns


def _name(row: Row) -> str:
    name = printable(row.method)
    return f"{name} ({row.status})" if row.status == Status.OVER_BUDGET else name


def _figures(group: Group, metric: str, markup: Markup) -> list[str]:
    """The figures of a metric, the best and the second best of the ranked rows marked, and those that tie."""
    ranked = sorted({row.metrics[metric] for row in group.rows if row.rank and metric in row.metrics}, reverse=True)
    marks = dict(zip(ranked[:2], (markup.best, markup.second), strict=False))
    ties = any(metric in row.tied for row in group.rows)
    cells = []
    for row in group.rows:
        text = cell(row, metric) or "-"
        if row.rank and metric in row.metrics and row.metrics[metric] in marks:
            text = marks[row.metrics[metric]](text)
        cells.append(text + ((markup.escape(TIE) if metric in row.tied else " ") if ties else ""))
    return cells


def _spread(rows: Sequence[Row], metric: str, markup: Markup) -> list[_Column]:
    """How sure the figures of a metric are: over test queries, and over seeds."""
    columns = []
    if any(metric in row.intervals for row in rows):
        halves = [
            f"±{50 * (row.intervals[metric][1] - row.intervals[metric][0]):.1f}" if metric in row.intervals else "-"
            for row in rows
        ]
        columns.append(_Column(markup.escape("95 %"), [markup.escape(half) for half in halves]))
    if any(row.std for row in rows):
        times = [f"{100 * row.std[metric]:.2f} ×{len(row.seeds)}" if metric in row.std else "-" for row in rows]
        columns.append(_Column("sd", [markup.escape(text) for text in times]))
    return columns


def _against(row: Row, metric: str) -> str:
    return f"{100 * row.against[metric]:+.2f} ({row.against_source})" if metric in row.against else "-"


def _say_status(columns: list[_Column], rows: Sequence[Row], escape: Callable[[str], str]) -> None:
    """A row that did not end well says so in place of its first figure, and nothing in the places of the others."""
    figures = [column for column in columns[2:] if not column.text]
    for i, row in enumerate(rows):
        if row.status not in SCORED:
            for column in figures:
                if column.cells[i].strip() == "-":
                    column.cells[i] = ""
            figures[0].cells[i] = escape(row.status)


def _cut(columns: list[_Column], width: int) -> list[_Column]:
    """The columns with their longest texts shortened until a line of all fits `width`, or nothing more can be cut."""
    widths = [max(len(text) for text in (column.heading, *column.cells)) for column in columns]
    least = [min(w, max(c.least, len(c.heading))) if c.text else w for c, w in zip(columns, widths, strict=True)]
    while sum(widths) + 2 * (len(widths) - 1) > width and widths != least:
        widths[max(range(len(widths)), key=lambda i: widths[i] - least[i])] -= 1
    return [
        replace(c, cells=[t if len(t) <= most else t[: most - 1] + "…" for t in c.cells]) if c.text else c
        for c, most in zip(columns, widths, strict=True)
    ]


def _csv(table: Table) -> str:
    """One line a row, everything a row knows; `keys` and `seeds` are separated by spaces."""
    metrics = list(dict.fromkeys(name for group in table.groups for name in group.every_metric))
    facts = list(dict.fromkeys(name for group in table.groups for name in group.every_column))
    spreads = [f"{name} {what}" for name in metrics for what in ("low", "high", "std", "against")]
    setting = ["source", "dataset", "dataset_hash", "track", "protocol", "budget", "rank", "method", "status"]
    where = ["against_source", "tied", "seeds", "keys", "metric_version", "place", "url", "problem"]
    text = StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow([*setting, *metrics, *spreads, *facts, *where])
    for group in table.groups:
        budget = " ".join(f"{name}={limit!r}" for name, limit in group.budget.items())
        for row in group.rows:
            lines.writerow(
                [group.source, group.dataset, group.dataset_hash, group.track, group.protocol, budget]
                + [row.rank, row.method, row.status]
                + [row.metrics.get(name) for name in metrics]
                + [value for name in metrics for value in _uncertainty(row, name)]
                + [row.facts.get(name) for name in facts]
                + [row.against_source, " ".join(sorted(row.tied)), " ".join(map(str, row.seeds)), " ".join(row.keys)]
                + [row.metric_version, row.place, row.url, row.problem]
            )
    return text.getvalue().rstrip("\n")


def _uncertainty(row: Row, metric: str) -> tuple[float | None, ...]:
    low, high = row.intervals.get(metric, (None, None))
    return low, high, row.std.get(metric), row.against.get(metric)


def _plain(value: Any) -> Any:
    """Sets as sorted lists, for JSON."""
    if isinstance(value, dict):
        return {name: _plain(own) for name, own in value.items()}
    if isinstance(value, frozenset):
        return sorted(value)
    return [_plain(own) for own in value] if isinstance(value, list | tuple) else value


def _booktabs(grid: str) -> str:
    """The grid with the rules of the booktabs package."""
    for rule in ("toprule", "midrule", "bottomrule"):
        grid = grid.replace("\\hline", f"\\{rule}", 1)
    return grid


def _escape_markdown(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>|#~])", r"\\\1", text)


LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    TIE: r"$\approx$",
}


def _escape_latex(text: str) -> str:
    return re.sub(r"[\\~^±×≈&%$#_{}]", lambda found: LATEX_SPECIAL.get(found[0], "\\" + found[0]), text)


MARKUP = {
    "table": Markup(
        "simple",
        escape=str,
        best=str,
        second=str,
        block=lambda heading, grid: f"{heading}\n\n{grid}",
        note=str,
        narrow=True,
    ),
    "markdown": Markup(
        "pipe",
        escape=_escape_markdown,
        best=lambda text: f"**{text}**",
        second=lambda text: f"<u>{text}</u>",
        block=lambda heading, grid: f"### {heading}\n\n{grid}",
        note=lambda note: f"- {note}",
    ),
    "latex": Markup(
        "latex_raw",
        escape=_escape_latex,
        best=lambda text: rf"\textbf{{{text}}}",
        second=lambda text: rf"\underline{{{text}}}",
        block=lambda heading, grid: (
            f"\\begin{{table}}  % needs the package booktabs\n\\caption{{{heading}}}\n{grid}\n\\end{{table}}"
        ),
        note=lambda note: f"{note}\\\\",
    ),
}
FORMATS = (*MARKUP, "csv", "json")
