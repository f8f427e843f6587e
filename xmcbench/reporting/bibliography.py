"""BibTeX entries of the papers that a leaderboard shows; their keys are those that LaTeX tables cite."""

from __future__ import annotations

from collections.abc import Iterable

from xmcbench.reporting.published import PublishedRow
from xmcbench.reporting.rows import Leaderboard
from xmcbench.reporting.text_table import escape_latex


def bibliography(board: Leaderboard, published: Iterable[PublishedRow]) -> str:
    """An entry for each paper of the rows shown: that of its file, or one that holds its citation and address."""
    shown = dict.fromkeys(paper for group in board.groups for row in group.rows for paper in row.papers)
    rows = {row.paper: row for row in published}
    return "\n".join(bibtex_entry(rows[paper]) for paper in shown)


def bibtex_entry(row: PublishedRow) -> str:
    """The BibTeX entry of the row's paper, ending with a line break."""
    if row.bibtex:
        return row.bibtex.strip() + "\n"
    address = f",\n  url  = {{{row.url}}}" if row.url else ""
    return f"@misc{{{row.paper},\n  note = {{{escape_latex(row.citation)}}}{address}\n}}\n"
