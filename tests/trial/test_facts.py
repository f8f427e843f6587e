"""Facts of a trial are typed; the sentences of older records are read as the facts they state, and shown as before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from reporting.made import record

from xmcbench.reporting.words import chosen_on, end_of_training
from xmcbench.trial.facts import Choice, ChosenBy, Ended, why_ended
from xmcbench.trial.record import Record, decode, encode
from xmcbench.trial.trial import Selection

ACCEPTED = Path(__file__).parents[2] / "leaderboard" / "measured"

CHOICES = {
    "none": Choice(),
    "unknown": Choice(by=ChosenBy.UNKNOWN),
    "train: 300 queries held out": Choice(by=ChosenBy.HELD_OUT, queries=300),
    "teacher: the best label of 20 training documents": Choice(by=ChosenBy.TEACHER, queries=20),
    "the first epoch whose loss rose": Choice(by=ChosenBy.METHOD, way="the first epoch whose loss rose"),
}
ENDS = {
    "P@1 had not risen for 2 evaluations": Ended.FLAT,
    "the vectors of the training queries did not fit into the budget: the second stage learnt nothing": (
        Ended.STAGE_TOO_LARGE
    ),
}


@pytest.mark.parametrize("sentence", CHOICES)
def test_what_chose_the_weights_is_a_fact_and_its_sentence_is_that_of_older_records(sentence: str) -> None:
    older = Record.model_validate({**record().model_dump(), "selection_split": sentence})
    assert older.selection_split == CHOICES[sentence]
    assert chosen_on(older.selection_split) == sentence
    assert decode(encode(older)) == older


@pytest.mark.parametrize("sentence", ENDS)
def test_why_training_ended_is_a_fact(sentence: str) -> None:
    older = Record.model_validate({**record().model_dump(), "spent": {"steps": 5, "ended": sentence}})
    assert why_ended(older.spent) is older.spent["ended"] is ENDS[sentence]
    again = decode(encode(older))
    assert again == older
    assert json.loads(encode(again))["spent"]["ended"] == ENDS[sentence].value


@pytest.mark.parametrize("sentence", ["", "converged: as good as it gets", "P@1 had not risen", "Flat"])
def test_another_reason_is_none(sentence: str) -> None:
    with pytest.raises(ValidationError, match="ended"):
        Record.model_validate({**record().model_dump(), "spent": {"ended": sentence}})


@pytest.mark.parametrize(
    ("spent", "wanted", "words"),
    [
        ({}, None, ""),
        ({"refused_pass": 0}, None, ""),
        ({"refused_pass": 1}, Ended.PASS_TOO_LARGE, "a pass over the data did not fit"),
        ({"refused_pass": 1, "ended": Ended.STAGE_TOO_LARGE}, Ended.STAGE_TOO_LARGE, "the next stage did not fit"),
        ({"ended": Ended.FLAT}, Ended.FLAT, "P@5 had not risen for 3 evaluations"),
    ],
)
def test_one_function_says_why_a_training_ended(spent: dict[str, Any], wanted: Ended | None, words: str) -> None:
    assert why_ended(spent) is wanted
    own = record(spent=spent, selection=Selection(metric="P@5", patience=3))
    assert end_of_training(own).startswith(words)
    assert bool(end_of_training(own)) == bool(wanted)


def test_nothing_else_reads_or_makes_the_sentences() -> None:
    root = Path(__file__).parents[2]
    places = {
        path.relative_to(root).as_posix()
        for folder in ("xmcbench", "plugins", "benchmarks")
        for path in (root / folder).glob("**/*.py")
        if any(words in path.read_text(encoding="utf-8") for words in ('queries held out"', "had not risen for"))
    }
    assert places == {"xmcbench/trial/facts.py", "xmcbench/reporting/words.py"}


def test_accepted_records_still_have_what_they_say() -> None:
    """Each accepted line is read, and what it says of its choice is what is shown."""
    lines = [json.loads(line) for path in ACCEPTED.glob("*/*.jsonl") for line in path.read_bytes().splitlines()]
    assert len(lines) > 900
    for line in lines:
        said = line["selection_split"]
        choice = Record.model_validate({**record().model_dump(), "selection_split": said}).selection_split
        assert said in (chosen_on(choice), choice.model_dump(mode="json"))
