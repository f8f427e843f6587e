"""The Python interface gives what the commands print."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from commands import told
from fakes.bench import Bench

import xmcbench as xb
from xmcbench.reporting.leaderboard_text import render


@pytest.fixture
def board(bench: Bench) -> xb.api.Board:
    suite = bench.suite(["fake-ok", "fake-constant"], metrics=["P@1", "P@3"])
    return xb.run(suite, data=bench.root / "data", store=bench.store.root)


def test_a_run_is_the_leaderboard_of_its_store(
    bench: Bench, board: xb.api.Board, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("leaderboard", "--store", bench.store.root, "--dataset", "fake-20")
    answer, *tables = str(board).strip().split("\n\n")
    printed = told(capsys, *command)[1].strip().split("\n\n")
    assert sorted(own for own in printed if own != answer) == sorted(tables), (
        "a run says first who leads, a leaderboard last"
    )
    assert answer in printed
    again = xb.leaderboard("fake-20", store=bench.store.root)
    assert sorted(str(again).split("\n\n")) == sorted(str(board).split("\n\n"))
    assert [row.label for row in again.groups[0].rows] == ["constant", "ok"]
    html = board._repr_html_()
    assert html.startswith("<table>")
    rows = ["".join(row.itertext()) for row in ElementTree.fromstring(html.partition("<p>")[0]).iter("tr")]
    assert [row[:9] for row in rows[1:]] == ["1constant", "1ok5.00≈±"[:9]]
    assert f"<p>{' '.join(answer.split())}</p>" in html


def test_a_board_is_a_data_frame_and_a_picture(bench: Bench, board: xb.api.Board, tmp_path: Path) -> None:
    frame = board.to_pandas()
    (group,) = board.groups
    assert list(frame["method"]) == [row.method for row in group.rows]
    np.testing.assert_array_equal(frame["P@1"], [row.metrics["P@1"] for row in group.rows])
    assert render(board.table, "csv").count("\n") == len(frame)
    published = xb.leaderboard("lf-amazontitles-1.3m", source="published")
    published.plot().save(tmp_path / "board.svg")
    assert ElementTree.parse(tmp_path / "board.svg").getroot().tag.endswith("svg")
    with pytest.raises(xb.XMCBenchError, match="nothing to draw"):
        xb.leaderboard("fake-20", method="constant", store=bench.store.root).plot()


def test_predictions_are_scored_as_by_the_command(bench: Bench, board: xb.api.Board) -> None:
    dataset = xb.load("fake-20", bench.root / "data")
    record = next(record for record in board.measured.records.values() if record.trial.label == "ok")
    kept, _ = bench.store.predictions(record)
    scored = xb.score(kept, dataset, metrics=["P@1", "P@3"])
    assert scored.metrics == {name: record.metrics[name] for name in ("P@1", "P@3")}
    file = bench.store.directory(record.key) / "predictions.npz"
    from_file = xb.score(file, "fake-20", metrics=["P@1", "P@3"], data=bench.root / "data")
    assert (from_file.metrics, str(from_file)) == (scored.metrics, str(scored))
    assert list(scored.to_pandas()["value"]) == list(scored.metrics.values())


@pytest.mark.usefixtures("board")
def test_comparing_and_showing_is_what_the_commands_print(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    places = {"store": bench.store.root, "data": bench.root / "data"}
    options = ("--store", bench.store.root, "--data", bench.root / "data")
    compared = xb.compare("ok", "constant", **places)
    assert told(capsys, "compare", "ok", "constant", *options)[1].strip() == str(compared)
    assert [own.name for own in compared.metrics] == ["P@1", "P@3"]
    assert "not corrected" in compared._repr_html_()
    shown = xb.show("ok", store=bench.store.root)
    printed = told(capsys, "show", "ok", "--store", bench.store.root)[1]
    assert all(title in printed and title in shown._repr_html_() for title in shown.sections)
    assert repr(xb.load("fake-20", bench.root / "data")).startswith("<Dataset fake-20: ")


def test_names_are_checked(bench: Bench) -> None:
    with pytest.raises(xb.XMCBenchError, match="did you mean"):
        xb.leaderboard("lf-amazontitles-1.3")
    with pytest.raises(xb.XMCBenchError, match="did you mean 'quickstart'"):
        xb.run("quickstrat", store=bench.store.root)
