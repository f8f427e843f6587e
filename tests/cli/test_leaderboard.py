from __future__ import annotations

import csv
import json
from io import StringIO
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from xmcbench.budget import Budget
from xmcbench.cli.leaderboard import leaderboard
from xmcbench.errors import XMCBenchError
from xmcbench.record import Record, Status
from xmcbench.store import Store
from xmcbench.trial import Trial

app = typer.Typer()
app.command()(leaderboard)


def record(label: str, dataset: str, p1: float) -> Record:
    trial = Trial(
        label=label,
        method=label,
        distribution="tests",
        version="1",
        config={},
        dataset=dataset,
        dataset_hash=dataset,
        seed=0,
        budget=Budget(steps=1),
    )
    metrics = {"P@1": p1, "R@50": p1 / 3}
    return Record(key=trial.key, suite="tests", trial=trial, status=Status.OK, metrics=metrics, metric_version=1)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for made in (record("good", "one", 0.75), record("bad", "one", 0.25), record("other", "two", 0.5)):
        Store(tmp_path).write_record(made)
    return tmp_path


def run(*arguments: object, **environment: str) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env=environment)
    if result.exception:
        raise result.exception
    return result.stdout


def test_the_records_of_the_store_are_ranked(store: Path) -> None:
    text = run("--store", store)
    assert text.index("good") < text.index("bad")
    assert "two, budget: 1 steps" in text
    assert text == run(XMCBENCH_STORE=str(store))


def test_options_choose_dataset_columns_and_order(store: Path) -> None:
    text = run("--store", store, "--dataset", "one", "--metrics", "R@50, P@1", "--sort", "R@50", "--format", "json")
    table = json.loads(text)
    assert table["metrics"] == ["R@50", "P@1"]
    assert table["sort"] == "R@50"
    assert [row["method"] for group in table["groups"] for row in group["rows"]] == ["good", "bad"]


def test_csv_holds_every_recorded_figure_to_the_last_digit(store: Path) -> None:
    rows = list(csv.DictReader(StringIO(run("--store", store, "--format", "csv"))))
    assert {row["method"]: float(row["R@50"]) for row in rows} == {"good": 0.25, "bad": 0.25 / 3, "other": 0.5 / 3}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--metrics", "P@2"], "unknown metric 'P@2'"),
        (["--sort", "r@50"], "did you mean 'R@50'"),
        (["--dataset", "three"], "unknown dataset 'three'"),
    ],
)
def test_a_name_that_no_record_has_is_an_error(store: Path, options: list[str], message: str) -> None:
    with pytest.raises(XMCBenchError, match=message):
        run("--store", store, *options)


def test_a_store_without_records_says_so_in_one_line(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(XMCBenchError, match="no records yet") as problem:
            run("--store", place)
        assert str(place) in str(problem.value)
        assert "\n" not in str(problem.value)


def test_a_record_that_cannot_be_read_is_named(store: Path) -> None:
    (path,) = list(store.glob("trials/*/record.json"))[:1]
    path.write_text('{"key": 1')
    with pytest.raises(XMCBenchError, match=str(path)):
        run("--store", store)
