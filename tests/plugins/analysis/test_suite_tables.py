"""The tables of a suite: what each cell spent and reached."""

from __future__ import annotations

from typing import Any

from reporting.made import LEDGER, record

from xmcbench.reporting.describe import describe
from xmcbench.reporting.notes import BELOW_POPULAR
from xmcbench.reporting.published import published_rows
from xmcbench.suite.tables import TableShape
from xmcbench.trial.facts import Ended
from xmcbench.trial.record import Record
from xmcbench.trial.trial import Selection, Trial
from xmcbench_plugins.analysis.suite_tables import SweepCell, cell_table, cost_table, sweep_cells


def made(label: str, p1: float, flops: float = 1e9, **changes: Any) -> Record:
    config = {"batch_size": 64, "negatives_per_query": 2, "encoder": {"name": "tiny"}} | changes.pop("config", {})
    ledger = LEDGER | {"flops": int(flops), "pool_labels": 50_000}
    return record(label, p1, config=config, spent=ledger, **changes)


def idle(trial: Trial) -> frozenset[str]:
    return frozenset({"negatives_per_query"}) if trial.label == "in-batch" else frozenset()


def cells_of(*records: Record) -> list[SweepCell]:
    return sweep_cells([(one.trial, one) for one in records], {}, idle)


SHAPE = TableShape(columns=["batch_size", "negatives_per_query", "negative_pool", "P@1", "encoder"])


def test_a_cell_says_its_settings_its_pool_and_its_figures() -> None:
    grid = cell_table("title", SHAPE, cells_of(made("hard", 0.5), made("in-batch", 0.25)))
    assert grid.headings == ("method", "batch", "negatives", "pool", "P@1", "encoder")
    assert grid.rows == (
        ("hard", "64", "2", "50", "50.00", "tiny"),
        ("in-batch", "64", "-", "50", "25.00", "tiny"),  # negatives_per_query means nothing there
    )


def test_seeds_are_one_cell_and_what_was_not_run_says_so() -> None:
    first, second, missing = made("a", 0.4, seed=0), made("a", 0.6, seed=1), made("b", 0.1)
    found = sweep_cells([(first.trial, first), (second.trial, second), (missing.trial, None)], {}, idle)
    assert cell_table("", TableShape(columns=["P@1"]), found).rows == (("a", "50.00"), ("b", "not run"))


def test_only_the_methods_asked_for_and_the_papers_rows_below() -> None:
    shape = TableShape(methods=["a"], columns=["batch_size", "negative_pool", "P@1", "P@5"], beside="dexml Table 3")
    grid = cell_table("", shape, cells_of(made("a", 0.5), made("b", 0.5)), published_rows())
    assert [row[0] for row in grid.rows if "Table" not in row[0]] == ["a"]
    assert ("8,192", "90,112", "54.01", "42.08") in [row[1:] for row in grid.rows]


def test_the_best_for_the_cost_is_marked() -> None:
    found = cells_of(made("a", 0.5, flops=1e9), made("a2", 0.4, flops=2e9), made("a3", 0.6, flops=3e9))
    found = [SweepCell("a", each.trial, each.settings, each.status, each.records, each.row) for each in found]
    other = cells_of(made("b", 0.55, flops=4e9))
    marks = {row[0]: row[-1] for row in cost_table([*found, *other], "P@1").rows}
    assert marks == {"a": "all", "a2": "", "a3": "all", "b": "method"}


def test_outside_programs_and_encoders_are_compared_by_device_time() -> None:
    """Whatever their budgets: a program has no operations, which must not look like the least of them."""

    def spent(label: str, p1: float, seconds: float, flops: float, **limit: float) -> Record:
        one = made(label, p1, flops=flops, budget=limit)
        return one.model_copy(update={"spent": one.spent | {"device_seconds": seconds}})

    cheap = spent("cheap", 0.4, 10.0, 1e9, encoder_tokens=1e6)
    program, slow = (spent(name, 0.5, seconds, 0, device_seconds=60) for name, seconds in (("tree", 20), ("slow", 50)))
    encoder = spent("encoder", 0.49, 30.0, 2e9, encoder_tokens=2e6)
    marks = {row[0]: row[-1] for row in cost_table(cells_of(cheap, program, slow, encoder), "P@1").rows}
    assert marks == {"cheap": "all", "tree": "all", "slow": "method", "encoder": "method"}


def test_the_positives_and_an_overrun_are_shown() -> None:
    ledger = {"queries": 100, "pool_positives": 250, "steps": 1032}
    first = made("a", 0.5)
    first = first.model_copy(update={"spent": first.spent | ledger})
    grid = cell_table("", TableShape(columns=["positives", "overrun"]), cells_of(first, made("b", 0.5)))
    assert grid.rows == (("a", "2.5", "3.2 %"), ("b", "-", "-"))


def test_what_a_trial_left_of_its_budget_is_shown_where_it_ended_early() -> None:
    early, rest = made("a", 0.5, selection=Selection(metric="P@1", patience=3)), made("b", 0.5)
    early = early.model_copy(update={"spent": early.spent | {"steps": 400, "ended": Ended.FLAT}})
    rest = rest.model_copy(update={"spent": rest.spent | {"steps": 400}})  # a method that stops by itself
    grid = cell_table("", TableShape(columns=["unspent"]), cells_of(early, rest))
    assert grid.rows == (("a", "60.0 %"), ("b", "-"))
    outcome = dict(describe(early)["Outcome"])
    assert outcome["training ended early"] == "P@1 had not risen for 3 evaluations; 60.0% of the budget is unspent"


def test_a_trained_cell_that_is_not_above_the_most_frequent_labels_is_marked() -> None:
    frequent = made("frequent", 0.4, method="popular")
    frequent = frequent.model_copy(update={"spent": frequent.spent | {"steps": 0}})
    grid = cost_table(cells_of(frequent, made("worse", 0.4), made("better", 0.41)), "P@1")
    assert {row[0] for row in grid.rows} == {"frequent", f"worse{BELOW_POPULAR}", "better"}
    assert any("popular" in note for note in grid.notes)
    everywhere = frequent.model_copy(update={"metrics": frequent.metrics | {"P@1": 1.0}})
    grid = cost_table(cells_of(everywhere, made("worse", 0.4), made("perfect", 1.0)), "P@1")
    assert {row[0] for row in grid.rows} == {"frequent", f"worse{BELOW_POPULAR}", "perfect"}


def test_a_column_can_be_a_target() -> None:
    curve = [{"fraction": 1.0, "encoder_tokens": 7000.0, "P@1": 0.6}]
    grid = cell_table("", TableShape(columns=["to P@1=50"]), cells_of(made("a", 0.5, curve=curve), made("b", 0.5)))
    assert grid.rows == (("a", "7.0k"), ("b", "-"))
