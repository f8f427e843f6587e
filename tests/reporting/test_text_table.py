"""Plain tables in every text format."""

from __future__ import annotations

import csv
from io import StringIO

import pytest

from xmcbench.errors import UnknownNameError
from xmcbench.reporting.text_table import TABLE_FORMATS, TextTable, render_tables

GRID = TextTable("a title", ("method", "P@1"), (("a|b", "50.00"), ("_c", "1,000")), ("a note",))


@pytest.mark.parametrize("format", TABLE_FORMATS)
def test_every_format_has_titles_and_cells(format: str) -> None:
    text = render_tables([GRID, GRID], format)
    assert text.count("a title") >= 2
    assert "50.00" in text


def test_markdown_and_latex_escape_what_is_special() -> None:
    assert r"a\|b" in render_tables([GRID], "markdown")
    assert r"\_c" in render_tables([GRID], "latex")


def test_csv_reads_back() -> None:
    rows = list(csv.reader(StringIO(render_tables([GRID], "csv"))))
    assert rows == [["table", "method", "P@1"], ["a title", "a|b", "50.00"], ["a title", "_c", "1,000"]]


def test_a_grid_without_rows_is_a_heading() -> None:
    assert "method" in render_tables([TextTable("t", ("method", "P@1"), ())])


def test_an_unknown_format_is_named() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'latex'"):
        render_tables([GRID], "latx")


def test_names_that_differ_at_their_ends_stay_distinct_in_a_narrow_terminal() -> None:
    names = [f"dexml-hard[batch_size={size}]" for size in (64, 128, 256)]
    table = TextTable("", ("method", "P@1"), tuple((name, "50.00") for name in names))
    lines = render_tables([table], width=25).splitlines()[2:]
    assert all(len(line) <= 25 for line in lines)
    assert len(set(lines)) == len(names)


def test_names_of_settings_go_before_their_values_in_a_narrow_terminal() -> None:
    names = [f"hard[batch_size={size},negatives_per_query={count}]" for size in (64, 256) for count in (1, 5)]
    table = TextTable("", ("method", "P@1"), tuple((name, "50.00") for name in names))
    shown = [line.split()[0] for line in render_tables([table], width=22).splitlines()[2:]]
    assert shown == ["hard[64,1]", "hard[64,5]", "hard[256,1]", "hard[256,5]"]
