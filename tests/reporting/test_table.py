from __future__ import annotations

import csv
import json
from io import StringIO

import pytest

from xmcbench.errors import UnknownNameError
from xmcbench.reporting.leaderboard_text import FORMATS, render
from xmcbench.reporting.ranked_groups import leaderboard
from xmcbench.trial.budget import Budget
from xmcbench.trial.record import Record, Status

from .made import failed, record

USUAL = ("P@1", "P@5", "nDCG@5", "PSP@1", "PSP@5", "R@100")
THIRD = 1 / 3


def several() -> list[Record]:
    return [
        record("dexml-hard", THIRD),
        record("dexml-hard", 0.5, seed=1),
        record("tfidf", 0.25),
        record("greedy", 0.9, status=Status.OVER_BUDGET),
        failed("dexml-full", Status.OOM),
        record("elsewhere", 0.1, budget=Budget(encoder_tokens=20_000_000)),
    ]


def test_a_terminal_shows_percent_deviation_cost_and_statuses() -> None:
    lines = render(leaderboard(several())).splitlines()
    cells = {row[1]: row for line in lines if len(row := line.split()) > 2}
    figures = "41.67 11.79 ×2 20.83 20.0M 90.0 1.3GB 4.2M"
    assert cells["dexml-hard"] == ["1", "dexml-hard", *figures.split(" ")]
    assert cells["greedy"][:4] == ["-", "greedy", "(over_budget)", "90.00"]
    assert cells["dexml-full"][:3] == ["-", "dexml-full", "oom"]
    assert "made, budget: 1,000 steps" in lines
    assert "made, budget: 20,000,000 encoder tokens" in lines
    assert "dexml-full: oom: MemoryError: out of memory" in lines


def test_the_usual_table_fits_a_terminal_of_120_columns() -> None:
    figures = dict.fromkeys(USUAL, 0.98765)
    records = [record("dexml-hard-negatives", metrics=figures, seed=seed) for seed in range(3)]
    grid = render(leaderboard(records)).split("\n\n")[1]
    assert "98.77" in grid
    assert "0.00 ×3" in grid
    assert max(map(len, grid.splitlines())) <= 120


@pytest.mark.parametrize("format", ["csv", "json"])
def test_machines_get_every_digit(format: str) -> None:
    table = leaderboard(several())
    text = render(table, format)
    if format == "json":
        rows = [row for group in json.loads(text)["groups"] for row in group["rows"]]
        figures = {row["method"]: row["metrics"].get("P@1") for row in rows}
        assert {row["method"]: row["keys"] for row in rows}["tfidf"] == [several()[2].key]
    else:
        rows = list(csv.DictReader(StringIO(text)))
        figures = {row["method"]: float(row["P@1"]) if row["P@1"] else None for row in rows}
        assert {row["method"]: row["keys"] for row in rows}["tfidf"] == several()[2].key
        assert {row["budget"] for row in rows} == {"steps=1000", "encoder_tokens=20000000"}
    assert {row["method"]: row["status"] for row in rows}["dexml-full"] == "oom"
    expected = {row.method: row.metrics.get("P@1") for group in table.groups for row in group.rows}
    assert figures == expected


def test_the_best_ranked_figure_of_each_column_is_bold() -> None:
    records = [
        record("a", metrics={"P@1": 0.6, "nDCG@5": 0.1}),
        record("b", metrics={"P@1": 0.5, "nDCG@5": 0.2}),
        record("greedy", metrics={"P@1": 0.9, "nDCG@5": 0.9}, status=Status.OVER_BUDGET),
    ]
    markdown, latex = (render(leaderboard(records), format) for format in ("markdown", "latex"))
    for figure, best in {"60.00": True, "20.00": True, "50.00": False, "10.00": False, "90.00": False}.items():
        assert (f"**{figure}**" in markdown) == best
        assert (rf"\textbf{{{figure}}}" in latex) == best


def test_labels_cannot_break_the_markup() -> None:
    table = leaderboard([record("a|b_c*d", 0.5), record("50% & $x$ #1 {y} \\z ~^", 0.4)])
    markdown = render(table, "markdown")
    assert r"a\|b\_c\*d" in markdown
    rows = [line.replace(r"\|", "") for line in markdown.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in rows}) == 1
    latex = render(table, "latex")
    assert r"50\% \& \$x\$ \#1 \{y\} \textbackslash{}z \textasciitilde{}\textasciicircum{}" in latex
    assert r"a\textbar{}b\_c*d" in latex


def test_contents_that_differ_under_one_name_show_their_hash() -> None:
    headings = render(leaderboard([record("a"), record("b", dataset_hash="f" * 64)]))
    assert "made (0123456789ab), budget" in headings
    assert "made (ffffffffffff), budget" in headings


def test_every_format_is_rendered_even_when_nothing_ended_well() -> None:
    table = leaderboard([failed("a", Status.ERROR), failed("b", Status.SKIPPED)])
    for format in FORMATS:
        assert "skipped" in render(table, format)
    with pytest.raises(UnknownNameError, match="did you mean 'markdown'"):
        render(table, "markdwon")
