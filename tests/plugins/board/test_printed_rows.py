"""Published rows to results: one row for each method and kind, and every printed row within reach."""

from __future__ import annotations

import csv
import json
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from reporting.made import cited, record

from xmcbench.errors import XMCBenchError
from xmcbench.reporting.leaderboard_text import FORMATS, render
from xmcbench.reporting.published import published_rows
from xmcbench.reporting.ranked_groups import leaderboard
from xmcbench.reporting.rows import Row, View
from xmcbench.suite.tables import COLUMNS, RANKS
from xmcbench_plugins.board.results import PUBLISHED


def shown(*rows: Any, **view: Any) -> list[Row]:
    return [row for group in leaderboard([], rows, View(**view)).groups for row in group.rows]


def labelled(rows: list[Row]) -> list[tuple[str, str, int]]:
    return [(row.method, row.kind, len(row.folded) - 1) for row in rows]


# What ships -------------------------------------------------------------------------------------------------------


def test_every_printed_row_is_reached_with_its_own_digits() -> None:
    """The command line's `--all`, compared with the YAML files as a plain reader sees them."""
    text = render(leaderboard([], published_rows(), View(variants=True)), "json")
    reached = [row for group in json.loads(text)["groups"] for row in group["rows"]]
    printed = sorted(json.dumps(sorted(row["printed"].items())) for row in reached)
    expected = []
    for path in sorted(PUBLISHED.glob("*.yaml")):
        for table in yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)["tables"]:
            for row in table["rows"]:
                cells = dict(zip(table.get("metrics", ()), row.get("figures", ()), strict=True))
                costs = {k: v for k, v in row.items() if re.search(r"_(hours|gb|seconds)$", k)}
                expected.append(json.dumps(sorted((cells | costs).items())))
    expected = [re.sub(r'\["[^"]*", "null"\](, )?', "", line).replace("], ]", "]]") for line in expected]
    assert printed == sorted(expected)
    assert printed


def test_every_value_of_the_csv_is_that_of_its_row() -> None:
    rows = list(csv.DictReader(StringIO(render(leaderboard([], published_rows(), View(variants=True)), "csv"))))
    values = sorted(
        (row["paper"], row["dataset"], row["method"], row["variant"], name, float(row[name]))
        for row in rows
        for name in row
        if "@" in name and row[name]
    )
    expected = sorted(
        (row.source, row.dataset, row.method, row.variant, name, value)
        for row in published_rows()
        for name, value in row.metrics.items()
        if "@" in name
    )
    assert len(expected) > 1700
    assert values == expected


def test_one_row_for_each_method_and_kind_with_ranks_without_holes() -> None:
    for group in leaderboard([], published_rows()).groups:
        names = [(row.method, row.kind) for row in group.rows]
        assert len(names) == len(set(names)), group.dataset
        ranks = sorted({row.rank for row in group.rows if row.rank})
        assert ranks == list(range(1, len(ranks) + 1)), group.dataset


def test_a_method_of_many_papers_is_one_row_that_names_them_and_its_variants() -> None:
    rows = leaderboard([], published_rows(), View(dataset="lf-amazontitles-1.3m")).groups[0].rows
    (dexml,) = (row for row in rows if row.method == "DEXML")
    for place in ("dexml Table 1, 11, 12", "elmo repository", "prime Table 2, 5", "unidec Table 2"):
        assert place in dexml.facts["paper"]
    assert (dexml.printed["P@1"], dexml.printed["PSP@1"], dexml.printed["training_hours"]) == ("58.40", "31.36", "66")
    assert dexml.facts["variants"].startswith("+")


def test_misprints_splits_and_disagreements_are_told() -> None:
    rows = {(row.method, row.kind): row for row in shown(*published_rows(), dataset="lf-amazontitles-1.3m")}
    assert rows["NGAME", "classifier"].printed["PSP@1"] == "28.23"
    assert "28.56 (lever Table 1; unidec Table 2)" in rows["Renée", "classifier"].disagreements["PSP@1"]
    wiki = leaderboard([], published_rows(), View(dataset="lf-wikipedia-500k", track="supervised"))
    unranked = {row.method for row in wiki.groups[0].rows if row.rank is None}
    assert unranked >= {"DEXML", "DistilBERT OvA Classifier"}
    assert any("another test split" in note for note in wiki.notes)
    text = render(leaderboard([], published_rows(), View(dataset="lf-amazon-131k", variants=True)))
    assert "42.61†" in text
    assert "†: NGAME (encoder), P@1 (unidec Table 1): misprint, value on LF-AmazonTitles-131K." in text


