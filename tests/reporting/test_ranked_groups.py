from __future__ import annotations

from statistics import fmean, stdev

import pytest

from xmcbench.errors import UnknownNameError
from xmcbench.plugins.registry import registry
from xmcbench.reporting.leaderboard_text import render
from xmcbench.reporting.make_rows import recorded_metrics
from xmcbench.reporting.ranked_groups import leaderboard
from xmcbench.reporting.rows import Leaderboard, View
from xmcbench.suite.tables import RANKS
from xmcbench.trial.budget import Budget
from xmcbench.trial.record import Status
from xmcbench.trial.trial import Selection
from xmcbench.trial.versions import ENGINE_VERSION, SELECTION_VERSION

from .made import failed, record


def ranks(table: Leaderboard) -> list[list[tuple[int | None, str]]]:
    return [[(row.rank, row.label) for row in group.rows] for group in table.groups]


def test_rows_are_ranked_by_the_sort_metric_and_equal_values_share_a_rank_without_holes() -> None:
    records = [record("low", 0.1), record("b", 0.7), record("a", 0.7, seed=1), record("top", 0.9)]
    assert ranks(leaderboard(records)) == [[(1, "top"), (2, "a"), (2, "b"), (3, "low")]]
    by_other = [record("x", metrics={"P@1": 0.9, "R@10": 0.1}), record("y", metrics={"P@1": 0.8, "R@10": 0.2})]
    assert ranks(leaderboard(by_other, view=View(sort="R@10"))) == [[(1, "y"), (2, "x")]]


def test_without_a_wish_tables_rank_by_one_metric_and_by_the_first_where_no_row_has_it() -> None:
    values = {"x": {"P@1": 0.9, RANKS: 0.1}, "y": {"P@1": 0.8, RANKS: 0.2}}
    assert ranks(leaderboard(record(name, metrics=own) for name, own in values.items())) == [[(1, "y"), (2, "x")]]
    without = [record(name, metrics={"P@1": own["P@1"]}) for name, own in values.items()]
    assert ranks(leaderboard(without)) == [[(1, "x"), (2, "y")]]


def test_what_tuning_tried_is_no_entry_and_what_it_chose_is() -> None:
    tried, best = record("a/sample-0", 0.9), record("a", 0.5, config={"batch_size": 64})
    told = {"samples": [{"trial": tried.key}, {"trial": best.key}]}
    table = leaderboard([tried, record("b", 0.4, config={"batch_size": 32}), best.model_copy(update={"chosen": told})])
    assert ranks(table) == [[(1, "a"), (2, "b")]]


def test_the_order_of_the_records_does_not_matter() -> None:
    records = [record("a", 0.1), record("b", 0.7), failed("c", Status.OOM), record("a", 0.3, seed=1)]
    assert leaderboard(records).groups == leaderboard(records[::-1]).groups


def test_budgets_datasets_and_contents_are_never_ranked_together() -> None:
    records = [
        record("a", 0.1),
        record("b", 0.9, budget=Budget(steps=2000)),
        record("c", 0.8, dataset="other"),
        record("d", 0.7, dataset_hash="f" * 64),
        record("e", 0.6, budget=Budget(steps=1000, epochs=1)),
    ]
    table = leaderboard(records)
    assert all(len(group.rows) == 1 and group.rows[0].rank == 1 for group in table.groups)
    assert len(table.groups) == len(records)


def test_seeds_are_averaged_with_their_sample_deviation() -> None:
    figures = [0.5, 0.6, 0.9]
    table = leaderboard([record("a", p1, seed=seed) for seed, p1 in enumerate(figures)])
    (row,) = table.groups[0].rows
    assert row.metrics["P@1"] == fmean(figures)
    assert row.std["P@1"] == stdev(figures)
    assert row.seeds == (0, 1, 2)
    assert len(set(row.keys)) == 3
    assert leaderboard([record("a")]).groups[0].rows[0].std == {}


def test_spending_is_averaged_but_of_memory_the_largest_counts() -> None:
    spent = [
        {"device_seconds": 10.0, "peak_bytes": 5, "stage_seconds": {"train": 4.0}},
        {"device_seconds": 20.0, "peak_bytes": 9},
    ]
    (row,) = leaderboard([record("a", seed=seed, spent=ledger) for seed, ledger in enumerate(spent)]).groups[0].rows
    assert {name: row.facts[name] for name in spent[0] if name != "stage_seconds"} == {
        "device_seconds": 15.0,
        "peak_bytes": 9.0,
    }
    assert row.facts["train_seconds"] == 4.0
    assert row.facts["training_hours"] == 15 / 3600


