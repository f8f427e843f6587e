"""`xmcbench score`: the metrics are those of a trial with the same predictions, and the record competes with none."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from commands import told
from fakes.bench import Bench

from xmcbench.trial.budget import UnknownBudget
from xmcbench.trial.record import Record


@pytest.fixture
def trial(bench: Bench) -> Record:
    return bench.run(bench.suite(["fake-ok"]), debug=True)["ok"]


@pytest.fixture
def predictions(bench: Bench, trial: Record) -> Path:
    """The trial's own predictions as another program would write them."""
    kept, _ = bench.store.predictions(trial)
    rows, columns = np.nonzero(kept.indices >= 0)
    matrix = sp.csr_array((kept.scores[rows, columns], (rows, kept.indices[rows, columns])), shape=(len(kept), 20))
    sp.save_npz(bench.root / "mine.npz", matrix)
    return bench.root / "mine.npz"


def run(bench: Bench, capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, output and errors."""
    return told(capsys, *arguments, *(() if "show" in arguments else bench.places[2:]))


def test_metrics_and_intervals_are_those_of_the_trial(
    bench: Bench, trial: Record, predictions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = ",".join(trial.metrics)
    code, text, _ = run(bench, capsys, "score", predictions, "--dataset", "fake-20", "--metrics", metrics)
    assert code == 0
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines()[3:]}
    assert rows.keys() == trial.metrics.keys()
    for name, (value, low, _, high) in rows.items():
        assert value == f"{100 * trial.metrics[name]:.4f}"
        assert (low, high) == tuple(f"{100 * end:.2f}" for end in trial.intervals[name])


def test_a_stored_record_is_of_unknown_budget_and_other_commands_work_on_it(
    bench: Bench, trial: Record, predictions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ("--store", bench.store.root)
    code, *_ = run(bench, capsys, "score", predictions, "--dataset", "fake-20", "--as", "theirs", *store)
    assert code == 0
    (record,) = (record for record in bench.store.records() if record.trial.label == "theirs")
    assert record.trial.budget == UnknownBudget()
    assert record.key == record.trial.key != trial.key
    for command in (("compare", "theirs", "ok"), ("analyse", "theirs", "ok"), ("rescore",)):
        code, _, error = run(bench, capsys, *command, *store)
        assert (code, error) == (0, "")
    assert bench.store.record(record.key) == record  # rescored, nothing changed
    _, shown, _ = run(bench, capsys, "show", "theirs", *store)
    assert "unknown" in shown
    assert "--format suite" not in shown


def test_an_imported_row_is_ranked_with_no_trial(
    bench: Bench, predictions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ("--store", bench.store.root)
    run(bench, capsys, "score", predictions, "--dataset", "fake-20", "--as", "theirs", *store)
    _, text, _ = run(bench, capsys, "leaderboard", "--dataset", "fake-20", *store)
    measured, imported = text.split("fake-20, ")[1:]
    assert measured.startswith("budget: 5 steps")
    assert "theirs" not in measured
    assert imported.startswith("imported, budget unknown")
    assert "ok" not in imported.split("Figures")[0].split()


def test_what_does_not_fit_is_one_line(bench: Bench, predictions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bench.root / "bad.txt").write_text("0:0.5 1:x\n")
    code, _, error = run(bench, capsys, "score", bench.root / "bad.txt", "--dataset", "fake-20")
    assert code == 2
    assert error.endswith("bad.txt: line 1: found 'x', expected label:value with a finite number as value\n")
    code, _, error = run(bench, capsys, "score", predictions, "--dataset", "fake-30")
    assert code == 2
    assert len(error.splitlines()) == 1


@pytest.mark.skipif(find_spec("xclib") is not None, reason="pyxclib is installed")
def test_a_check_without_a_second_program_says_how_to_get_one(
    bench: Bench, predictions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, error = run(bench, capsys, "score", predictions, "--dataset", "fake-20", "--metrics", "P@1", "--check")
    assert (code, text) == (2, "")
    assert error == (
        "error: --check: nothing computes P@1 a second time; docs/metrics.md says how to install pyxclib\n"
    )
