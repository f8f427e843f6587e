"""`xmcbench tables`, and what a run prints of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commands import call
from fakes.bench import Bench

from xmcbench.suite.tables import RANKS

KEYS: dict[str, Any] = {
    "equal": "steps",
    "sweep": {"width": [1, 2]},
    "selection": {"queries": 5, "metric": "P@1"},
    "tables": {"widths": {"columns": ["width", "strength", "P@1", "steps"], "methods": ["ok"]}},
}
TUNE = {"space": {"ok": {"strength": [1.0, 2.0]}, "rare": {}}, "num_samples": 2}


def told(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert call(*arguments) == 0
    return capsys.readouterr().out


def test_a_run_prints_its_tables_and_that_its_cells_are_equal(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    suite = bench.suite(["fake-ok", "fake-rare"], **KEYS)
    before = told(capsys, "tables", suite, *bench.places)
    assert before.count("not run") >= 2
    assert "equal steps: no trial has spent any" in before or "equal steps" not in before

    shown = told(capsys, "run", suite, *bench.places)
    tables = told(capsys, "tables", suite, *bench.places)
    assert tables.strip() in shown
    rows = [line.split() for line in tables.splitlines() if line.startswith("ok[")]
    assert rows[0][:3] == ["ok[width=1]", "1", "1.0"]
    assert rows[0][4] == "5"
    assert f"quality against cost: {RANKS}" in tables
    assert "equal steps: 4 trials with 5 spent 5 to 5, none more than one step past it" in tables

    csv = told(capsys, "tables", suite, *bench.places, "--format", "csv")
    assert csv.startswith("table,method,width,strength,P@1,steps\nwidths,ok[width=1],1,1.0,")


def test_a_tuned_suite_is_tuned_first_and_its_tables_wait_for_that(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = bench.suite(["fake-ok", "fake-rare"], **KEYS | {"tune": TUNE})
    assert call("tables", suite, *bench.places) == 2
    assert "on fake-20 was not tuned to the end: `xmcbench run` does it" in capsys.readouterr().err
    shown = told(capsys, "run", suite, *bench.places)
    assert shown.startswith("tuned first: 2 samples per method, random search, scheduler none")
    assert "fake-20/ok[width=1]/sample-1 seed 0: ok" in shown
    # Samples had the whole budget, so that the best of them is the trial: it says so, under the trial's label.
    chosen = [record for record in bench.store.records() if record.chosen]
    assert sorted(record.trial.label for record in chosen) == ["ok[width=1]", "ok[width=2]"]
    tables = told(capsys, "tables", suite, *bench.places)
    assert tables.strip() in shown
    assert "[1/" not in told(capsys, "run", suite, *bench.places)
