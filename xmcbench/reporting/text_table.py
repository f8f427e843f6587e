"""Tables, numbers and names as text: aligned columns for a terminal, Markdown, LaTeX, CSV.

Special characters of these formats are escaped only here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from textwrap import fill
from typing import Literal
from unicodedata import normalize

from xmcbench.errors import UnknownNameError
from xmcbench.files.csv_text import csv_text
from xmcbench.suite.tables import Kind

Value = str | int | float | bool
UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def format_value(value: Value, kind: Kind) -> str:
    """The value as a cell of a column of that kind shows it.

    >>> format_value(20_400_000, "count"), format_value(8192, "number"), format_value(1_234_000_000, "bytes")
    ('20.4M', '8,192', '1.2GB')
    >>> format_value(True, "flag"), format_value(0.27, "hours"), format_value(9.738095238, "number")
    ('yes', '0.27', '9.738')
    """
    if isinstance(value, str):
        return printable(" ".join(value.split()))
    if kind == "flag":
        return "yes" if value else "no"
    if kind == "seconds":
        return f"{value:.1f}" if value < 100 else f"{value:.0f}"
    if kind == "share":
        return f"{100 * value:.1f} %"
    if kind == "hours":
        return f"{value:.4g}"
    if kind in ("count", "bytes"):
        return short_number(float(value), "{:.1f}") + ("B" if kind == "bytes" else "")
    return f"{value:,.0f}" if float(value).is_integer() or value >= 1000 else f"{value:.4g}"


def percent_interval(ends: Sequence[float], sign: Literal["", "+"] = "") -> str:
    """The ends of an interval in per cent, with `sign` also where they are positive; empty without ends.

    >>> percent_interval((0.1234, 0.2)), percent_interval((-0.01, 0.02), "+"), percent_interval(())
    ('12.34 to 20.00', '-1.00 to +2.00', '')
    """
    return " to ".join(f"{100 * end:{sign}.2f}" for end in ends)


def short_number(value: float, digits: str = "{:.6g}") -> str:
    """The number with a unit prefix; `digits` formats what stands before the prefix.

    >>> short_number(20_000.0), short_number(1_500_000.0), short_number(0.05), short_number(950, "{:.1f}")
    ('20k', '1.5M', '0.05', '950')
    """
    for size, unit in UNITS:
        if value >= size:
            return digits.format(value / size) + unit
    return f"{value:.6g}" if value < 1 else f"{value:.0f}"


def printable(text: str) -> str:
    """The text with control characters and line breaks spelt out, so that a terminal does not obey them.

    >>> printable("a\\x1b[31mb")
    'a\\\\x1b[31mb'
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def folded(text: str) -> str:
    """The letters and digits of the text, without case and accents, to compare names by.

    >>> folded("PRIME-lite"), folded("Renée")
    ('primelite', 'renee')
    """
    return "".join(letter for letter in normalize("NFKD", text).casefold() if letter.isalnum())


Mark = Literal["", "best", "second"]
REQUIRED = 100  # importance of a column that is never left out
LONGEST = 40  # rows of a LaTeX table that stays on one page
GAP = "  "
CUTS = ((False, False), (False, True), (True, False), (True, True))  # without names of settings, without the middle


@dataclass(frozen=True)
class Heading:
    """The head of a column, and what may happen to the column in a narrow terminal."""

    text: str
    left: bool = False  # aligned to the left, as words are
    importance: int = REQUIRED  # the least important columns are left out first
    shortest: int = 9  # characters that a cell of a left-aligned column keeps at least


@dataclass(frozen=True)
class Cell:
    """The text of a cell and how it stands out."""

    text: str
    mark: Mark = ""
    symbols: str = ""  # marks that follow the text
    cite: tuple[str, ...] = ()  # BibTeX keys: LaTeX cites them in place of the text


@dataclass(frozen=True)
class TextTable:
    """Rows of cells under headings, with a title above and notes below.

    Headings and cells may be plain strings; of plain headings the first column is aligned to the left.
    """

    title: str
    headings: Sequence[str | Heading]
    rows: Sequence[Sequence[str | Cell]]
    notes: Sequence[str] = ()

    @property
    def columns(self) -> list[Heading]:
        """The headings, all of one type."""
        return [h if isinstance(h, Heading) else Heading(h, left=i == 0) for i, h in enumerate(self.headings)]

    @property
    def cells(self) -> list[list[Cell]]:
        """The cells of each row, all of one type."""
        return [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in self.rows]


def render_tables(tables: Sequence[TextTable], format: str = "table", width: int | None = None) -> str:
    """The tables one after another as `format`, one of `TABLE_FORMATS`, or `html` as a notebook shows it.

    `width` is that of the terminal: long texts are cut and unimportant columns left out until lines fit.
    Raises `UnknownNameError` for another format.
    """
    writers: dict[str, Callable[[TextTable], str]] = {
        "table": lambda table: _terminal(table, width),
        "markdown": _markdown,
        "latex": _latex,
        "csv": _csv,
        "html": _html,
    }
    if format not in writers:
        raise UnknownNameError("format", format, TABLE_FORMATS)
    return "\n\n".join(writers[format](table) for table in tables)


