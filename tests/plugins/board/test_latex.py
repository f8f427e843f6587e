"""LaTeX tables compile as they are pasted, where a TeX is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from xmcbench.reporting.archive import archive
from xmcbench.reporting.leaderboard_text import bibliography, render
from xmcbench.reporting.notes import EVERY
from xmcbench.reporting.published import published_rows
from xmcbench.reporting.ranked_groups import leaderboard
from xmcbench.reporting.rows import Leaderboard, View
from xmcbench.reporting.text_table import LONGEST, TextTable, escape_latex, render_tables
from xmcbench_plugins.board.results import ACCEPTED

TATE = "lf-tate-titles-16k"

PAPER = r"""\documentclass{article}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage{amssymb,array,booktabs,longtable,threeparttable,natbib}
\begin{document}
\input{short} \input{long} \input{special} \input{measured}
\bibliographystyle{plainnat}
\bibliography{papers}
\end{document}
"""
SPECIAL = TextTable("50% & $x$ #1", ("a_b", "^~\\"), (("{y} <z> |w|", '"±×≤≥Δ≈¹†‡↓○◇□∅" --all Renée'),), ("a note_1",))


@pytest.fixture
def paper(tmp_path: Path) -> Path:
    """A paper with a short table, a long one, and one of special characters."""
    rows = published_rows()
    short = leaderboard([], rows, View(dataset="lf-amazontitles-1.3m", paper=True))
    long = leaderboard([], rows, View(dataset="lf-amazontitles-131k", paper=True, variants=True))
    assert len(short.groups[0].rows) < LONGEST < len(long.groups[0].rows)
    measured = leaderboard(
        archive(ACCEPTED).of({TATE}).records.values(), view=View(dataset=TATE, budget="flops", paper=True)
    )
    (tmp_path / "measured.tex").write_text(render(measured, "latex"))
    (tmp_path / "short.tex").write_text(render(short, "latex"))
    (tmp_path / "long.tex").write_text(render(long, "latex"))
    (tmp_path / "special.tex").write_text(render_tables([SPECIAL], "latex"))
    (tmp_path / "papers.bib").write_text(bibliography(Leaderboard((*short.groups, *long.groups)), rows))
    (tmp_path / "paper.tex").write_text(PAPER)
    return tmp_path


def test_tables_have_caption_label_notes_and_citations(paper: Path) -> None:
    short = (paper / "short.tex").read_text()
    for part in (r"\centering", r"\caption{lf-amazontitles-1.3m, published}", r"\label{tab:", r"\citet{dexml}"):
        assert part in short
    assert r"\begin{tablenotes}" in short
    assert r"method & kind & P@1 & P@3 & P@5 & PSP@1 & PSP@3 & PSP@5 & source" in short
    assert r"\begin{longtable}" in (paper / "long.tex").read_text()


def test_measured_rows_have_the_names_of_papers_and_no_character_that_latex_lacks() -> None:
    board = leaderboard(
        archive(ACCEPTED).of({TATE}).records.values(), view=View(dataset=TATE, budget="flops", paper=True)
    )
    text = render(board, "latex")
    assert text.isascii()
    for part in (
        "XR-Linear",
        "TF-IDF neighbours",
        r"PLT$\lozenge$",
        r"method & P@1 & P@5 & 95 \% & sd & PSP@1 & PSP@5 \\",
    ):
        assert part in text
    for option in ("-all", "side\\_by\\_side"):
        assert option not in text


def test_every_mark_is_spelt_for_latex() -> None:
    assert all(escape_latex(mark).isascii() for mark in EVERY)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no TeX (apt-get install texlive-latex-extra)")
def test_tables_compile_and_fit_the_page(paper: Path) -> None:
    latex = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper"]
    for command in (latex, ["bibtex", "paper"], latex, latex):
        done = subprocess.run(command, cwd=paper, capture_output=True, text=True, errors="replace", check=False)
        assert done.returncode == 0, done.stdout[-2000:]
    log = (paper / "paper.log").read_text(errors="replace")
    assert "undefined" not in log
    assert (paper / "paper.pdf").stat().st_size > 10_000
