"""What a view chooses, and published rows beside measured ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.reporting.leaderboard_text import FORMATS, render
from xmcbench.reporting.ranked_groups import leaderboard
from xmcbench.reporting.rows import Group, Leaderboard, Row, View
from xmcbench.trial.budget import Budget

from .made import cited, record

DEXML = {"encoder": {"name": "distilbert-base-uncased"}, "batch_size": 8192, "loss": "decoupled-softmax"}


def named(table: Leaderboard) -> list[tuple[str, list[str]]]:
    return [(group.source, [row.method for row in group.rows]) for group in table.groups]


def only(table: Leaderboard) -> Group:
    (group,) = table.groups
    return group


def measured(table: Leaderboard) -> Row:
    return next(row for group in table.groups if group.source == "measured" for row in group.rows)


def test_published_rows_are_never_in_a_group_with_measured_ones() -> None:
    table = leaderboard([record("dexml", 0.4)], [cited("DEXML", 0.5), cited("NGAME", 0.6)])
    assert named(table) == [("measured", ["dexml"]), ("published", ["NGAME", "DEXML"])]
    for format in FORMATS:
        text = render(table, format)
        assert text.casefold().index("dexml") < text.index("NGAME")


def test_tracks_and_protocols_are_apart() -> None:
    rows = [cited("A"), cited("B", track="zero-shot"), cited("C", protocol="500 samples"), cited("D")]
    groups = leaderboard([], rows).groups
    assert {(g.track, g.protocol): [row.method for row in g.rows] for g in groups} == {
        ("supervised", ""): ["A", "D"],
        ("zero-shot", ""): ["B"],
        ("supervised", "500 samples"): ["C"],
    }
    both = [record("a", track="zero-shot"), record("b")]
    assert [[row.method for row in group.rows] for group in leaderboard(both).groups] == [["b"], ["a"]]


def test_a_teacher_made_of_annotations_is_not_ranked_on_the_zero_shot_track() -> None:
    records = [record("real", 0.2, track="zero-shot"), record("oracle", 0.9, track="zero-shot", simulated_teacher=True)]
    assert [(row.rank, row.method) for row in only(leaderboard(records)).rows] == [(1, "real"), (None, "oracle")]


@pytest.mark.parametrize("source", ["published", "measured"])
def test_a_source_may_be_left_out(source: Any) -> None:
    table = leaderboard([record("dexml")], [cited("NGAME")], View(source=source))
    assert [group.source for group in table.groups] == [source]


def test_the_difference_is_told_where_method_and_setting_are_the_same() -> None:
    rows = [
        cited("DEXML", 0.50, encoder="distilbert-base", batch_size=8192, loss="decoupled softmax", variant="decoupled"),
        cited("DEXML", 0.40, encoder="distilbert-base", batch_size=8192, loss="softmax", table="Table 2"),
        cited("DEXML", 0.30, table="Table 3"),
        cited("NGAME", 0.20, encoder="distilbert-base", batch_size=8192, table="Table 4"),
    ]
    row = measured(leaderboard([record("mine", 0.47, config=DEXML)], rows))
    assert row.against == {"P@1": pytest.approx(-0.03)}
    assert row.against_source == "dexml Table 1"
    text = render(leaderboard([record("mine", 0.47, config=DEXML)], rows))
    assert "-3.00 (dexml Table 1)" in text


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"encoder": "distilbert-base"},
        {"encoder": "distilbert-base", "batch_size": 1024},
        {"encoder": "BERT-base", "batch_size": 8192},
        {"encoder": "distilbert-base", "batch_size": 8192, "loss": "softmax"},
        {"encoder": "distilbert-base", "batch_size": 8192, "protocol": "500 samples"},
        {"encoder": "distilbert-base", "batch_size": 8192, "track": "zero-shot"},
        {"encoder": "distilbert-base", "batch_size": 8192, "dataset": "another"},
    ],
)
def test_no_difference_to_another_setting_or_to_one_that_is_not_known(facts: dict[str, Any]) -> None:
    assert measured(leaderboard([record("dexml", config=DEXML)], [cited("DEXML", **facts)])).against == {}


def test_a_label_that_names_another_published_method_is_that_one() -> None:
    setting = {"encoder": "DistilBERT", "batch_size": 8192}
    rows = [cited("DEXML", 0.5, **setting), cited("DEXML-lite", 0.4, **setting, table="Table 2")]
    table = leaderboard([record("dexml-lite", 0.4, config=DEXML)], rows)
    assert measured(table).against_source == "dexml Table 2"


def test_a_view_chooses_budget_and_method() -> None:
    records = [
        record("dexml-hard", budget=Budget(steps=1000)),
        record("dexml-easy", budget=Budget(steps=2000)),
        record("ngame", method="ngame", budget=Budget(encoder_tokens=5)),
    ]

    def methods(**view: Any) -> list[str]:
        return [row.method for group in leaderboard(records, view=View(**view)).groups for row in group.rows]

    assert methods(budget="steps=1000") == ["dexml-hard"]
    assert methods(budget="steps") == ["dexml-hard", "dexml-easy"]
    assert methods(method="*-EASY") == ["dexml-easy"]
    assert methods(method="dexml") == ["dexml-hard", "dexml-easy"]
    with pytest.raises(UnknownNameError, match=r"unknown budget 'steps=3' .*'steps=2000'"):
        methods(budget="steps=3")
    with pytest.raises(XMCBenchError, match="expected a number"):
        methods(budget="steps=many")
    with pytest.raises(UnknownNameError, match="did you mean 'ngame'"):
        methods(method="ngam")


@pytest.mark.parametrize("view", [View(method="b"), View(method="b", variants=True)])
def test_one_method_keeps_its_rank_among_all(view: View) -> None:
    rows = [cited("A", 0.9), cited("B", 0.8), cited("C", 0.7), cited("D", 0.6)]
    group = only(leaderboard([], rows, view))
    assert [(row.rank, row.method) for row in group.rows] == [(2, "B")]
    assert group.best["P@1"] == (0.9, 0.8)
    assert "<u>80.0</u>" in render(leaderboard([], rows, view), "markdown")


def test_a_result_is_found_by_the_name_of_a_variant() -> None:
    rows = [cited("A", 0.9), cited("A", 0.5, variant="small", role="ablation"), cited("B")]
    assert [row.label for row in only(leaderboard([], rows, View(method="A (small)"))).rows] == ["A"]


def test_a_mark_stays_where_a_name_is_cut() -> None:
    rows = [record("a" * 50, versions={"method": 1}), record("b", versions={"method": 2}, metrics={"P@1": 0.4})]
    text = render(leaderboard(rows), width=40)
    assert "aaa…‡" in text


def test_the_best_rows_are_kept_and_the_others_counted() -> None:
    table = leaderboard(
        [record(str(i), i / 10) for i in range(5)], [cited(str(i), i / 10) for i in range(4)], View(top=2)
    )
    assert named(table) == [("measured", ["4", "3"]), ("published", ["3", "2"])]
    assert [group.left_out for group in table.groups] == [3, 2]
    assert "5 further rows are not shown (--top)." in table.notes


def test_rows_are_grouped_by_a_column_and_ranked_within() -> None:
    rows = [cited("A", 0.5, batch_size=10), cited("B", 0.6, batch_size=10), cited("C", 0.1, batch_size=20), cited("D")]
    groups = leaderboard([], rows, View(group_by="batch_size")).groups
    assert [(group.by, [(row.rank, row.method) for row in group.rows]) for group in groups] == [
        ({"batch_size": ""}, [(1, "D")]),
        ({"batch_size": "10"}, [(1, "B"), (2, "A")]),
        ({"batch_size": "20"}, [(1, "C")]),
    ]
    assert "made, published, batch: not stated" in render(leaderboard([], rows, View(group_by="batch_size")))


def test_a_column_orders_rows_and_leaves_their_ranks() -> None:
    rows = [cited("A", 0.5, training_hours=9.0), cited("B", 0.6), cited("C", 0.1, training_hours=2.0)]
    group = only(leaderboard([], rows, View(sort="training_hours")))
    assert [(row.rank, row.method) for row in group.rows] == [(3, "C"), (2, "A"), (1, "B")]


def test_columns_are_as_asked_or_those_that_are_known() -> None:
    rows = [cited("A", batch_size=1024, label_text=True), cited("B")]
    assert only(leaderboard([], rows)).columns == ("batch_size", "paper")
    chosen = View(columns=["label_text", "batch_size"], metrics=["P@5"])
    text = render(leaderboard([], rows, chosen))
    assert "#  method    P@5  label text  batch" in text
    assert "25.00         yes  1,024" in text
    with pytest.raises(UnknownNameError, match=r"'encodr' .did you mean 'encoder'"):
        leaderboard([], rows, View(columns=["encodr"]))
    with pytest.raises(UnknownNameError, match="--group-by: unknown column"):
        leaderboard([], rows, View(group_by="P@1"))


def test_a_view_takes_headings_any_case_and_one_spelling_of_an_encoder() -> None:
    rows = [
        cited("A", 0.5, batch_size=9, encoder="DistilBERT"),
        cited("B", 0.6, batch_size=5, encoder="distilbert-base"),
    ]
    by_batch = only(leaderboard([], rows, View(sort="batch", columns=["Batch"], dataset="MADE")))
    assert ([row.method for row in by_batch.rows], by_batch.columns) == (["B", "A"], ("batch_size",))
    by_encoder = only(leaderboard([], rows, View(group_by="encoder")))
    assert by_encoder.by == {"encoder": "distilbert-base-uncased"}


def test_a_metric_that_is_chosen_alone_is_the_one_ranked_by() -> None:
    rows = [cited("A", metrics={"P@1": 0.5, "R@9": 0.1}), cited("B", metrics={"P@1": 0.4, "R@9": 0.2})]
    group = only(leaderboard([], rows, View(metrics=["R@9"])))
    assert (group.sort, [(row.rank, row.method) for row in group.rows]) == ("R@9", [(1, "B"), (2, "A")])


def test_a_track_without_rows_is_an_error() -> None:
    with pytest.raises(XMCBenchError, match="found no rows of dataset made, track zero-shot, expected some"):
        leaderboard([record()], [], View(dataset="made", track="zero-shot"))


# Ties -------------------------------------------------------------------------------------------------------------


SCORES = {"best": 0.50, "near": 0.49, "sure": 0.48, "far": 0.10}


def contest(figures: dict[str, np.ndarray]) -> dict[str, bool]:
    records = [
        record(label, p1, config={"label": label}, intervals={"P@1": (p1 - 0.03, p1 + 0.03)})
        for label, p1 in SCORES.items()
    ]
    labels = {made.key: made.trial.label for made in records}

    def resampled(key: str, metrics: Sequence[str]) -> dict[str, np.ndarray]:
        assert "P@1" in metrics
        return {"P@1": figures[labels[key]]} if labels[key] in figures else {}

    return {row.method: "P@1" in row.tied for row in only(leaderboard(records, resampled=resampled)).rows}


def test_rows_that_the_best_does_not_surely_beat_are_marked() -> None:
    noise = np.random.default_rng(0).normal(0, 0.02, 1000)
    figures = {
        "best": 0.50 + noise,
        "near": 0.49 - noise,  # apart by as much as chance gives
        "sure": 0.48 + noise,  # the same queries drawn, and below each time
    }
    assert contest(figures) == {
        "best": False,
        "near": True,
        "sure": False,
        "far": False,
    }  # without replicates: not compared
    assert contest({}) == dict.fromkeys(SCORES, False)


def test_a_tie_shows_in_the_table() -> None:
    noise = np.random.default_rng(0).normal(0, 0.02, 1000)
    records = [
        record(label, p1, config={"label": label}, intervals={"P@1": (0.47, 0.53)})
        for label, p1 in (("a", 0.5), ("b", 0.49))
    ]
    table = leaderboard(records, resampled=lambda key, _: {"P@1": noise if key == records[0].key else -noise})
    text = render(table)
    assert "49.00≈  ±3.0¹" in text
    assert "¹: one seed" in text
    assert r"49.00$\approx$" not in render(table, "markdown")
    assert r"\underline{49.00}$\approx$" in render(table, "latex")


def test_seeds_have_an_interval_of_their_mean() -> None:
    """Over queries and seeds: wider than that of a seed, whose queries are the same."""
    records = [record("a", 0.5 + 0.01 * seed, seed=seed, intervals={"P@1": (0.4, 0.6)}) for seed in (0, 1, 2)]
    noise = np.random.default_rng(0).normal(0, 0.01, 1000)
    draws = {made.key: made.metrics["P@1"] + noise for made in records}
    (row,) = only(leaderboard(records, resampled=lambda key, _: {"P@1": draws[key]})).rows
    error = np.hypot(noise.std(ddof=1), 0.01 / np.sqrt(3))
    low, high = row.intervals["P@1"]
    assert (low + high) / 2 == pytest.approx(0.51)
    assert high - low > 2 * 1.96 * error
    (row,) = only(leaderboard(records)).rows
    assert row.intervals == {}