TABLE_FORMATS = ("table", "markdown", "latex", "csv")


def render_notes(notes: Sequence[str], format: str, width: int | None = None) -> str:
    """Notes that belong to several tables, in a terminal broken to its width."""
    if format == "markdown":
        return "\n".join(f"- {escape_markdown(note)}" for note in notes)
    if format == "latex":
        return "\n".join(f"% {note}" for note in notes)
    return "\n".join(fill(note, width, break_on_hyphens=False) if width else note for note in notes)


# A terminal -------------------------------------------------------------------------------------------------------


def _terminal(table: TextTable, width: int | None, dropped: tuple[str, ...] = ()) -> str:
    """The table; while its lines do not fit, without its least important columns, which it names as `dropped`."""
    headings = table.columns
    head, *body = _padded(headings, _shortened(headings, table.cells, width))
    optional = [i for i, heading in enumerate(headings) if heading.importance < REQUIRED]
    if width is not None and len(GAP.join(head)) > width and optional:
        least = min(reversed(optional), key=lambda i: headings[i].importance)
        kept = [i for i in range(len(headings)) if i != least]
        cells = [[row[i] for i in kept] for row in table.cells]
        narrower = replace(table, headings=[headings[i] for i in kept], rows=cells)
        return _terminal(narrower, width, (*dropped, headings[least].text))
    lines = [GAP.join(line).rstrip() for line in (head, ["-" * len(text) for text in head], *body)]
    notes = [*table.notes, *([f"Columns left out at this width: {', '.join(dropped)}."] if dropped else [])]
    title = fill(table.title, width) if width else table.title
    return "\n\n".join(filter(None, [title, "\n".join(lines), render_notes(notes, "table", width)]))


def _shortened(headings: Sequence[Heading], rows: Sequence[Sequence[Cell]], width: int | None) -> list[list[str]]:
    """The texts of the rows, the longest ones cut until a line fits `width` or nothing more can be cut."""
    head = _padded(headings, [[cell.text + cell.symbols for cell in row] for row in rows])[0]
    widths = [len(text) for text in head]
    least = [min(w, max(h.shortest, len(h.text))) if h.left else w for h, w in zip(headings, widths, strict=True)]
    excess = len(GAP.join(head)) - width if width else 0
    while excess > 0 and widths != least:
        widest = max(range(len(widths)), key=lambda i: widths[i] - least[i])
        widths[widest] -= 1
        excess -= 1
    columns = [_cut(column, most) for column, most in zip(zip(*rows, strict=True), widths, strict=False)]
    return [list(row) for row in zip(*columns, strict=True)]


def _cut(cells: Sequence[Cell], longest: int) -> list[str]:
    """The texts and the marks of a column's cells.

    A text that is too long loses the names of its settings, then its end or its middle, in the way by which most texts
    stay distinct and then most stay whole; it never loses its marks.
    """

    def without(names: bool, middle: bool, cell: Cell) -> str:
        room = longest - len(cell.symbols)
        text = re.sub(r"[\w.]+=", "", cell.text) if names and len(cell.text) > room else cell.text
        if len(text) <= room:
            return text + cell.symbols
        end = (room - 1) // 2 if middle else 0
        return f"{text[: room - 1 - end]}…{text[len(text) - end :]}{cell.symbols}"

    ways = [[without(*way, cell) for cell in cells] for way in CUTS]
    return max(ways, key=lambda texts: (len(set(texts)), -sum("…" in text for text in texts)))


def _padded(headings: Sequence[Heading], rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """The heading line and the rows, every cell padded to the width of its column."""
    lines = [[heading.text for heading in headings], *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        [text.ljust(w) if h.left else text.rjust(w) for text, h, w in zip(line, headings, widths, strict=True)]
        for line in lines
    ]


# Markdown ---------------------------------------------------------------------------------------------------------

MARKDOWN_MARKS = {"": "{}", "best": "**{}**", "second": "<u>{}</u>"}


def escape_markdown(text: str) -> str:
    """The text with every character escaped that Markdown or a table would interpret."""
    return re.sub(r"([\\`*_{}\[\]<>|#~])", r"\\\1", text)


def _markdown(table: TextTable) -> str:
    headings = [replace(heading, text=escape_markdown(heading.text)) for heading in table.columns]
    rows = [
        [MARKDOWN_MARKS[cell.mark].format(escape_markdown(cell.text)) + cell.symbols for cell in row]
        for row in table.cells
    ]
    head, *body = _padded(headings, rows)
    dashes = ["-" * (max(len(text), 3) - 1) for text in head]
    rules = [
        f":{dashes_of_column}" if h.left else f"{dashes_of_column}:"
        for h, dashes_of_column in zip(headings, dashes, strict=True)
    ]
    lines = [f"| {' | '.join(line)} |" for line in (head, rules, *body)]
    title = f"### {escape_markdown(table.title)}" if table.title else ""
    return "\n\n".join(filter(None, [title, "\n".join(lines), render_notes(table.notes, "markdown")]))


# LaTeX ------------------------------------------------------------------------------------------------------------

LATEX_MARKS = {"": "{}", "best": r"\textbf{{{}}}", "second": r"\underline{{{}}}"}
LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "\u200b": "{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "Δ": r"$\Delta$",
    "≈": r"$\approx$",
    "◇": r"$\lozenge$",
    "□": r"$\square$",
    "∅": r"$\varnothing$",
    "§": r"\S{}",
    "✓": r"$\checkmark$",
    "✗": r"$\times$",
    "¹": r"\textsuperscript{1}",
    "†": r"\textsuperscript{\dag}",
    "‡": r"\textsuperscript{\ddag}",
    "↓": r"$\downarrow$",
    "○": r"$\circ$",
}
LATEX_PATTERN = re.compile(f"[{re.escape(''.join(LATEX_SPECIAL))}&%$#_{{}}]")  # others get a backslash


