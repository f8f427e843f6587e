"""Trials on a Ray cluster, in more detail: other storage, lost nodes, bad endings, interrupted drivers. Minutes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from fakes.bench import Bench, Heard
from processes import command_line, gone, until

from xmcbench.errors import XMCBenchError
from xmcbench.runs.plan import PlannedTrial
from xmcbench.trial.record import Status
from xmcbench.trial.run import Progress
from xmcbench.trial.store import StoreError
from xmcbench_plugins.ray.executor import RayExecutor

from .ray_cluster import (
    NODE,
    SMALL,
    TWO_NODES,
    Killer,
    all_is_free,
    assert_alike,
    in_process,
    on_ray,
    start,
)

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="signals and process groups are POSIX"),
    pytest.mark.slow,  # clusters of processes, a few minutes: `pytest -m slow`
]


def test_workers_that_share_no_store_exchange_checkpoints_and_the_driver_brings_the_outcome(ray_bench: Bench) -> None:
    suite = ray_bench.suite(
        {"table": {"method": "ova", **SMALL}, "crash": {"method": "fake-crash"}},
        budget={"steps": 8},
        selection={"queries": 6, "evaluations": 2},  # the best weights are of all workers
    )
    storage = ray_bench.root / "storage"
    records = on_ray(ray_bench, suite, executor=RayExecutor(storage=f"file://{storage}"), workers=2)
    table, crash = records["table"], records["crash"]
    assert_alike(table, in_process(ray_bench, suite, only=["table"])["table"])
    assert {path.name for path in ray_bench.store.directory(table.key).iterdir()} >= {"record.json", "model", "log.txt"}
    assert ray_bench.store.predictions(table)[0].k == 20
    assert ray_bench.store.record(table.key) == table
    assert crash.failure is not None
    assert (crash.failure.message, "about to divide" in crash.failure.log_tail) == ("no way on", True)
    assert [path.name for path in storage.iterdir()] == [crash.key], "what --retry goes on from"


def test_a_worker_that_is_killed_costs_the_steps_since_the_checkpoint_and_nothing_else(ray_bench: Bench) -> None:
    selection = {"queries": 6, "evaluations": 4}  # each writes a checkpoint
    suite = ray_bench.suite({"hard": {"method": "dexml", **SMALL}}, budget={"steps": 120}, selection=selection)
    killer = Killer(at=50)
    record = on_ray(ray_bench, suite, killer, workers=2)["hard"]
    assert killer.back[0] > 20, "it went back to a checkpoint; the first is at a quarter of the budget"
    assert_alike(record, in_process(ray_bench, suite)["hard"])
    assert until(all_is_free, 60), "neither group of workers holds a CPU"


def test_where_a_node_is_lost_fewer_workers_go_on(ray_bench: Bench, cluster: Any) -> None:
    selection = {"queries": 6, "evaluations": 4}
    suite = ray_bench.suite({"table": {"method": "ova", **SMALL}}, budget={"steps": 400}, selection=selection)
    (lost,) = cluster.worker_nodes
    assert until(all_is_free, 60), "else it starts with one worker"
    killer = Killer(120, lambda: cluster.remove_node(lost, allow_graceful=False))
    try:
        record = on_ray(ray_bench, suite, killer, **TWO_NODES, min_workers=1)["table"]
    finally:
        cluster.add_node(**NODE)
    assert killer.back[0] > 80
    assert record.workers == 1
    assert_alike(record, in_process(ray_bench, suite)["table"])


class Impatient(Heard):
    """A display that has an hour pass when it hears of a step."""

    def __init__(self, executor: RayExecutor) -> None:
        super().__init__()
        self.executor = executor

    def progress(self, planned: PlannedTrial, progress: Progress) -> None:
        if progress.stage == "train" and planned.trial.label == "slow":
            self.executor._running[planned.trial.key].start -= 3600


def test_what_becomes_of_trials_that_do_not_end_well(ray_bench: Bench) -> None:
    executor = RayExecutor()
    methods = {name: {"method": f"fake-{name}"} for name in ("crash", "slow", "ok")}
    records = on_ray(ray_bench, ray_bench.suite(methods, timeout=3600), Impatient(executor), executor)
    assert {label: str(record.status) for label, record in records.items()} == {
        "crash": "error", "slow": "timeout", "ok": "ok"
    }  # fmt: skip
    crash, slow = records["crash"].failure, records["slow"].failure
    assert crash is not None
    assert (crash.type, crash.message, crash.stage) == ("ValueError", "no way on", "fit")
    assert "about to divide" in crash.log_tail
    assert slow is not None
    assert slow.message == "killed after 3600 seconds of wall clock"
    pids = json.loads(next(ray_bench.root.glob("results/trials/*/processes.json")).read_text())
    assert all(until(lambda pid=pid: gone(pid)) for pid in pids)
    assert until(all_is_free, 60), "trials that were ended hold no CPUs"


def test_a_full_disk_ends_the_run(ray_bench: Bench) -> None:
    suite = ray_bench.suite(["fake-full-disk"])
    with pytest.raises(StoreError, match="No space left"):
        on_ray(ray_bench, suite)
    assert ray_bench.plan(suite)["full-disk"][0] == "resume"


def test_more_than_the_cluster_has_is_an_error_before_anything_runs(ray_bench: Bench) -> None:
    suite = ray_bench.suite(["fake-ok"], resources={"trials": {"o*": {"cpus": 99}}})
    with pytest.raises(XMCBenchError, match="1 workers, each of 99 CPUs and 0 GPUs, and the Ray cluster has 4 CPUs"):
        on_ray(ray_bench, suite)
    assert ray_bench.plan(suite)["ok"][0] == "run"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["SIGKILL", "SIGINT"])
def test_a_driver_that_ends_leaves_nothing_that_trains_and_its_rerun_goes_on(
    ray_bench: Bench, how: signal.Signals
) -> None:
    suite = ray_bench.suite(["fake-ok", "fake-slow"], budget={"steps": 10**6})
    driver = start(ray_bench, suite)  # with a cluster of its own
    steps: Callable[[], list[Path]] = lambda: list(ray_bench.root.glob("results/trials/*/checkpoint/steps"))  # noqa: E731
    ended: Callable[[], list[Path]] = lambda: list(ray_bench.root.glob("results/trials/*/record.json"))  # noqa: E731
    assert until(lambda: bool(steps() and ended()), 200), driver.kill()
    # What a method starts itself is its own business once the raylet is gone too: fake-slow's child sleeps on. Agents
    # of Ray's own, which train nothing, look for their raylet about once a minute.
    names = {each.pid: command_line(each.pid) for each in psutil.Process(driver.pid).children(recursive=True)}
    started = [pid for pid, name in names.items() if "ray" in name and "Agent" not in name]
    assert any("ray::train" in names[pid] for pid in started)
    driver.send_signal(how)
    output, _ = driver.communicate(timeout=60)
    if how is signal.SIGINT:
        assert driver.returncode == 130, output
        assert "interrupted" in output
    assert until(lambda: all(gone(pid) for pid in started))
    done = len(steps()[0].read_text().split())

    assert {label: action for label, (action, _) in ray_bench.plan(suite).items()} == {"ok": "hit", "slow": "resume"}
    (ray_bench.root / "cache" / "hurry").touch()
    records = on_ray(ray_bench, suite)
    assert ray_bench.heard.begun == ["slow"]
    assert records["slow"].status is Status.OK
    assert records["slow"].spent["steps"] == done
    assert np.all([path.read_text() == "fit\n" for path in ray_bench.root.glob("results/trials/*/fits.txt")])
