"""Judgements on disk, and the tables made of them."""

from __future__ import annotations

import csv
import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest
from commands import told
from typer.testing import CliRunner

from xmcbench.cli import add_commands_of_plugins, app
from xmcbench.teachers import Answers
from xmcbench.trial.store import StoreError
from xmcbench_plugins.teachers.database import FILE, JudgementStore
from xmcbench_plugins.teachers.endpoint import Endpoint
from xmcbench_plugins.teachers.export import COLUMNS

from .desk import ANSWERED, DOCUMENTS, LABELS, Desk, counting, every_pair

WORDS = {1: "yes", 0: "no"}

add_commands_of_plugins()  # which `main` does, and the tests call the application itself


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A store with the judgements of two teachers."""
    documents, labels = every_pair(4)
    Desk(tmp_path).judge(counting())(documents, labels)
    Desk(tmp_path, "other").judge(counting(flavour="sour"))(documents[:3], labels[:3])
    return tmp_path / "results"


def expected() -> list[dict[str, str]]:
    documents, labels = every_pair(4)
    answers = Desk(Path()).expected(documents, labels)
    first = [
        {"document": DOCUMENTS[d], "label": LABELS[label], "answer": WORDS[int(answer)]}
        for d, label, answer in zip(documents, labels, answers, strict=True)
        if answer in WORDS  # a reply without an answer is not stored
    ]
    return first + first[:3]


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_every_judgement_is_in_the_table(results: Path, tmp_path: Path, form: str) -> None:
    output = tmp_path / f"table.{form}"
    main_arguments = ["teachers", "export", "--store", str(results), "--format", form, "-o", str(output)]
    result = CliRunner().invoke(app, main_arguments, catch_exceptions=False)
    assert result.output == f"{output}: 31 judgements\n"
    if form == "csv":
        with output.open(newline="") as file:
            table = list(csv.DictReader(file))
    else:
        table = json.loads(output.read_text()) if form == "json" else parquet.read_table(output).to_pylist()
    assert tuple(table[0]) == COLUMNS
    assert [{name: row[name] for name in ("document", "label", "answer")} for row in table] == expected()
    assert {float(row["confidence"]) for row in table} == {0.75}
    assert {row["teacher"] for row in table} == {"counting"}
    assert {json.loads(row["identity"])["flavour"] for row in table} == {"", "sour"}


def test_without_a_file_the_table_goes_to_standard_output(results: Path) -> None:
    result = CliRunner().invoke(app, ["teachers", "export", "--store", str(results)], catch_exceptions=False)
    assert [row["answer"] for row in csv.DictReader(result.output.splitlines())] == [
        row["answer"] for row in expected()
    ]
    nobody = ["teachers", "export", "--store", str(results), "--teacher", "openai*"]
    assert CliRunner().invoke(app, nobody, catch_exceptions=False).output.strip() == ",".join(COLUMNS)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--format", "xml"], "--format: unknown format 'xml' (known: csv, json, parquet)"),
        (["--format", "parquet"], "--format parquet: expected a file to write to, --output FILE"),
        (["--store", "nowhere"], f"nowhere/{FILE}: no judgements"),
    ],
)
def test_a_table_that_cannot_be_is_told_in_a_line(
    results: Path, arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, errors = told(capsys, "teachers", "export", "--store", results, *arguments)
    assert complaint in errors
    assert errors.count("\n") == 1
    assert not Path("nowhere").exists()


DROPS: dict[tuple[str, ...], int] = {
    ("--teacher", "no*"): 0,
    ("--teacher", "count*"): 31,
    ("--answer", "yes"): 10,
    ("--answer", "no"): 21,
    ("--served-as", "big-*"): 28,
    ("--served-as", "small"): 0,
    ("--before", "2001-01-01"): 28,
    ("--before", "2999-01-01"): 31,
    ("--before", "2999-01-01", "--answer", "yes", "--served-as", "big-2"): 8,
}  # fmt: skip


@pytest.mark.parametrize("rule", DROPS)
def test_answers_are_dropped_by_rule_and_asked_for_again(
    results: Path, rule: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    store = JudgementStore(results)
    number = store.teacher("counting", counting().identity(), "")
    store.add_served(number, ["big-2"])
    with sqlite3.connect(results / FILE) as database:
        database.execute("UPDATE judgement SET added = 0 WHERE teacher = ?", (number,))
    before = list(store.rows())
    code, shown, errors = told(capsys, "teachers", "drop", *rule, "--yes", "--store", results)
    rest = list(store.rows())
    assert len(before) - len(rest) == DROPS[rule]
    assert set(rest) <= set(before)
    assert (code, f"deleted {DROPS[rule]} answers" in shown) == ((0, True) if DROPS[rule] else (2, False)), errors
    assert store.served(number) == (["big-2"] if number in _teachers_of(store) else [])


def _teachers_of(store: JudgementStore) -> set[int]:
    return {number for (number,) in store._database.execute("SELECT teacher FROM judgement")}


def test_nothing_is_dropped_without_a_rule(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, errors = told(capsys, "teachers", "drop", "--store", results)
    assert (code, errors.count("\n")) == (2, 1)
    assert "expected a rule: --teacher, --served-as, --answer or --before" in errors
    assert len(list(JudgementStore(results).rows())) == 31


@pytest.mark.usefixtures("bench")  # without the built-in methods, which import torch
def test_the_list_names_every_teacher() -> None:
    whole = CliRunner().invoke(app, ["teachers"], catch_exceptions=False).output
    rows = {line.split()[0]: line.split()[-1] for line in whole.splitlines()}
    assert {"annotated": "yes", "openai": "no", "transformers": "no"}.items() <= rows.items()


def test_a_teacher_never_has_two_numbers_nor_a_text(results: Path) -> None:
    store = JudgementStore(results)
    one = store.teacher("title", {"a": 1, "b": 2}, "prompt")
    assert store.teacher("another title", {"b": 2, "a": 1}, "prompt") == one
    assert store.teacher("title", {"a": 1, "b": 2}, "another prompt") != one
    numbers = store.texts(["x", "y", "x", ""])
    assert numbers[0] == numbers[2]
    assert len(set(numbers.tolist())) == 3
    assert np.array_equal(JudgementStore(results).texts(["x", "y", "x", ""]), numbers)


def test_the_first_answer_stays(results: Path) -> None:
    store = JudgementStore(results)
    number, one = store.teacher("t", {}, ""), store.texts(["a text"])
    assert not len(store.look_up(number, one, one).places)
    for answer in (1, 0):
        tokens = np.zeros(1, np.int64)
        store.add(
            number, one, one, Answers(tokens, np.array([answer], np.int8), np.ones(1, np.float32), tokens, tokens)
        )
    assert store.look_up(number, one, one).answers.tolist() == [1]


@pytest.mark.parametrize("content", [b"no database", b"SQLite format 3\0" + bytes(200)])
def test_a_damaged_file_is_told_in_a_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(StoreError, match=FILE):
        JudgementStore(tmp_path)


def test_tables_of_another_version_are_left_alone(results: Path) -> None:
    with sqlite3.connect(results / FILE) as database:
        database.execute("PRAGMA user_version = 9")
    with pytest.raises(StoreError, match="found schema version 9, expected 6"):
        JudgementStore(results)


DAMAGE = {
    "answer": (
        "UPDATE judgement SET answer = 1 - answer WHERE label = (SELECT MIN(label) FROM judgement)",
        "judgement",
    ),
    "confidence": ("UPDATE judgement SET confidence = confidence / 2", "judgement"),
    "pair": ("UPDATE judgement SET label = 999 WHERE label = (SELECT MAX(label) FROM judgement)", "judgement"),
    "text": ("UPDATE text SET content = content || ' ' WHERE id = 1", "text 1 differs from its hash"),
    "teacher": ("UPDATE teacher SET prompt = 'another'", "judgement"),
    "title": ("UPDATE teacher SET title = 'a better one'", "teacher"),
}


@pytest.mark.parametrize("part", DAMAGE)
def test_damage_is_named_and_never_read(results: Path, part: str) -> None:
    statement, message = DAMAGE[part]
    with sqlite3.connect(results / FILE) as database:
        database.execute(statement)
    with pytest.raises(StoreError, match=f"{FILE}: damaged"):
        list(JudgementStore(results).rows())
    if part == "text":
        with pytest.raises(StoreError, match=message):
            JudgementStore(results).texts([*DOCUMENTS, *LABELS])


def test_a_damaged_judgement_is_asked_for_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    desk, (documents, labels) = Desk(tmp_path), every_pair(4)
    before = desk.judge(counting())(documents, labels).answers
    with sqlite3.connect(tmp_path / "results" / FILE) as database:
        database.execute("UPDATE judgement SET answer = 1 - answer")
    after = Desk(tmp_path).judge(counting())(documents, labels).answers
    assert np.array_equal(before, after)
    assert "judgements are damaged and are asked for again" in caplog.text
    assert len(list(JudgementStore(tmp_path / "results").rows())) == 4 * ANSWERED


def test_a_damaged_title_is_named_also_where_it_is_not_asked_for(results: Path) -> None:
    with sqlite3.connect(results / FILE) as database:
        database.execute(DAMAGE["title"][0])
    with pytest.raises(StoreError, match="damaged: a teacher differs from its checksum"):
        list(JudgementStore(results).rows("no such title"))


def test_tables_without_a_version_are_left_alone(results: Path) -> None:
    with sqlite3.connect(results / FILE) as database:
        database.execute("PRAGMA user_version = 0")
    with pytest.raises(StoreError, match=f"{FILE}: table teacher already exists"):
        JudgementStore(results)


def earlier(root: Path, answers: dict[tuple[str, str], int], settings: dict[str, Any]) -> None:
    """Make a store of schema version 3 of a teacher with these settings out of one of today."""
    store = JudgementStore(root)
    prompt = "DOC {document} LABEL {label}"
    number = store.teacher("openai m", {"teacher": "openai", "model": "m"} | settings, prompt)
    for (document, label), answer in answers.items():
        ids, tokens = store.texts([document, label]), np.array([5])
        kinds, sure = np.array([answer], np.int8), np.ones(1, np.float32)
        store.add(number, ids[:1], ids[1:], Answers(np.zeros(1, np.int64), kinds, sure, tokens, tokens))
    store.close()
    with sqlite3.connect(root / FILE) as database:
        database.execute("DROP TABLE served")
        database.execute("ALTER TABLE judgement DROP COLUMN added")
        database.execute("PRAGMA user_version = 3")


def test_answers_of_version_3_are_paid_for(tmp_path: Path) -> None:
    """They are found under what they depend on, but for replies without an answer."""
    own = {"revision": "", "temperature": 0.0, "logprobs": False, "request": {}}
    old = own | {"max_words": 2, "answer_tokens": 8, "labels_per_prompt": 10}
    earlier(tmp_path, {("a b c", "x"): 1, ("a b d", "y"): 0, ("e", "x"): -1, ("a b e", "x"): 0}, old)
    told = {"name": "openai", "model": "m", "prompt": "DOC {document} LABEL {label}"}
    teacher = Endpoint(Endpoint.Config.model_validate(told | {"max_words": 2}))
    store = JudgementStore(tmp_path)
    number = store.teacher(teacher.title, teacher.identity(), teacher.template)
    documents = store.texts([teacher.reads(text) for text in ("a b c", "a b d", "e", "a b f")])
    found = store.look_up(number, documents, store.texts(["x", "y", "x", "y"]))
    assert found.places.tolist() == [0, 1, 3]
    assert found.answers.tolist() == [1, 0, 0]  # of two documents that read the same the first answer stays
    assert [row[:3] for row in store.rows()] == [("a b", "x", "yes"), ("a b", "y", "no")]
    store.close()
    assert JudgementStore(tmp_path).teacher(teacher.title, teacher.identity(), teacher.template) == number


def test_an_empty_database_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE).touch()
    assert list(JudgementStore(tmp_path).rows()) == []
    assert f"{tmp_path / FILE}: empty, as if it were new" in caplog.text


def test_a_full_disk_is_a_fault_of_the_store_and_loses_nothing(results: Path) -> None:
    """So that the run stops, and goes on when there is room."""
    before = list(JudgementStore(results).rows())
    store = JudgementStore(results)
    store._database.execute("PRAGMA max_page_count = 1")  # it never shrinks below what there is
    with pytest.raises(StoreError, match=f"{FILE}: database or disk is full"):
        store.texts([f"text {i} " * 100 for i in range(200)])
    assert list(JudgementStore(results).rows()) == before