# Rules ------------------------------------------------------------------------------------------------------------


def test_rows_whose_metrics_agree_are_one_result() -> None:
    own = cited("M", metrics={"P@1": 0.5, "P@5": 0.2}, introduced=True, batch_size=64, note="a.")
    reprint = cited("M", metrics={"P@1": 0.5, "PSP@1": 0.1}, paper="prime", variant="encoder", note="b.")
    (row,) = shown(reprint, own)
    assert row.metrics == {"P@1": 0.5, "P@5": 0.2, "PSP@1": 0.1}
    assert row.facts.items() >= {"paper": "dexml Table 1; prime Table 1", "batch_size": 64, "note": "a. b."}.items()
    assert (row.kind, row.rank) == ("encoder", 1)


def test_kinds_are_apart_and_an_unknown_kind_joins_the_one_it_agrees_with() -> None:
    both = cited("M", 0.6, variant="encoder + classifier", classifier=True, paper="prime")
    alone = cited("M", 0.5, variant="classifier", classifier=True, paper="prime", table="Table 2")
    unknown = cited("M", 0.6, classifier=True)
    assert labelled(shown(both, alone, unknown)) == [("M", "both", 1), ("M", "classifier", 0)]
    encoder = cited("M", 0.6, variant="encoder", classifier=False)
    assert labelled(shown(both, encoder)) == [("M", "both", 0), ("M", "encoder", 0)]


def test_ablations_and_costs_are_folded_and_all_of_them_shown_on_request() -> None:
    rows = [
        cited("M", 0.5, introduced=True),
        cited("M", 0.6, variant="more", role="ablation", table="Table 2"),
        cited("M", metrics={}, printed={}, role="cost", training_hours=9.0, table="Table 3"),
    ]
    (row,) = shown(*rows)
    assert (row.metrics["P@1"], row.facts["variants"], row.facts["training_hours"]) == (0.5, "+2", 9.0)
    every = shown(*rows, variants=True)
    assert [(row.label, row.rank) for row in every] == [("M (more)", None), ("M", 1), ("M", None)]


def test_the_methods_own_paper_comes_before_reprints_that_differ() -> None:
    (row,) = shown(cited("M", 0.9, paper="prime"), cited("M", 0.5, introduced=True))
    assert row.metrics["P@1"] == 0.5
    assert row.disagreements["P@1"] == "50.0 (dexml Table 1) or 90.0 (prime Table 1)"


def test_a_misprinted_value_neither_ranks_nor_replaces_another() -> None:
    wrong = cited("M", 0.9, misprint={RANKS: "of another method"}, paper="prime")
    (row,) = shown(wrong, cited("M", 0.5))
    assert (row.metrics[RANKS], row.rank) == (0.25, 1)
    (row,) = shown(wrong)
    assert row.rank is None


HEAD = "citation: c\ntables:\n  - table: 1\n    dataset: d\n    metrics: [P@1]\n    rows:\n      - "


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{method: m, role: major, figures: [1]}", "role: found 'major', expected 'main', 'ablation' or 'cost'"),
        ("{method: m, misprint: {P1: no}, figures: [1]}", "expected something like 'P@1'"),
        ("{method: m, kind: all, figures: [1]}", "kind: found 'all', expected"),
    ],
)
def test_an_unknown_role_is_an_error_of_one_line(tmp_path: Path, row: str, message: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(f"paper: p\n{HEAD}{row}\n")
    with pytest.raises(XMCBenchError) as caught:
        published_rows(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{path}:")
    assert len(str(caught.value).splitlines()) == 1


def test_no_format_names_a_place_on_this_machine() -> None:
    board = leaderboard([], published_rows())
    for format in ("json", "csv"):
        assert ".yaml" not in render(board, format)


def test_rows_of_every_dataset_make_tables_in_every_format() -> None:
    board = leaderboard([], published_rows())
    for format in FORMATS:
        text = render(board, format)
        for group in board.groups:
            assert group.dataset in text.replace("\\", "")


@pytest.mark.parametrize("width", [60, 80, 120, 160])
def test_tables_fit_the_terminal(width: int) -> None:
    text = render(leaderboard([], published_rows()), "table", width)
    assert max(map(len, text.splitlines())) <= width


def test_every_fact_of_a_row_has_a_column() -> None:
    facts = {name for group in leaderboard([record()], published_rows()).groups for name in group.every_column}
    assert facts <= set(COLUMNS)
