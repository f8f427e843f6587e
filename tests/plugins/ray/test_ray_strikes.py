"""SIGKILL of each kind of Ray's processes, in a run and in a tuning: the rerun of the command ends with equal results.

Each strike is at a cluster of the command's own, once some trials have ended, so at another point each time. Minutes.
"""

from __future__ import annotations

import os
from functools import partial

import psutil
import pytest
from fakes import TRUSTED
from fakes.bench import Bench, Heard
from processes import command_line, until

from xmcbench.plugins.registry import registry
from xmcbench.runs.tuning import run_samples, tuned_trials
from xmcbench.trial.record import Record, Status

from .conftest import PATIENT, of_ray
from .ray_cluster import KEYS, SMALL, TUNE, in_process, start, tuned_here

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="signals and process groups are POSIX"),
    pytest.mark.slow,  # clusters of processes, a few minutes: `pytest -m slow`
]
STRUCK = {"driver": "", "worker": "ray::", "raylet": "raylet/raylet", "control store": "gcs_server"}
METHODS = {"popular": {"method": "fake-ok"}, "hard": {"method": "dexml", "negatives": "hard", **SMALL}}
COUNTS = ("steps", "queries", "encoder_tokens", "encoder_flops")


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch, bench: Bench) -> None:  # noqa: ARG001  (it sets the plugins)
    monkeypatch.setenv("XMCBENCH_PLUGINS", f"{TRUSTED},xmcbench")
    for name, value in PATIENT.items():
        monkeypatch.setenv(name, value)
    registry.cache_clear()


def of(driver: psutil.Process, words: str) -> list[psutil.Process]:
    """The processes below the driver whose command line has the words; the driver itself for none."""
    if not words:
        return [driver]
    return [child for child in driver.children(recursive=True) if words in command_line(child.pid)]


def strike(bench: Bench, suite: object, what: str, after: int) -> str:
    """Run a suite on Ray, and kill a process once `after` trials have ended; what the command said, where it ended.

    A command that still waits after a while is interrupted.
    """
    driver = start(bench, suite)  # type: ignore[arg-type]
    own = psutil.Process(driver.pid)
    records = lambda: len(list(bench.root.glob("results/trials/*/record.json")))  # noqa: E731
    assert until(lambda: records() >= after and bool(of(own, STRUCK[what])), 300), driver.kill()
    started = own.children(recursive=True)
    of(own, STRUCK[what])[-1].kill()
    output, _ = driver.communicate(timeout=600)
    assert "Traceback" not in output
    for process in psutil.wait_procs([child for child in started if of_ray(child)], timeout=60)[1]:
        process.kill()  # an agent of Ray's own, which looks for its raylet once a minute
    return output


def alike(record: Record) -> tuple[object, ...]:
    """What of a record is not measured."""
    metrics = {name: round(value, 6) for name, value in record.metrics.items()}
    return record.trial.label, record.key, record.status, metrics, *(record.spent.get(name) for name in COUNTS)


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("what", STRUCK)
def test_a_run_goes_on_after_a_strike(bench: Bench, what: str, after: int) -> None:
    suite = bench.suite(METHODS, budget={"steps": 40}, selection={"queries": 6, "evaluations": 4})
    output = strike(bench, suite, what, after)
    kept = {record.key: record for record in bench.store.records()}
    found = bench.run(suite, debug=True)  # also where nothing of Ray is left
    wanted = in_process(bench, suite)
    assert sorted(map(alike, found.values())) == sorted(map(alike, wanted.values())), output
    assert [found[record.trial.label].ended for record in kept.values()] == [own.ended for own in kept.values()]


def test_a_run_goes_on_on_ray_after_a_raylet_was_killed(bench: Bench) -> None:
    """The rerun starts Ray anew, and trains only what has not ended."""
    suite = bench.suite(METHODS, budget={"steps": 40}, selection={"queries": 6, "evaluations": 4})
    strike(bench, suite, "raylet", 1)
    kept = {record.key: record.ended for record in bench.store.records() if record.status is Status.OK}
    assert kept
    driver = start(bench, suite)
    output, _ = driver.communicate(timeout=600)
    assert (driver.returncode, "Traceback" in output) == (0, False), output
    found = {record.key: record for record in bench.store.records()}
    wanted = in_process(bench, suite)
    assert sorted(map(alike, found.values())) == sorted(map(alike, wanted.values())), output
    assert {key: found[key].ended for key in kept} == kept


@pytest.mark.parametrize("what", STRUCK)
def test_a_tuning_goes_on_after_a_strike(bench: Bench, what: str) -> None:
    suite = bench.suite(["fake-ok"], **KEYS | {"tune": TUNE | {"num_samples": 8}})
    output = strike(bench, suite, what, 2)
    kept = {record.key: record for record in bench.store.records()}
    chosen = tuned_trials(bench.runner(suite, debug=True), partial(run_samples, Heard()))
    found = {record.key: record for record in bench.store.records()}
    assert all(found[key].ended == record.ended for key, record in kept.items()), output
    assert chosen == tuned_here(bench, suite)
