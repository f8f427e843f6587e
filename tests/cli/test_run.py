"""`xmcbench run` as people use it."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest
from commands import call
from fakes.bench import Bench

from xmcbench.cli import main
from xmcbench.errors import XMCBenchError
from xmcbench.plugins.registry import registry
from xmcbench.runs.runner import Runner


def test_plan_progress_leaderboard_and_then_hits(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    suite = bench.suite(["fake-ok", "fake-rare", "fake-picky"])
    assert call("run", suite, *bench.places, "--dry-run") == 0
    plan = capsys.readouterr().out
    assert [line.split()[4] for line in plan.splitlines()[2:5]] == ["run", "run", "skip"]
    assert "needs a million labels" in plan
    assert not (bench.root / "results").exists()

    assert call("run", suite, *bench.places) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(plan)
    lines = shown.removeprefix(plan).splitlines()
    assert [line.partition(" (run: ")[0].split(", ")[0] for line in lines[:2]] == [
        "[1/2] fake-20/ok seed 0: ok",
        "[2/2] fake-20/rare seed 0: ok",
    ], "a line a trial"
    assert lines[2] == ""
    assert " has the highest P@5, " in lines[3], "the answer before the table"
    assert "P@1" in shown.split("[2/2]")[1]

    assert call("run", suite, *bench.places) == 0
    again = capsys.readouterr().out
    assert [line.split()[4] for line in again.splitlines()[2:5]] == ["hit", "hit", "skip"]
    assert "[1/" not in again


def test_seeds_of_which_the_same_becomes_share_a_line_of_the_plan(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.run(bench.suite(["fake-ok"], seeds=[0, 1]), debug=True)
    suite = bench.suite(["fake-ok", "fake-rare"], seeds=[0, 1, 2])
    call("run", suite, "--dry-run", *bench.places)
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    rows = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    keys = {(planned.trial.label, planned.trial.seed): planned.trial.key for planned in bench.runner(suite).plan()}
    assert [row[:3] for row in rows[2:5]] == [
        ["ok", "fake-20", "0, 1"],
        ["ok", "fake-20", "2"],
        ["rare", "fake-20", "0, 1, 2"],
    ]
    assert rows[2][3].split() == [keys["ok", seed][:8] for seed in (0, 1)]
    assert rows[3][3] == keys["ok", 2]


def test_a_suite_that_is_edited_while_it_runs_is_named(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = bench.suite(["fake-ok"])
    assert call("run", suite, *bench.places, "--debug") == 0
    assert "was edited" not in capsys.readouterr().err
    plan = Runner.plan
    monkeypatch.setattr(Runner, "plan", lambda self: (suite.write_text(suite.read_text() + "\n"), plan(self))[1])
    assert call("run", suite, *bench.places, "--debug") == 0
    assert (
        f"{suite} was edited during the run: these are the trials of the suite before the edit"
        in capsys.readouterr().err
    )


def test_changes_that_no_commit_holds_are_named_before_trials_run(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = bench.root / "checkout"
    for arguments in (("init", "-q", checkout), ("-C", checkout, "commit", "-q", "--allow-empty", "-m", "first")):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments], check=True)
    monkeypatch.setattr("xmcbench.trial.provenance.CHECKOUT", checkout)
    suite = bench.suite(["fake-ok"])
    assert call("run", suite, *bench.places, "--set", "methods.ok.width=5") == 0
    assert "uncommitted" not in capsys.readouterr().err
    (checkout / "new.py").touch()
    (checkout / "suite.yaml").touch()
    assert call("run", suite, *bench.places) == 0
    assert "uncommitted changes (new.py and 1 more): these trials cannot be submitted" in capsys.readouterr().err
    assert call("run", suite, *bench.places) == 0  # nothing runs
    assert "uncommitted" not in capsys.readouterr().err


def test_a_failed_trial_is_told_and_makes_the_exit_code(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    suite = bench.suite(["fake-ok", "fake-crash"])
    assert call("run", suite, *bench.places, "--only", "crash") == 1
    shown = capsys.readouterr().out
    assert "error: no way on (log: trials/" in shown
    assert "fake-20/ok" not in shown
    assert call("run", suite, *bench.places, "--only", "crash") == 1  # a failure that is in the store is still one
    assert "--retry runs it again" in capsys.readouterr().out


def test_problems_are_a_line_each_on_stderr_and_code_2(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    suite = bench.suite({"ok": {"method": "fake-ok", "widht": 1}}, metrics=["Q@1"])
    assert call("run", suite, *bench.places) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert all(line.startswith(f"error: {suite}:") for line in told.err.splitlines())
    assert len(told.err.splitlines()) == 2

    assert call("run", bench.suite(["fake-ok"]), *bench.places, "--only", "o*", "--only", "no*") == 2
    assert capsys.readouterr().err == "error: --only no*: no trial matches (labels: ok)\n"

    assert call("run", bench.suite(["fake-ok"]), *bench.places, "--set", "budget.step=1") == 2
    assert capsys.readouterr().err.startswith("error: --set budget.step=1: budget.step: unknown key")


def test_a_damaged_record_stops_the_run_before_it_begins(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    suite = bench.suite(["fake-ok"])
    record = bench.run(suite, debug=True)["ok"]
    path = bench.store.directory(record.key) / "record.json"
    path.write_bytes(path.read_bytes()[:100])
    assert call("run", suite, *bench.places) == 2
    assert capsys.readouterr().err.startswith(f"error: {path}: not a record: ")
    assert path.stat().st_size == 100


def test_another_version_of_a_method_is_another_trial(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result of version 1 is never served for version 2 (amlb's resume ignores the version)."""
    suite = bench.suite(["fake-ok"])
    bench.run(suite, debug=True)
    assert bench.plan(suite)["ok"][0] == "hit"
    method = registry().method("fake-ok").thing
    monkeypatch.setattr(method, "info", replace(method.info, version=method.info.version + 1))
    assert bench.plan(suite)["ok"][0] == "run"


def test_the_same_trial_under_two_labels_runs_once(bench: Bench) -> None:
    suite = bench.suite({"a": {"method": "fake-ok"}, "b": {"method": "fake-ok", "width": 4}})
    assert bench.plan(suite)["b"] == ("hit", "the same trial as a")
    records = bench.run(suite, debug=True)
    assert bench.heard.begun == ["a"]
    assert records["a"].key == records["b"].key


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--address", "auto"], "--address is a setting of --executor ray, which is not given"),
        (["--storage", "s3://bucket"], "--storage is a setting of --executor ray, which is not given"),
    ],
)
def test_options_that_do_not_go_together(
    options: list[str], message: str, bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("run", bench.suite(["fake-ok"]), *options) == 2
    assert message in capsys.readouterr().err


def test_a_debugger_does_not_go_together_with_ray(bench: Bench) -> None:
    with pytest.raises(XMCBenchError, match="--debug runs in this process, --executor ray in others"):
        main(["run", str(bench.suite(["fake-ok"])), "--executor", "ray", "--debug"])
