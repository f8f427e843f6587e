"""The answer of a leaderboard: the main table, who leads by the one rule for differences, what else there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from xmcbench.reporting.answer import closing, main_tables
from xmcbench.reporting.compared_rows import Resampled
from xmcbench.reporting.leaderboard_text import answer
from xmcbench.reporting.ranked_groups import leaderboard
from xmcbench.reporting.rows import About, Group, Leaderboard, View
from xmcbench.trial.budget import Budget
from xmcbench.trial.record import Record, Status

from .made import cited, failed, record

ONCE = "Each has one seed, so another training run may rank them differently."
NOISE = 0.01  # standard error of a row's metric over test queries


def resamples(records: Sequence[Record]) -> Resampled:
    """Independent replicates of each record."""
    by_key = {own.key: own for own in records}

    def resampled(key: str, metrics: Sequence[str]) -> Mapping[str, np.ndarray]:
        noise = np.random.default_rng(int(key, 16)).normal(scale=NOISE, size=400)
        return {name: value + noise for name, value in by_key[key].metrics.items() if name in metrics}

    return resampled


def board(values: Mapping[str, float]) -> Leaderboard:
    records = [record(name, p1, method=name, config={"n": at}) for at, (name, p1) in enumerate(values.items())]
    return leaderboard(records, resampled=resamples(records))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"a": 0.9, "b": 0.5}, "a has the highest P@1, 90.00; the next, b, is 40.0 behind. " + ONCE),
        (
            {"a": 0.9, "b": 0.895, "c": 0.89, "d": 0.5},
            "a has the highest P@1, 90.00; b and c tie with it; the next, d, is 40.0 behind. " + ONCE,
        ),
        ({"a": 0.9, "b": 0.895}, "a has the highest P@1, 90.00; b ties with it. " + ONCE),
        ({"a": 0.9}, "a has the highest P@1, 90.00; no other row is ranked."),
    ],
)
def test_the_closing_sentence_says_who_leads_ties_and_follows(values: dict[str, float], sentence: str) -> None:
    (group,) = board(values).groups
    assert closing(group) == sentence


def test_a_row_of_one_seed_is_named_so_beside_others_of_several() -> None:
    records = [record("a", 0.9 + seed / 1000, method="a", seed=seed) for seed in range(5)]
    records.append(record("b", 0.5, method="b", config={"n": 1}))
    (group,) = leaderboard(records, resampled=resamples(records)).groups
    assert closing(group) == "a has the highest P@1, 90.20; the next, b (one seed), is 40.2 behind."


def test_who_ties_in_words_is_who_is_marked() -> None:
    (group,) = board({f"m{i}": 0.9 - 0.006 * i for i in range(9)}).groups
    tied = [row.label for row in group.rows if "P@1" in row.tied]
    assert 0 < len(tied) < 8
    said = closing(group)
    assert all((name in said.split("tie")[0]) == (name in tied) for name in tied[:4])
    assert "the next, " + next(row.label for row in group.rows[1:] if "P@1" not in row.tied) in said


def test_where_nothing_was_tested_it_is_said() -> None:
    (group,) = leaderboard([record("a", 0.9), record("b", 0.8, config={"n": 1})]).groups
    assert closing(group) == "a has the highest P@1, 90.00; b is 10.0 behind; differences were not tested."
    (papers,) = leaderboard([], [cited("A", 0.9), cited("B", 0.8)]).groups
    assert closing(papers) == "A has the highest P@5, 45.00; B is 5.0 behind, as papers print them."
    (none,) = leaderboard([failed("a", Status.OOM), failed("b", Status.ERROR, config={"n": 1})]).groups
    assert closing(none) == "No row is ranked: 1 error and 1 oom."


def budgets(accepted: bool) -> tuple[Leaderboard, list[Group]]:
    records = [
        record(name, 0.5 + at / 10, method=name, budget=Budget(steps=steps), config={"n": at})
        for steps, names in ((1000, "abc"), (9000, "a"))
        for at, name in enumerate(names)
    ]
    mine = [] if accepted else [record("mine", 0.3, method="mine", budget=Budget(steps=9000), config={"own": 1})]
    found = leaderboard([*records, *mine], accepted={own.key for own in records})
    return found, main_tables(found.groups)


def test_the_main_table_is_that_of_the_users_rows_else_that_of_most_methods() -> None:
    assert [group.budget for group in budgets(accepted=True)[1]] == [{"steps": 1000}]
    assert [group.budget for group in budgets(accepted=False)[1]] == [{"steps": 9000}]


def test_what_is_left_out_is_counted_with_the_option_that_shows_it() -> None:
    found, _ = budgets(accepted=True)
    text = answer(found)
    assert "budget: 1,000 steps" in text
    assert "9,000" not in text
    assert "Also: 1 other budget (--budget all), " in text
    assert "(--notes)" in text
    assert "Metrics are in per cent" not in text
    full = answer(found, every=True, below={About.READING})
    assert "9,000 steps" in full
    assert "other budget" not in full
    assert "Metrics are in per cent" in full
    every = leaderboard([record("a", budget=Budget(steps=n)) for n in (1, 2)], view=View(budget="all"))
    assert [group.budget["steps"] for group in every.groups] == [1, 2]


def test_what_happened_to_the_users_rows_is_said_unasked() -> None:
    lost = failed("lost", Status.OOM, config={"n": 1})
    records = [record("good"), lost]
    assert "lost: oom: " in answer(leaderboard(records))
    assert "lost: oom: " not in answer(leaderboard(records, accepted={lost.key}))


def test_a_run_says_who_leads_before_the_first_table() -> None:
    lines = answer(board({"a": 0.9, "b": 0.5}), every=True, closing_first=True).splitlines()
    assert lines[0].startswith("a has the highest P@1")
    assert lines[2] == "made, budget: 1,000 steps"


def test_marks_have_a_meaning_beside_them_and_others_have_none() -> None:
    text = answer(board({"a": 0.9, "b": 0.895, "c": 0.1}))
    assert "≈ not significantly different from the best" in text
    assert "◇" not in text


@pytest.mark.parametrize("width", [60, 80, 100])
def test_metrics_stay_longer_than_deviations(width: int) -> None:
    metrics = dict.fromkeys(("P@1", "P@5", "nDCG@5", "PSP@1", "PSP@5", "R@100"), 0.5)
    records = [record("a", metrics=metrics, seed=seed) for seed in range(3)]
    (first, *_) = answer(leaderboard(records), width).split("\n\n")[1:]
    head = first.splitlines()[0].split()
    assert "sd" not in head or {*metrics} <= {*head}
    assert "P@1" in head