def escape_latex(text: str) -> str:
    """The text with every character escaped that LaTeX would interpret or lacks."""
    text = text.replace("--", "-\u200b-")  # not a dash
    return LATEX_PATTERN.sub(lambda match: LATEX_SPECIAL.get(match[0], "\\" + match[0]), text)


def _latex(table: TextTable) -> str:
    """A table of booktabs with notes of threeparttable; above `LONGEST` rows a longtable that breaks over pages."""
    columns = "".join("l" if heading.left else "r" for heading in table.columns)
    headings = " & ".join(escape_latex(heading.text) for heading in table.columns) + r" \\"
    head = [r"\toprule", headings, r"\midrule"]
    body = [" & ".join(map(_latex_cell, row)) + r" \\" for row in table.cells]
    label = re.sub(r"[^a-z0-9.]+", "-", table.title.lower()).strip("-.")
    caption = rf"\caption{{{escape_latex(table.title)}}}\label{{tab:{label}}}"
    notes = [escape_latex(note) for note in table.notes]
    if len(body) > LONGEST:
        columns = columns.replace("l", r">{\raggedright}p{0.3\textwidth}", 1)  # long names break over lines
        lines = [
            r"{\footnotesize\setlength{\tabcolsep}{3pt}",
            rf"\begin{{longtable}}{{@{{}}{columns}@{{}}}}  % \usepackage{{amssymb,array,booktabs,longtable,natbib}}",
            caption + r"\\",
            *head,
            r"\endfirsthead",
            *head,
            r"\endhead",
            r"\bottomrule",
            r"\endfoot",
            *body,
            r"\end{longtable}",
        ]
        return "\n".join([*lines, *(rf"\noindent {note}\par" for note in notes), "}"])
    lines = [
        r"\begin{table}  % \usepackage{amssymb,booktabs,threeparttable,natbib}",
        r"\centering\footnotesize\setlength{\tabcolsep}{4pt}",
        r"\begin{threeparttable}",
        caption,
        rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
        *head,
        *body,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    if notes:
        items = (rf"\item {note}" for note in notes)
        lines += [r"\begin{tablenotes}\footnotesize", *items, r"\end{tablenotes}"]
    return "\n".join([*lines, r"\end{threeparttable}", r"\end{table}"])


def _latex_cell(cell: Cell) -> str:
    if cell.cite:
        return rf"\citet{{{','.join(cell.cite)}}}"
    return LATEX_MARKS[cell.mark].format(escape_latex(cell.text)) + escape_latex(cell.symbols)


# HTML -------------------------------------------------------------------------------------------------------------

HTML_MARKS = {"": "{}", "best": "<b>{}</b>", "second": "<u>{}</u>"}


def _html(table: TextTable) -> str:
    """A table for a notebook: every text is escaped."""
    sides = ["left" if heading.left else "right" for heading in table.columns]

    def line(tag: str, texts: Sequence[str]) -> str:
        cells = (f'<{tag} style="text-align: {side}">{text}</{tag}>' for side, text in zip(sides, texts, strict=True))
        return f"<tr>{''.join(cells)}</tr>"

    caption = f'<caption style="text-align: left">{escape(table.title)}</caption>' if table.title else ""
    head = line("th", [escape(heading.text) for heading in table.columns])
    body = [
        line("td", [HTML_MARKS[cell.mark].format(escape(cell.text)) + escape(cell.symbols) for cell in row])
        for row in table.cells
    ]
    notes = [f"<p>{escape(note)}</p>" for note in table.notes]
    return "\n".join([f"<table>{caption}<thead>{head}</thead><tbody>", *body, "</tbody></table>", *notes])


# CSV --------------------------------------------------------------------------------------------------------------


def _csv(table: TextTable) -> str:
    header = ["table", *(heading.text for heading in table.columns)]
    rows = ([table.title, *(cell.text for cell in row)] for row in table.cells)
    return csv_text([header, *rows]).rstrip("\n")
