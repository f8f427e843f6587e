from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer
from reporting.made import record as made
from typer.testing import CliRunner

from xmcbench.cli.leaderboard import leaderboard
from xmcbench.errors import XMCBenchError
from xmcbench.trial.record import Record
from xmcbench.trial.store import Store
from xmcbench_plugins.board import results

app = typer.Typer()
app.command()(leaderboard)


def record(label: str, dataset: str, p1: float) -> Record:
    metrics = {"P@1": p1, "R@50": p1 / 3}
    return made(label, method=label, dataset=dataset, metrics=metrics, spent={}, num_parameters=0)


@pytest.fixture(autouse=True)
def accepted(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where results lie that were handed in: none yet."""
    place = tmp_path_factory.mktemp("accepted")
    monkeypatch.setattr(results, "ACCEPTED", place)
    return place


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for one in (record("good", "one", 0.75), record("bad", "one", 0.25), record("other", "two", 0.5)):
        Store(tmp_path).write_record(one)
    return tmp_path


def run(*arguments: object, **environment: str) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env=environment)
    if result.exception:
        raise result.exception
    return result.stdout


def test_the_records_of_the_store_are_ranked(store: Path) -> None:
    text = run("--store", store)
    assert text.index("good") < text.index("bad")
    assert "two, budget: 1,000 steps" in text
    assert text == run(XMCBENCH_STORE=str(store))


def test_options_choose_dataset_columns_and_order(store: Path) -> None:
    text = run("--store", store, "--dataset", "one", "--metrics", "R@50, P@1", "--sort", "R@50", "--format", "json")
    table = json.loads(text)
    (group,) = table["groups"]
    assert group["metrics"] == ["R@50", "P@1"]
    assert group["sort"] == "R@50"
    assert [row["method"] for row in group["rows"]] == ["good", "bad"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--metrics", "P@2"], "unknown metric 'P@2'"),
        (["--metrics", "P@x"], r"unknown metric 'P@x' \(did you mean 'P@1'\?\)"),
        (["--sort", "r@50"], "did you mean 'R@50'"),
        (["--dataset", "three"], "unknown dataset 'three'"),
        (["--method", "nosuch", "--source", "published"], r"unknown method 'nosuch' \(nearest of \d+: '\w+"),
    ],
)
def test_a_name_that_no_record_has_is_an_error(store: Path, options: list[str], message: str) -> None:
    with pytest.raises(XMCBenchError, match=message):
        run("--store", store, *options)


def test_without_records_each_dataset_of_the_papers_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    text = run("--store", tmp_path / "nowhere")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    (line,) = [line for line in lines if line.startswith("lf-amazontitles-1.3m ")]
    assert line == "lf-amazontitles-1.3m published 26 PRIME P@5 46.75 2 tables"
    assert not any(line.startswith("lf-tate-titles-16k+") for line in lines), "a variant of a dataset that has a line"
    assert "lf-amazontitles-1.3m, published" in run("--store", tmp_path / "nowhere", "--top", 1)
    monkeypatch.setenv("COLUMNS", "80")
    assert all(len(line) <= 80 for line in run("--store", tmp_path / "nowhere").splitlines())
    with pytest.raises(XMCBenchError, match="no records yet") as problem:
        run("--store", tmp_path, "--source", "measured")
    assert str(tmp_path) in str(problem.value)
    assert "\n" not in str(problem.value)


def test_what_was_handed_in_stands_beside_ones_own_of_the_same_dataset(store: Path, accepted: Path) -> None:
    for handed_in in (record("theirs", "one", 0.6), record("elsewhere", "eurlex-4k", 0.9)):
        Store(accepted).write_record(handed_in)
    text = run("--store", store)
    assert text.index("good") < text.index("theirs") < text.index("bad")
    assert "elsewhere" not in text
    assert "elsewhere" in run("--store", store, "--dataset", "eurlex-4k")
    text = run("--store", store / "nowhere")
    assert "theirs" in text
    assert "elsewhere" in text
    assert "lf-amazontitles-1.3m" in text


def test_a_bibliography_has_an_entry_for_each_paper_shown(tmp_path: Path) -> None:
    bib, tex = tmp_path / "papers.bib", tmp_path / "table.tex"
    run("--dataset", "wiki10-31k", "--store", tmp_path, "--format", "latex", "-o", tex, "--bib", bib)
    assert re.findall(r"^@\w+\{(\w+),", bib.read_text(), flags=re.MULTILINE) == ["lmtx"]
    assert set(re.findall(r"\\citet\{(.*?)\}", tex.read_text())) == {"lmtx"}


def test_measured_rows_stand_beside_published_ones_of_their_dataset(tmp_path: Path) -> None:
    Store(tmp_path).write_record(record("mine", "eurlex-4k", 0.5))
    text = run("--store", tmp_path)
    assert "eurlex-4k, budget: 1,000 steps" in text
    assert "eurlex-4k, published" in text
    assert "lf-amazontitles-1.3m" not in text
    assert "published" not in run("--store", tmp_path, "--source", "measured").split("\n\n")[0]


def test_rows_of_ones_own_are_shown_with_the_others(tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text(
        "paper: lee-2027\ncitation: A. Lee\ntables:\n- table: 2\n  dataset: eurlex-4k\n  method: Wide\n"
        "  metrics: [P@5]\n  rows: [{figures: [99.10]}]\n"
    )
    text = run("--store", tmp_path, "--rows", own, "--dataset", "eurlex-4k", "--top", 1)
    assert re.search(r"1  Wide +- +- +99\.10", text)
    assert "lee-2027 Table 2" in text


def test_a_table_can_be_written_to_a_file(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "table.tex"
    assert run("--dataset", "eurlex-4k", "--store", tmp_path, "--format", "latex", "-o", out) == ""
    text = out.read_text()
    assert [rule in text for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"\hline")] == [True, True, True, False]
    assert (text.count(r"\textbf{"), text.count(r"\underline{")) >= (1, 1)


@pytest.mark.parametrize(("name", "message"), [("", "is a folder, expected a file"), ("x" * 300, "File name too long")])
def test_a_place_that_cannot_be_written_is_named_as_it_was_given(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(OSError, match=message) as problem:
        run("--dataset", "eurlex-4k", "--store", tmp_path, "-o", tmp_path / name)
    assert problem.value.filename == str(tmp_path / name)


def test_a_record_that_cannot_be_read_is_named_and_the_others_are_ranked(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = Store(store).directory(record("bad", "one", 0.25).key) / "record.json"
    bad.write_bytes(bad.read_bytes().replace(b"0.25", b"0.95"))
    text = run("--store", store)
    assert "good" in text
    assert "bad" not in text
    (line,) = caplog.messages
    assert line == f"warning: {bad}: its digest does not match its content: edited after it was written; left out"


def test_a_page_is_a_folder_with_every_dataset(store: Path, tmp_path: Path) -> None:
    said = run("--store", store, "--format", "html", "-o", tmp_path / "site", "--data", tmp_path)
    assert said.startswith(str(tmp_path / "site" / "index.html"))
    page = (tmp_path / "site" / "index.html").read_text()
    assert "lf-amazontitles-1.3m" in page
    assert "good" in page
