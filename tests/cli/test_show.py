"""`xmcbench show`: all of a record, and the same trial again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from commands import told
from fakes.bench import Bench

from xmcbench.reporting.describe import describe
from xmcbench.reporting.words import chosen_on
from xmcbench.trial.packed import Packed
from xmcbench.trial.record import Failure, Record, Status, decode

ACCEPTED = Path(__file__).parents[2] / "leaderboard" / "measured"

Show = Callable[..., str]


@pytest.fixture
def show(bench: Bench, capsys: pytest.CaptureFixture[str]) -> Show:
    def said(*arguments: str) -> str:
        code, out, err = told(capsys, "show", *arguments, *bench.places[:2])
        return err if code else out

    return said


def trial(bench: Bench) -> Record:
    methods = {"ok": {"method": "fake-ok", "strength": 2.5, "depths": [3]}}
    suite = bench.suite(methods, seeds=[7], selection={"queries": 5, "metric": "P@1"}, budget={"steps": 4, "epochs": 9})
    return bench.run(suite, debug=True)["ok"]


def leaves(value: object) -> set[str]:
    """Every text and number in a record, as people read them."""
    if isinstance(value, dict):
        return {leaf for own in value.values() for leaf in leaves(own)}
    if isinstance(value, list):
        return {leaf for own in value for leaf in leaves(own)}
    return {value} if isinstance(value, str) and value else set()


def test_everything_in_a_record_is_shown(bench: Bench, show: Show) -> None:
    record = trial(bench)
    text = show("ok", "--all")
    for leaf in leaves(
        json.loads(record.model_dump_json(exclude={"provenance": {"command"}, "selection_split": True}))
    ):
        assert leaf in text, leaf
    assert chosen_on(record.selection_split) in text
    for name, figure in record.metrics.items():
        assert f"{name} " in text
        assert f"{100 * figure:.4f}" in text
    for name in (*record.spent, *record.trial.config, *record.provenance):
        assert name == "command" or name in text, name
    assert re.search(r"seed +7\n", text)
    assert json.loads(show("ok", "--format", "json"))["key"] == record.key


def test_what_matters_comes_first_and_the_rest_is_counted(bench: Bench, show: Show) -> None:
    record = trial(bench)
    text = show("ok")
    lines = text.splitlines()
    assert lines[0] == "fake-20/ok, seed 7: ok"
    assert lines[1].split()[:2] == [name := next(iter(record.metrics)), f"{100 * record.metrics[name]:.2f}"]
    assert not re.search(r"[0-9a-f]{32}", text), "a digest"
    assert not re.search(r"\d\.0*[1-9]\d{6,}", show("ok", "--all")), "a number with more digits than anybody reads"
    assert f", {len(record.trial.config)} settings" in text
    assert len(lines) < len(show("ok", "--all").splitlines()) / 2


def test_the_suite_it_prints_is_the_same_trial(bench: Bench, show: Show) -> None:
    record = trial(bench)
    text = show(record.key[:6], "--format", "suite")
    again = bench.root / "again.yaml"
    again.write_text(text)
    assert {label: action for label, (action, _) in bench.plan(again).items()} == {"ok": "hit"}
    assert yaml.safe_load(text)["settings"]["depths"] == [3]
    assert f"xmcbench show {record.key} --store {bench.store.root} --format suite > trial.yaml" in show("ok")


def test_a_failure_tells_what_happened_and_the_end_of_its_log(bench: Bench, show: Show) -> None:
    record = trial(bench)
    failure = Failure(type="ValueError", message="out of \x1b[31mluck", stage="fit", log_tail="the last line\n")
    bench.store.write_record(
        record.model_copy(update={"status": Status.ERROR, "failure": failure, "metrics": {}, "intervals": {}})
    )
    text = show("ok")
    assert "ValueError while in fit: out of " in text
    assert "\x1b" not in text
    assert "the last line" in text


def test_a_file_is_no_store(bench: Bench, show: Show) -> None:
    (bench.root / "results").write_text("")
    assert show("ok") == f"error: {bench.root / 'results' / 'trials'}: cannot read: Not a directory\n"


def test_sections_that_say_nothing_are_left_out() -> None:
    records = (decode(packed.content) for packed in Packed(ACCEPTED).records.values())
    record = next(own for own in records if own.curve and own.chosen).model_copy(update={"curve": [], "chosen": {}})
    titles = list(describe(record))
    assert titles == ["Trial", "Outcome", "Metrics (per cent)", "Settings", "Spent", "Provenance", "Reproduce"]