def test_one_label_with_several_configurations_is_several_rows_told_apart() -> None:
    records = [
        record("dexml", 0.5, config={"batch_size": 256, "optimizer": {"lr": 0.1}}),
        record("dexml", 0.6, config={"batch_size": 512, "optimizer": {"lr": 0.1}}),
        record("dexml", 0.7, config={"batch_size": 512, "optimizer": {"lr": 0.2}}, seed=1),
        record("tfidf", 0.4),
    ]
    assert ranks(leaderboard(records)) == [
        [
            (1, "dexml (batch_size=512, optimizer.lr=0.2)"),
            (2, "dexml (batch_size=512, optimizer.lr=0.1)"),
            (3, "dexml (batch_size=256, optimizer.lr=0.1)"),
            (4, "tfidf"),
        ]
    ]
    held_out = record("a", 0.4, selection=Selection(queries=9), versions={"selection": SELECTION_VERSION})
    selections = [record("a"), held_out]
    methods = [row.label for row in leaderboard(selections).groups[0].rows]
    assert methods[0] == "a (selection.evaluations=None, selection.metric=None, selection.queries=None)"
    assert methods[1].endswith("selection.queries=9)")


def test_results_of_older_code_are_marked() -> None:
    records = [
        record("new", 0.5, versions={"method": 2, "engine": ENGINE_VERSION}),
        record("old", 0.4, versions={"method": 1, "engine": ENGINE_VERSION}),
        record("other", 0.3, method="other", versions={"method": 1, "engine": ENGINE_VERSION - 1}),
        record("sole", 0.1, method="sole", versions={"method": 1}),
    ]
    table = leaderboard(records)
    rows = [line.split()[1] for line in render(table).splitlines() if line[:1].isdigit()]
    assert rows == ["new", "old‡", "other‡", "sole"]
    reasons = f"engine {ENGINE_VERSION - 1}, now {ENGINE_VERSION}; method 1, now 2"
    assert f"‡: a result of older code ({reasons}); `xmcbench run` trains it again." in table.notes


def test_a_result_of_older_code_than_is_installed_is_marked_though_no_newer_one_is_there() -> None:
    """Also where its settings are those of an older version."""
    version = registry().method("sparse-ranker").thing.info.version
    for config in ({}, {"a setting that": "left"}):
        row, same = (
            leaderboard([record("own", method="sparse-ranker", config=config, versions={"method": number})])
            .groups[0]
            .rows[0]
            for number in (version - 1, version)
        )
        assert (row.older, same.older) == (f"method {version - 1}, now {version}", "")


def test_an_older_result_of_the_same_configuration_has_the_same_name() -> None:
    config = {"batch_size": 8}
    records = [
        record("a", 0.5, config=config | {"added": 1}, versions={"method": 2, "engine": ENGINE_VERSION}),
        record("a", 0.4, config=config, versions={"method": 1, "engine": ENGINE_VERSION}),
        record("b", 0.3, config=config, versions={"method": 2, "engine": ENGINE_VERSION}),
        record("b", 0.2, config={"batch_size": 9}, versions={"method": 2, "engine": ENGINE_VERSION}),
    ]
    rows = leaderboard(records).groups[0].rows
    assert [row.label for row in rows] == ["a", "a", "b (batch_size=8)", "b (batch_size=9)"]
    assert [bool(row.older) for row in rows] == [False, True, False, False]


def test_a_trained_method_that_is_not_better_than_popular_is_marked() -> None:
    records = [
        record("frequent", 0.3, method="popular", spent={"steps": 0}),
        record("good", 0.4),
        record("equal", 0.3, seed=1),
        record("untrained", 0.1, spent={"steps": 0}),
    ]
    table = leaderboard(records)
    assert [row.label for row in table.groups[0].rows if row.below_popular] == ["equal"]
    assert "equal↓" in render(table)
    assert any(note.startswith("↓: trained, yet not better") for note in table.notes)


def test_releases_that_change_no_result_are_averaged() -> None:
    (row,) = leaderboard([record("a", version="1"), record("a", seed=1, version="2")]).groups[0].rows
    assert (row.seeds, row.label) == ((0, 1), "a")


