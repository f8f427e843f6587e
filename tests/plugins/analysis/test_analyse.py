from __future__ import annotations

import json
from dataclasses import replace

import pytest
from commands import call
from fakes.bench import Bench

from xmcbench.data import load
from xmcbench.errors import XMCBenchError
from xmcbench.reporting.archive import Archive
from xmcbench.reporting.ranked_groups import leaderboard
from xmcbench_plugins.analysis.likeness import likeness
from xmcbench_plugins.analysis.tables import near_table


@pytest.fixture
def ran(bench: Bench) -> Bench:
    """A store with two trials that have predictions, and one that failed."""
    bench.run(bench.suite(["fake-ok", "fake-rare", "fake-crash"]))
    return bench


def test_tables_are_printed_and_files_written(ran: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    out = ran.root / "out"
    assert call("analyse", *ran.places, "ok", "fake-20/rare", "-k", "3", "--out", out, "--figures", "svg") == 0
    shown = capsys.readouterr()
    assert "head, torso, tail: contribution of the labels of a bin to P@3 (per cent)" in shown.out
    assert "Δ rare" in shown.out
    records = {record.trial.label: record for record in ran.store.records()}
    found = json.loads((out / "analysis.json").read_text())
    for label in ("ok", "rare"):
        assert found[label]["trade_off"]["1"] == [records[label].metrics["P@1"], records[label].metrics["PSP@1"]]
        deciles = found[label]["breakdowns"]["deciles"]["contribution"]
        assert sum(deciles) == pytest.approx(records[label].metrics["P@3"])
    assert (out / "deciles.svg").read_bytes().startswith(b"<?xml")
    assert shown.err.count("wrote ") == len(list(out.iterdir())) == 5


def test_problems_are_a_line(ran: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, problem in (
        (["crash"], "ended as error"),
        (["nothing"], "no trial is called 'nothing'"),
        (["ok", "--figures", "svg"], "expected --out DIR"),
        (["ok", "--similarity", "ok"], "method 'fake-ok' has no label vectors"),
    ):
        assert call("analyse", *ran.places, *arguments) == 2
        assert problem in capsys.readouterr().err


def test_methods_are_compared_over_several_datasets(ran: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    ran.run(ran.suite(["fake-ok", "fake-rare"], datasets=["random-pairs-200"]))
    assert call("analyse", *ran.places, "ok", "random-pairs-200/rare") == 2
    assert "rare has no trial on fake-20: expected each method on every dataset" in capsys.readouterr().err
    assert call("analyse", *ran.places, "ok", "rare") == 0
    shown = capsys.readouterr().out
    assert "methods over 2 datasets: P@5" in shown
    assert "mean rank" in shown
    assert call("analyse", *ran.places, "ok", "rare", "--metric", "P@77") == 2
    assert "has no P@77" in capsys.readouterr().err


def test_what_cannot_be_analysed_is_told_and_left_out(ran: Bench) -> None:
    records = ran.store.records()
    told: list[str] = []
    ok = next(record for record in records if record.trial.label == "ok")
    gone = ran.store.directory(ok.key) / "predictions.npz"
    gone.unlink()
    archive = Archive({one.key: one for one in records}, {one.key: ran.store for one in records})
    found = archive.analyses(leaderboard(records), ran.root / "data", told.append)
    assert [record.trial.label for record in records if record.key in found] == ["rare"]
    (line,) = told
    assert line == "the predictions of 1 trial are not here (fake-20 1)"
    with pytest.raises(XMCBenchError):
        ran.store.predictions(ok)


def test_what_cannot_be_analysed_is_a_line_for_each_kind(ran: Bench) -> None:
    records = [
        one.model_copy(update={"trial": one.trial.model_copy(update={"dataset": f"{one.trial.dataset}-{n}"})})
        for n, one in enumerate(own for own in ran.store.records() * 3 if own.metrics)
    ]
    told: list[str] = []
    archive = Archive({str(n): one for n, one in enumerate(records)}, {one.key: ran.store for one in records})
    assert not list(archive.predicted([one.key for one in records], ran.root / "data", told.append))
    (line,) = told
    assert line.endswith(f"; and {len(records) - 1} other datasets with such a problem")
    assert len(line) < 300


def test_scores_are_said_with_and_without_texts_near_to_training(
    ran: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = load("fake-20", ran.root / "data")
    num_test, near = len(dataset.test.texts), int(likeness(dataset.train.texts, dataset.test.texts).near.sum())
    assert 0 < near < num_test
    assert call("analyse", *ran.places, "ok") == 0
    assert "P@1 with and without test texts near a training text" in capsys.readouterr().out
    records = {record.trial.label: record for record in ran.store.records() if record.metrics}
    table = near_table(ran.store, records.values(), dataset)
    assert table is not None
    for label, *figures in table.rows:
        every, new, known = map(float, figures)
        assert every == pytest.approx(100 * records[label].metrics["P@1"], abs=0.006)
        assert (known * near + new * (num_test - near)) / num_test == pytest.approx(every, abs=0.02)
    other = replace(dataset, train=replace(dataset.train, texts=["zz"] * len(dataset.train.texts)))
    assert near_table(ran.store, records.values(), other) is None
