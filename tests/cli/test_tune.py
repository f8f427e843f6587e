"""`xmcbench tune`: one command from a dataset to a suite with settings that held-out queries chose."""

from __future__ import annotations

import pytest
import yaml
from commands import call
from fakes.bench import Bench

from xmcbench.plugins.registry import registry
from xmcbench.runs.local import WorkerServer


def test_what_was_found_is_written_as_a_suite_whose_trials_are_there(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    thing = registry().method("fake-ok").thing
    monkeypatch.setattr(thing, "search_space", classmethod(lambda *_: {"strength": {"low": 0.5, "high": 2.0}}))
    monkeypatch.setattr(registry().method("fake-rare").thing, "search_space", classmethod(lambda *_: {}))
    asked = ("--methods", "fake-ok,fake-rare", "--budget", "steps=9", "--samples", "3")
    out = bench.root / "found.yaml"
    assert call("tune", "fake-20", *asked, *bench.places, "--out", out, "--dry-run") == 0
    shown = capsys.readouterr().out
    # Three samples, one of which goes on, two finalists with two seeds each; fake-rare has nothing to search.
    assert "about 8 trainings before the 2 below" in shown
    assert not out.exists()
    servers: list[int] = []
    start = WorkerServer.__init__
    monkeypatch.setattr(WorkerServer, "__init__", lambda self, log: servers.append(log) or start(self, log))
    assert call("tune", "fake-20", *asked, *bench.places, "--out", out) == 0
    assert len(servers) == 1, "the frameworks are loaded once for all samples"
    found = yaml.safe_load(out.read_text())
    assert 0.5 <= found["methods"]["fake-ok"]["strength"] <= 2.0
    assert found["budget"] == {"steps": 9}
    capsys.readouterr()
    assert call("run", out, *bench.places, "--dry-run") == 0
    plan = capsys.readouterr().out
    assert [line.split()[4] for line in plan.splitlines()[2:4]] == ["hit", "hit"]


def test_a_budget_that_is_none_is_an_error_in_a_line(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("tune", "fake-20", "--budget", "much", "--data", bench.root / "data") == 2
    assert "--budget much: expected a limit and a number, as in epochs=10" in capsys.readouterr().err


@pytest.mark.parametrize("out", ["", "."])
def test_a_folder_is_no_place_for_a_suite(bench: Bench, capsys: pytest.CaptureFixture[str], out: str) -> None:
    assert call("tune", "fake-20", "--out", out, "--data", bench.root / "data") == 2
    assert "--out .: found a folder, expected the name of a file" in capsys.readouterr().err
