"""A plain table in any of the text formats: a title, headings, rows of text, and what to know to read it."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

from tabulate import tabulate

from xmcbench.errors import UnknownNameError

STYLES = {"table": "simple", "markdown": "pipe", "latex": "latex_booktabs"}
GRID_FORMATS = (*STYLES, "csv")


@dataclass(frozen=True)
class Grid:
    """Rows of text under headings; the first column is aligned to the left, the others to the right."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def render_grids(grids: Sequence[Grid], format: str = "table") -> str:
    """All grids, one after another, as `format`, one of `GRID_FORMATS`. Raises `UnknownNameError` for another."""
    if format == "csv":
        return "\n\n".join(_csv(grid) for grid in grids)
    if format not in STYLES:
        raise UnknownNameError("format", format, GRID_FORMATS)
    return "\n\n".join(_text(grid, format) for grid in grids)


def _text(grid: Grid, format: str) -> str:
    title = {"markdown": f"### {grid.title}", "latex": f"% {grid.title}"}.get(format, grid.title)
    escaped = [[_escape(text, format) for text in row] for row in grid.rows]
    aligned: Any = ("left", *("right" for _ in grid.headings[1:]))
    headings = [_escape(text, format) for text in grid.headings]
    style = STYLES[format]
    body = tabulate(escaped, headings, tablefmt=style, disable_numparse=True, colalign=aligned if escaped else None)
    notes = [f"% {note}" if format == "latex" else note for note in grid.notes]
    return "\n\n".join([title, body, *(["\n".join(notes)] if notes else [])])


def _escape(text: str, format: str) -> str:
    return text.replace("|", r"\|").replace("*", r"\*") if format == "markdown" else text


def _csv(grid: Grid) -> str:
    text = StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["table", *grid.headings])
    lines.writerows([grid.title, *row] for row in grid.rows)
    return text.getvalue().rstrip("\n")
