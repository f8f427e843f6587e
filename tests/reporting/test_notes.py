"""What a record says of itself: what never ran, and what most likely keeps it down."""

from __future__ import annotations

from typing import Any

import pytest

from xmcbench.plugins.registry import registry
from xmcbench.reporting.describe import describe
from xmcbench.reporting.notes import BELOW_POPULAR, CHECKED, IDLE, of_name
from xmcbench.reporting.ranked_groups import leaderboard
from xmcbench.reporting.words import idle_parts, what_is_wrong
from xmcbench.trial.record import Record
from xmcbench.trial.trial import Selection

from .made import LEDGER, record

CONFIG = registry().method("dexml").thing.Config(batch_size=64, learning_rate=0.01).model_dump(mode="json")


def trained(label: str = "hard", p1: float = 0.5, **changes: Any) -> Record:
    ledger = LEDGER | {"epochs": 9.0} | changes.pop("ledger", {})
    return record(label, p1, spent=ledger, **{"config": CONFIG, **changes})


def test_a_table_with_accepted_rows_says_what_is_checked_and_what_stated() -> None:
    own = trained()
    assert CHECKED in leaderboard([own], accepted={own.key}).notes
    assert CHECKED not in leaderboard([own]).notes


def test_a_part_that_never_ran_is_marked_noted_and_shown() -> None:
    never, ran = trained("never", ledger={"epochs": 4.5}), trained("ran")
    assert idle_parts(ran) == ()
    board = leaderboard([never, ran])
    rows = {row.method: row for group in board.groups for row in group.rows}
    assert IDLE in of_name(rows["never"])
    assert IDLE not in of_name(rows["ran"])
    assert f"{IDLE} never: never ran: shortlists (refresh_start is 5, in a training of 4.5 epochs)." in board.notes
    outcome = dict(describe(never)["Outcome"])
    assert outcome["never ran"] == "shortlists (refresh_start is 5, in a training of 4.5 epochs)"


def test_a_method_of_another_version_says_nothing() -> None:
    assert idle_parts(trained(versions={"method": 99}, ledger={"epochs": 4.5})) == ()
    assert idle_parts(trained(method="gone", ledger={"epochs": 4.5})) == ()
    assert not any("clusters" in part for part in idle_parts(record("bare", config={}, spent={"epochs": 0.0})))


ALIKE = (
    "of the queries or of the labels look like another one to the encoder: "
    "try `encoder: {name: static, words: random}`, or a method with a vector for each label (ova, prime, unidec)"
)


def test_texts_that_an_encoder_does_not_tell_apart_are_told_once() -> None:
    first, second, other = (
        trained(name, ledger={"alike_texts": share}) for name, share in (("a", 0.9), ("b", 0.9), ("c", 0.2))
    )
    notes = leaderboard([first, second, other, trained("d")]).notes
    assert [note for note in notes if ALIKE in note] == [f"a, b: 90% {ALIKE}.", f"c: 20% {ALIKE}."]
    assert dict(describe(first)["Outcome"])["texts alike"] == f"90% {ALIKE}"
    assert "texts alike" not in dict(describe(trained("d"))["Outcome"])


def test_the_share_of_queries_that_are_cut_is_shown() -> None:
    """It is no reason: what begins a text often says enough."""
    cut = trained(ledger={"cut_queries": 0.6}, config=CONFIG | {"max_query_length": 128})
    assert dict(describe(cut)["Outcome"])["queries cut"] == "60%, at 128 tokens"
    assert dict(describe(trained(ledger={"cut_queries": 0.6}))["Outcome"])["queries cut"] == "60%, at the card's tokens"
    assert "queries cut" not in dict(describe(trained())["Outcome"])


def test_the_share_of_replies_without_an_answer_is_told_and_shown() -> None:
    silent = {"teacher_calls": 200, "teacher_unparsed": 60, "teacher_cut": 50, "teacher_refused": 4}
    taught, other = trained("taught", ledger=silent), trained("other", ledger={"teacher_calls": 200})
    text = "30% of 200 replies of its teacher hold no answer (50 cut at their limit of tokens, 4 refused)"
    board = leaderboard([taught, other, trained("alone")])
    assert f"taught: {text}." in board.notes
    rows = {row.method: row for group in board.groups for row in group.rows}
    assert rows["taught"].facts["teacher_unparsed"] == 0.3
    assert "teacher_unparsed" in board.groups[0].columns
    assert "teacher_unparsed" not in rows["alone"].facts
    assert dict(describe(taught)["Outcome"])["without answer"] == text
    assert "without answer" not in dict(describe(other)["Outcome"])