@pytest.mark.parametrize("status", [s for s in Status if s not in (Status.OK, Status.OVER_BUDGET)])
def test_a_failure_is_a_row_without_rank_or_figures(status: Status) -> None:
    stray = record("stray", 0.99, status=status)  # figures that an invalid trial must not show
    table = leaderboard([record("a", 0.1), failed("b", status), stray])
    assert ranks(table) == [[(1, "a"), (None, "b"), (None, "stray")]]
    assert table.groups[0].rows[2].metrics == {}
    assert f"b: {status}: MemoryError: out of memory" in table.notes


def test_a_failed_seed_does_not_hide_in_the_mean_of_the_others() -> None:
    table = leaderboard([record("a", 0.4), failed("a", Status.TIMEOUT, seed=1)])
    assert [(row.rank, row.method, row.status, row.seeds) for row in table.groups[0].rows] == [
        (1, "a", Status.OK, (0,)),
        (None, "a", Status.TIMEOUT, (1,)),
    ]


def test_over_budget_shows_its_figures_and_is_not_ranked() -> None:
    table = leaderboard([record("within", 0.1), record("over", 0.9, status=Status.OVER_BUDGET)])
    assert ranks(table) == [[(1, "within"), (None, "over")]]
    assert table.groups[0].rows[1].metrics["P@1"] == 0.9


def test_figures_of_other_definitions_are_neither_ranked_nor_averaged_in() -> None:
    table = leaderboard([record("a", 0.1), record("a", 0.9, seed=1, metric_version=0)])
    assert [(row.rank, row.metrics["P@1"]) for row in table.groups[0].rows] == [(1, 0.1), (None, 0.9)]
    assert any("xmcbench rescore" in note for note in table.notes)
    assert not any("xmcbench rescore" in note for note in leaderboard([record("a"), failed("b", Status.OOM)]).notes)


def test_the_selection_split_is_stated() -> None:
    chosen = "train: 1000 queries held out"
    notes = leaderboard([record("a"), record("b", seed=1, selection_split=chosen)]).notes
    assert f"Checkpoints chosen on: none (1 row); {chosen} (1 row)." in notes


def test_columns_are_the_usual_ones_that_were_recorded_unless_named() -> None:
    records = [record("a", metrics={"P@1": 0.1, "R@7": 0.2, "PSP@5": 0.3})]
    assert leaderboard(records).groups[0].metrics == ("P@1", "PSP@5")
    assert leaderboard(records, view=View(metrics=["R@7"])).groups[0].metrics == ("R@7",)
    assert recorded_metrics(records) == ("P@1", "R@7", "PSP@5")
    assert leaderboard([record("a", metrics={"Own@3": 0.1})]).groups[0].sort == "Own@3"


def test_unknown_names_are_answered_with_the_nearest() -> None:
    records = [record("a"), record("b", dataset="catalog-5k")]
    with pytest.raises(UnknownNameError, match=r"'NDCG@5' \(did you mean 'nDCG@5'"):
        leaderboard(records, view=View(metrics=["NDCG@5"]))
    with pytest.raises(UnknownNameError, match="unknown metric 'P@2'"):
        leaderboard(records, view=View(sort="P@2"))
    with pytest.raises(UnknownNameError, match=r"'catalog' \(did you mean 'catalog-5k'"):
        leaderboard(records, view=View(dataset="catalog"))


def test_a_row_without_the_sort_metric_is_shown_and_not_ranked() -> None:
    table = leaderboard([record("a", 0.1), record("b", metrics={"R@10": 0.9})])
    assert ranks(table) == [[(1, "a"), (None, "b")]]


def test_what_cannot_be_recomputed_is_marked() -> None:
    names = {"whole": {}, "digest": {}, "failed": {"status": "error", "metrics": {}}}
    records = [record(name, **changes, config={"name": name}) for name, changes in names.items()]
    table = leaderboard(records, recomputable=lambda own: own.trial.label == "whole")
    assert [row.label for row in table.groups[0].rows if row.stated] == ["digest"]
    text = render(table)
    assert "digest□" in text
    assert "□: not recomputed: its predictions are not here, or its dataset is unknown here." in text


