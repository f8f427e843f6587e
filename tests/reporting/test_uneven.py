"""What a row had that others in its table had not is said beside it."""

from __future__ import annotations

from typing import Any

from reporting.made import LEDGER, record
from xmcbench.reporting.ranked_groups import leaderboard
from xmcbench.reporting.rows import Uneven
from xmcbench.trial.record import Record
from xmcbench.trial.trial import Selection

CURVE = [{"fraction": share, "P@1": share} for share in (0.5, 1.0)]
HELD_OUT = {"selection": Selection(queries=20), "curve": CURVE}
TUNED = {"chosen": {"quality": 0.5}}
SOLVED = {"spent": LEDGER | {"solver_flops": 7, "steps": 9}}  # by a solver, which steps do not limit


def uneven(*records: Record) -> dict[str, tuple[Uneven, ...]]:
    return {row.method: row.uneven for group in leaderboard(records).groups for row in group.rows}


def test_each_way_to_be_trained_otherwise_is_found() -> None:
    even = record("even", **HELD_OUT, **TUNED)
    found = uneven(
        even,
        record("whole data", **TUNED),
        record("last weights", selection=Selection(queries=20), curve=CURVE[1:], **TUNED),
        record("as it is", **HELD_OUT),
        record("tree", **HELD_OUT, **TUNED, **SOLVED),
        record("popular", selection=Selection(queries=20), spent={"steps": 0, "flops": 0}),
    )
    assert found == {
        "even": (),
        "whole data": (Uneven.ALL_QUERIES,),
        "last weights": (Uneven.LAST_WEIGHTS,),
        "as it is": (Uneven.NOT_TUNED,),
        "tree": (Uneven.WHOLE_SAMPLES,),
        "popular": (),
    }
    notes = leaderboard([even, record("as it is", **HELD_OUT)]).notes
    assert "Not tuned, as others here were: as it is." in notes


def test_terms_of_single_words_are_said_beside_methods_that_read_more() -> None:
    words, pairs = ({"config": {"ngrams": ngrams}} for ngrams in (1, 2))
    parts = {"config": {"ngrams": 1, "characters": [3, 5]}}
    found = uneven(record("encoder"), record("words", **words), record("pairs", **pairs), record("parts", **parts))
    assert found == {"encoder": (), "words": (Uneven.SINGLE_WORDS,), "pairs": (), "parts": ()}


def test_rows_that_are_all_alike_are_even() -> None:
    ways: list[dict[str, Any]] = [{}, HELD_OUT, HELD_OUT | {"curve": CURVE[1:]}, TUNED, TUNED | SOLVED]
    ways.append({"config": {"ngrams": 1}})
    for way in ways:
        assert uneven(record("one", **way), record("other", 0.4, **way)) == {"one": (), "other": ()}