def test_a_method_without_a_hit_is_named() -> None:
    board = leaderboard([record("words", 0.0), record("hits", 0.01)])
    (note,) = [note for note in board.notes if "every metric is 0" in note]
    assert note.startswith("words: every metric is 0")


def along(*values: float) -> dict[str, Any]:
    return {"curve": [{"nDCG@5": value} for value in values], "selection": Selection(queries=9)}


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"ledger": {"steps": 40}}, "40 steps: lower batch_size or raise the budget"),
        ({"ledger": {"steps": 40}, "config": CONFIG | {"batch_size": 16}}, "40 steps: raise the budget"),
        (
            {"ledger": {"steps": 40, "encoder_tokens": 1000, "largest_step": {"encoder_tokens": 10}}},
            "40 steps, as passes over all texts took 60% of the tokens: raise the budget",
        ),
        ({"p1": 0.001}, "its embeddings have collapsed, or learning_rate 0.01 is far too high"),
        (along(0.4, 0.2), "nDCG@5 fell from 0.400 to 0.200: lower learning_rate (0.01)"),
        (along(0.1, 0.2), "nDCG@5 still rose when the budget ended: raise it, or learning_rate (0.01)"),
        ({"ledger": {"alike_texts": 0.97}}, f"97% {ALIKE}"),
        ({}, "learning_rate 0.01 does not suit batches of 64: `xmcbench tune` searches it"),
    ],
)
def test_what_is_most_likely_wrong(changes: dict[str, Any], wrong: str) -> None:
    low = trained(**{"p1": 0.25, **changes})
    assert what_is_wrong(low) == wrong
    assert f"{BELOW_POPULAR} hard: most likely {wrong}." in leaderboard([low, popular(0.3, low)]).notes


def popular(p1: float, beside: Record) -> Record:
    return record("popular", p1, method="popular", spent=LEDGER | {"steps": 0}, selection=beside.trial.selection)


def test_a_label_that_dominates_is_named() -> None:
    low = trained(p1=0.5)
    notes = leaderboard([low, popular(0.6, low)]).notes
    hint = "one label alone is right for 60% of the queries"
    assert f"{BELOW_POPULAR} hard: most likely {what_is_wrong(low)}; {hint}." in notes


def test_nothing_is_wrong_where_popular_cannot_be_beaten() -> None:
    perfect = trained(p1=1.0)
    assert not any(BELOW_POPULAR in note for note in leaderboard([perfect, popular(1.0, perfect)]).notes)
    low = trained(p1=0.9)
    assert any(BELOW_POPULAR in note for note in leaderboard([low, popular(1.0, low)]).notes)


def test_few_steps_are_noted_below_the_table() -> None:
    notes = leaderboard([trained(ledger={"steps": 40})]).notes
    assert "Few steps: hard: 40 steps: lower batch_size or raise the budget." in notes


@pytest.mark.parametrize(("p1", "said"), [(0.2, True), (0.3, False)])
@pytest.mark.parametrize("lower", [False, True])
def test_a_trained_row_far_below_a_baseline_is_told_with_the_likely_cause(p1: float, said: bool, lower: bool) -> None:
    """Half of what neighbours reach is far; also where the metric is the share of misses."""
    nothing = {"spent": {}, "config": {}}
    rows = [trained("mine", p1), record("neighbours", 0.5, method="tfidf-nn", **nothing)]
    if lower:
        rows = [
            own.model_copy(update={"metrics": {"miss@1": 1 - own.metrics["P@1"]}, "lower_is_better": ("miss",)})
            for own in rows
        ]
    notes = [note for note in leaderboard(rows).notes if "far below" in note]
    assert bool(notes) is said
    if said:
        values = "miss@1 80.0 and 50.0" if lower else "P@1 20.0 and 50.0"
        assert notes[0].startswith(f"mine: far below neighbours, which trains nothing ({values}): most likely ")