def test_what_is_trained_and_not_limited_by_the_budget_is_marked() -> None:
    free = {"encoder_tokens": 0, "steps": 0, "flops": 0, "stage_seconds": {}, "device_seconds": 0.5}
    solver = {"encoder_tokens": 10, "solver_flops": 5, "flops": 5}
    program = {"not_counted": ["encoder_tokens", "flops", "steps"]}
    rows = {"trained": {}, "free": {"spent": free}, "solver": {"spent": solver}, "program": {"spent": program}}
    table = leaderboard([record(name, 0.6, **changes) for name, changes in rows.items()])
    shown = table.groups[0].rows
    assert {row.label for row in shown if row.unlimited} == {"free", "solver", "program"}
    assert {row.label for row in shown if row.unbounded} == {"solver", "program"}
    text = render(table)
    marked = [name for name in rows if f"{name}◇" in text]
    assert marked == ["solver", "program"]
    assert "◇: trained, but not limited by this budget" in text
    assert "Rows whose steps and operations are 0 train nothing" in text


def test_a_row_that_no_budget_limits_is_ranked_in_every_table_of_its_task() -> None:
    few, many, other = Budget(steps=1000), Budget(steps=9000), Budget(epochs=1)
    trained = [record("dexml", 0.5, budget=few), record("dexml", 0.7, budget=many)]
    words = record("words", 0.6, method="popular", budget=other, spent={"steps": 0, "epochs": 0.0})
    elsewhere = record("words", 0.1, method="popular", dataset="zoo", dataset_hash="z", budget=few, spent={"steps": 0})
    groups = leaderboard([*trained, words, elsewhere]).groups
    found = {(g.dataset, g.budget["steps"]): [(r.method, r.rank, r.unlimited) for r in g.rows] for g in groups}
    assert found == {
        ("made", 1000): [("words", 1, True), ("dexml", 2, False)],
        ("made", 9000): [("dexml", 1, False), ("words", 2, True)],
        ("zoo", 1000): [("words", 1, True)],  # there is no other table
    }
    assert [row.keys for group in groups[:2] for row in group.rows if row.method == "words"] == [(words.key,)] * 2
    (asked,) = leaderboard([*trained, words], view=View(budget="epochs")).groups
    assert [row.method for row in asked.rows] == ["words"]
    (asked,) = leaderboard([*trained, words], view=View(budget="steps=9000")).groups
    assert [row.method for row in asked.rows] == ["dexml", "words"]


@pytest.mark.parametrize("spent", [{"steps": 40, "epochs": 0.0}, {"steps": 0, "epochs": 0.5}])
def test_a_row_that_a_budget_limits_stays_with_its_own_budget(spent: dict[str, float]) -> None:
    own = record("own", 0.9, method="popular", budget=Budget(epochs=1), spent=spent)
    groups = leaderboard([record("dexml", 0.5, budget=Budget(steps=1000)), own]).groups
    assert sorted([row.method for row in group.rows] for group in groups) == [["dexml"], ["own"]]


def test_a_row_that_stands_in_a_table_does_not_come_into_it_again() -> None:
    mine, others = (
        [record("words", 0.6, method="popular", seed=seed, budget=budget, spent={"steps": 0}) for seed in range(count)]
        for budget, count in ((Budget(steps=1000), 1), (Budget(steps=9000), 3))
    )
    trained = [record("dexml", 0.5, budget=Budget(steps=limit)) for limit in (1000, 9000, 500)]
    groups = leaderboard([*mine, *others, *trained]).groups
    seeds = {g.budget["steps"]: [len(r.keys) for r in g.rows if r.method == "words"] for g in groups}
    assert seeds == {1000: [1], 9000: [3], 500: [3]}  # elsewhere the one with the most seeds


def test_a_dataset_with_test_texts_in_its_training_part_has_a_note() -> None:
    notes = leaderboard([record("a", 0.4, test_texts_in_train=17), record("b", 0.5)]).notes
    assert "made: 17 test texts are also in the training part, where their labels are known." in notes
    assert not any("training part" in note for note in leaderboard([record("a", 0.4)]).notes)


def test_labels_that_share_their_text_have_a_note() -> None:
    notes = leaderboard([record("a", 0.4, labels_with_shared_text=32), record("b", 0.5)]).notes
    assert any(note.startswith("made: 32 labels share their text with another one") for note in notes)
    assert not any("share their text" in note for note in leaderboard([record("a", 0.4)]).notes)
