"""A trial's processes end when they are told to, and a killed run loses only the trial in flight."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from fakes.bench import Bench
from processes import MAIN, PATIENCE, gone, until

from xmcbench.runs.executor import RunningTrial, Task
from xmcbench.suite.resources import Needs
from xmcbench.trial.record import Status

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and process groups are POSIX")


def processes(bench: Bench) -> list[int]:
    """The worker that runs fake-slow, and the child it started."""
    found = list(bench.root.glob("results/trials/*/processes.json"))
    return json.loads(found[0].read_text() or "[]") if found else []


def start(bench: Bench, suite: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, "run", str(suite), "--store", "results"],
        cwd=bench.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_trial_that_takes_too_long_is_killed_with_its_children(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunningTrial, "overdue", property(lambda trial: trial.stage == "train"))
    suite = bench.suite(["fake-slow"], timeout=4)
    record = bench.run(suite)["slow"]
    assert record.status is Status.TIMEOUT
    assert record.spent["steps"] > 0  # what the worker told last
    assert record.failure is not None
    assert record.failure.message == "killed after 4 seconds of wall clock"
    assert len(processes(bench)) == 2
    assert all(until(lambda pid=pid: gone(pid)) for pid in processes(bench))
    assert bench.plan(suite)["slow"][0] == "failed"


@pytest.mark.parametrize(("age", "overdue"), [(0, False), (61, True)])
def test_a_trial_is_overdue_when_its_time_is_over(age: float, overdue: bool) -> None:
    task = Task(job=Mock(), needs=Needs(), timeout=60.0, report=print)
    assert RunningTrial(task, start=time.monotonic() - age).overdue is overdue


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["SIGKILL", "SIGINT"])
def test_a_killed_run_loses_only_the_trial_in_flight_which_resumes(bench: Bench, how: signal.Signals) -> None:
    suite = bench.suite(["fake-ok", "fake-slow"])
    run = start(bench, suite)

    def steps() -> list[Path]:
        return list(bench.root.glob("results/trials/*/checkpoint/steps"))

    assert until(lambda: bool(steps()) and len(processes(bench)) == 2)
    run.send_signal(how)
    output, _ = run.communicate(timeout=PATIENCE)
    if how is signal.SIGINT:
        assert run.returncode == 130, output
        assert "interrupted" in output
    assert all(until(lambda pid=pid: gone(pid)) for pid in processes(bench))
    done = len(steps()[0].read_text().split())

    assert {label: action for label, (action, _) in bench.plan(suite).items()} == {"ok": "hit", "slow": "resume"}
    (bench.root / "cache" / "hurry").touch()
    records = bench.run(suite)
    assert bench.heard.begun == ["slow"]
    assert records["slow"].status is Status.OK
    assert records["slow"].spent["steps"] == done
    assert (bench.store.directory(records["ok"].key) / "fits.txt").read_text() == "fit\n"


def test_two_runs_on_one_store_run_each_trial_once(bench: Bench) -> None:
    suite = bench.suite({"one": {"method": "fake-ok"}, "two": {"method": "fake-ok", "width": 8}})
    runs = [start(bench, suite) for _ in range(2)]
    for run in runs:
        output, _ = run.communicate(timeout=PATIENCE)
        assert run.returncode == 0, output
    fits = [path.read_text() for path in bench.root.glob("results/trials/*/fits.txt")]
    assert fits == ["fit\n", "fit\n"]
