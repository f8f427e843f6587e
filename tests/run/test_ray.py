"""Trials on a Ray cluster of two nodes, emulated on this machine: one cluster for all tests, since it starts slowly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from fakes import TRUSTED, install_fakes
from fakes.bench import Bench, Heard
from processes import MAIN, gone, until

from xmcbench.errors import XMCBenchError
from xmcbench.plugins.registry import registry
from xmcbench.run.plan import PlannedTrial
from xmcbench.run.ray import SETTINGS, RayExecutor, _RayTrial
from xmcbench.run.running_trial import RunningTrial, Task
from xmcbench.suite.resources import Needs, Share
from xmcbench.trial.record import Record, Status
from xmcbench.trial.run import Progress
from xmcbench.trial.store import StoreError

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="signals and process groups are POSIX"),
    pytest.mark.slow,  # whole clusters of processes, a few minutes: `pytest -m slow`
]

CPUS = 2  # of each node
OBJECT_STORE_BYTES = 80 * 2**20
TWO_NODES = {"workers": 2, "cpus": CPUS}  # more than one node has
SMALL = {"encoder": {"name": "tiny", "hidden_dropout": 0.0}, "batch_size": 8, "learning_rate": 1e-3}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A head and another node, each a raylet of its own; this process is connected to them."""
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as monkeypatch:
        site = tmp_path_factory.mktemp("site")
        install_fakes(site, monkeypatch)
        monkeypatch.setenv("XMCBENCH_PLUGINS", f"{TRUSTED},xmcbench")
        for name, value in {**SETTINGS, "OMP_NUM_THREADS": "1"}.items():
            monkeypatch.setenv(name, value)
        node = {"num_cpus": CPUS, "object_store_memory": OBJECT_STORE_BYTES}
        made = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        made.add_node(**node)
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        yield made
        started = [each.pid for each in psutil.Process().children(recursive=True) if "ray" in name_of(each.pid)]
        ray.shutdown()
        made.shutdown()
    registry.cache_clear()
    assert until(lambda: all(gone(pid) for pid in started), 60)


@pytest.fixture
def bench(cluster: Any, tmp_path: Path) -> Bench:  # noqa: ARG001  (it is there while the test runs)
    return Bench(tmp_path)


def name_of(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ""


def all_is_free() -> bool:
    """Whether nothing of the trials before holds a core."""
    import ray

    return bool(ray.available_resources().get("CPU", 0) == 2 * CPUS)


def on_ray(
    bench: Bench, suite: Path, told: Heard | None = None, executor: RayExecutor | None = None, **share: Any
) -> dict[str, Record]:
    """Run a suite in the cluster; the records by label."""
    runner = bench.runner(suite, executor=executor or RayExecutor(), share=Share(**share))
    bench.heard = told or Heard()
    return {record.trial.label: record for record in runner.run(runner.plan(), bench.heard)}


def in_process(bench: Bench, suite: Path, only: str = "*") -> dict[str, Record]:
    """The same with one worker, in this process and in another store."""
    return bench.run(suite, store=bench.root / "alone", debug=True, only=only)


def assert_alike(found: Record, wanted: Record) -> None:
    assert found.status is wanted.status is Status.OK
    assert found.key == wanted.key
    assert found.metrics == pytest.approx(wanted.metrics, abs=1e-6)
    for name in ("steps", "queries", "encoder_tokens", "encoder_flops"):
        assert found.spent[name] == wanted.spent[name], name


def test_workers_on_two_nodes_give_the_figures_and_the_key_of_one(bench: Bench) -> None:
    methods = {
        "hard": {"method": "dexml", "negatives": "hard", **SMALL},
        "ova": {"method": "ova", **SMALL},
        "popular": {"method": "fake-ok"},
    }
    suite = bench.suite(methods, budget={"steps": 6})
    records = on_ray(bench, suite, **TWO_NODES)
    for label, wanted in in_process(bench, suite).items():
        assert_alike(records[label], wanted)
    assert {label: record.workers for label, record in records.items()} == {"hard": 2, "ova": 2, "popular": 1}
    assert not list(bench.root.glob("results/trials/*/ray")), "what Ray Train kept while they ran"


def test_workers_that_share_no_store_exchange_checkpoints_and_the_driver_brings_the_outcome(bench: Bench) -> None:
    suite = bench.suite(
        {"table": {"method": "ova", **SMALL}, "crash": {"method": "fake-crash"}},
        budget={"steps": 8},
        selection={"queries": 6, "evaluations": 2},  # the best weights are of all workers
    )
    storage = bench.root / "storage"
    records = on_ray(bench, suite, executor=RayExecutor(storage=f"file://{storage}"), workers=2)
    table, crash = records["table"], records["crash"]
    assert_alike(table, in_process(bench, suite, only="table")["table"])
    assert {path.name for path in bench.store.directory(table.key).iterdir()} >= {"record.json", "model", "log.txt"}
    assert bench.store.predictions(table.key)[0].k == 20
    assert bench.store.record(table.key) == table
    assert crash.failure is not None
    assert (crash.failure.message, "about to divide" in crash.failure.log_tail) == ("no way on", True)
    assert [path.name for path in storage.iterdir()] == [crash.key], "what --retry goes on from"


class Killer(Heard):
    """A display that does harm when it hears of a step: it kills a worker, unless told otherwise."""

    def __init__(self, at: int, harm: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.at, self.harm, self.steps, self.done = at, harm or self.kill_a_worker, [], False

    @property
    def back(self) -> list[int]:
        """The steps that were heard of after later ones."""
        return [later for earlier, later in pairwise(self.steps) if later < earlier]

    def progress(self, planned: PlannedTrial, progress: Progress) -> None:  # noqa: ARG002  (there is but one)
        if "step" not in progress.metrics:
            return
        self.steps.append(int(progress.metrics["step"]))
        if self.steps[-1] >= self.at and not self.done:
            self.done = True
            self.harm()

    @staticmethod
    def kill_a_worker() -> None:
        os.kill([pid for pid in psutil.pids() if "ray::RayTrainWorker" in name_of(pid)][-1], signal.SIGKILL)


def test_a_worker_that_is_killed_costs_the_steps_since_the_checkpoint_and_nothing_else(bench: Bench) -> None:
    selection = {"queries": 6, "evaluations": 4}  # each writes a checkpoint
    suite = bench.suite({"hard": {"method": "dexml", **SMALL}}, budget={"steps": 120}, selection=selection)
    killer = Killer(at=50)
    record = on_ray(bench, suite, killer, workers=2)["hard"]
    assert killer.back[0] > 20, "it went back to a checkpoint; the first is at a quarter of the budget"
    assert_alike(record, in_process(bench, suite)["hard"])


def test_where_a_node_is_lost_fewer_workers_go_on(bench: Bench, cluster: Any) -> None:
    selection = {"queries": 6, "evaluations": 4}
    suite = bench.suite({"table": {"method": "ova", **SMALL}}, budget={"steps": 400}, selection=selection)
    (lost,) = cluster.worker_nodes
    assert until(all_is_free), "else it begins with one worker"
    killer = Killer(120, lambda: cluster.remove_node(lost, allow_graceful=False))
    try:
        record = on_ray(bench, suite, killer, **TWO_NODES, min_workers=1)["table"]
    finally:
        cluster.add_node(num_cpus=CPUS, object_store_memory=OBJECT_STORE_BYTES)
    assert killer.back[0] > 80
    assert record.workers == 1
    assert_alike(record, in_process(bench, suite)["table"])


class Impatient(Heard):
    """A display that has an hour pass when it hears of a step."""

    def __init__(self, executor: RayExecutor) -> None:
        super().__init__()
        self.executor = executor

    def progress(self, planned: PlannedTrial, progress: Progress) -> None:
        if progress.stage == "train" and planned.trial.label == "slow":
            self.executor._running[planned.trial.key].running.start -= 3600


def test_what_becomes_of_trials_that_do_not_end_well(bench: Bench) -> None:
    executor = RayExecutor()
    methods = {name: {"method": f"fake-{name}"} for name in ("crash", "slow", "ok")}
    records = on_ray(bench, bench.suite(methods, timeout=3600), Impatient(executor), executor)
    assert {label: str(record.status) for label, record in records.items()} == {
        "crash": "error", "slow": "timeout", "ok": "ok"
    }  # fmt: skip
    crash, slow = records["crash"].failure, records["slow"].failure
    assert crash is not None
    assert (crash.type, crash.message, crash.stage) == ("ValueError", "no way on", "fit")
    assert "about to divide" in crash.log_tail
    assert slow is not None
    assert slow.message == "killed after 3600 seconds of wall clock"
    pids = json.loads(next(bench.root.glob("results/trials/*/processes.json")).read_text())
    assert all(until(lambda pid=pid: gone(pid)) for pid in pids)


class WorkerGroupError(Exception):
    """As Ray Train's, which says what became of each worker."""

    def __init__(self, *failures: Exception) -> None:
        super().__init__("Training failed due to worker errors")
        self.worker_failures = dict(enumerate(failures))


class ActorDiedError(Exception):
    """As Ray's."""


class OutOfMemoryError(Exception):
    """As Ray's."""


@pytest.mark.parametrize(
    ("problem", "status", "kind"),
    [
        (WorkerGroupError(ActorDiedError("\nThe actor died.\nIts log:")), Status.ERROR, "ActorDiedError"),
        (WorkerGroupError(OutOfMemoryError("The actor died.")), Status.OOM, "OutOfMemoryError"),
        (ActorDiedError("The actor died."), Status.ERROR, "ActorDiedError"),
    ],
)
def test_workers_that_die_again_and_again_get_a_record(problem: Exception, status: Status, kind: str) -> None:
    class Rays:
        def get(self, _reference: object) -> None:
            raise problem

    executor = RayExecutor()
    executor._ray = Rays()
    found = executor._death(object())
    assert (found.status, found.kind) == (status, kind)
    assert found.message.endswith("restarted at most 3 times: The actor died.")


def test_a_full_disk_ends_the_run(bench: Bench) -> None:
    suite = bench.suite(["fake-full-disk"])
    with pytest.raises(StoreError, match="No space left"):
        on_ray(bench, suite)
    assert bench.plan(suite)["full-disk"][0] == "resume"


def test_more_than_the_cluster_has_is_an_error_before_anything_runs(bench: Bench) -> None:
    suite = bench.suite(["fake-ok"], resources={"trials": {"o*": {"cpus": 99}}})
    with pytest.raises(XMCBenchError, match="1 workers, each of 99 CPUs and 0 GPUs, and the Ray cluster has 4 CPUs"):
        on_ray(bench, suite)
    assert bench.plan(suite)["ok"][0] == "run"


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(XMCBenchError, match=r"--executor ray needs ray.*: pip install 'xmcbench\[ray\]'"):
        RayExecutor().__enter__()


def test_there_is_room_for_as_many_as_fit() -> None:
    executor = RayExecutor()
    executor._total = {"CPU": 4.0, "GPU": 1.0}
    assert executor.has_room(Needs(workers=4))
    executor._running["a"] = _RayTrial(RunningTrial(Task(None, Needs(workers=2), 1.0, print)), None)
    assert executor.has_room(Needs(workers=2))
    assert not executor.has_room(Needs(workers=3))
    assert executor.has_room(Needs(workers=1, gpus=1.0))
    assert not executor.has_room(Needs(workers=3, min_workers=1)), "it waits for all that it can have"


def start(bench: Bench, suite: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, "run", str(suite), "--store", "results",
         "--executor", "ray", *options],
        cwd=bench.root,
        env={**os.environ, "XMCBENCH_CACHE": str(bench.root / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip


def test_two_drivers_run_each_trial_once(bench: Bench, cluster: Any) -> None:
    suite = bench.suite({"one": {"method": "fake-ok"}, "two": {"method": "fake-ok", "width": 8}})
    drivers = [start(bench, suite, "--address", cluster.address) for _ in range(2)]
    for driver in drivers:
        output, _ = driver.communicate(timeout=120)
        assert driver.returncode == 0, output
        assert "ray" not in output.lower().replace(str(suite).lower(), ""), output
    fits = [path.read_text() for path in bench.root.glob("results/trials/*/fits.txt")]
    assert fits == ["fit\n", "fit\n"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["SIGKILL", "SIGINT"])
def test_a_driver_that_ends_leaves_nothing_that_trains_and_its_rerun_goes_on(bench: Bench, how: signal.Signals) -> None:
    suite = bench.suite(["fake-ok", "fake-slow"], budget={"steps": 10**6})
    driver = start(bench, suite)  # with a cluster of its own
    steps: Callable[[], list[Path]] = lambda: list(bench.root.glob("results/trials/*/checkpoint/steps"))  # noqa: E731
    ended: Callable[[], list[Path]] = lambda: list(bench.root.glob("results/trials/*/record.json"))  # noqa: E731
    assert until(lambda: bool(steps() and ended()), 200), driver.kill()
    # What a method starts itself is its own business once the raylet is gone too: fake-slow's child sleeps on. Agents
    # of Ray's own, which train nothing, look for their raylet about once a minute.
    names = {each.pid: name_of(each.pid) for each in psutil.Process(driver.pid).children(recursive=True)}
    started = [pid for pid, name in names.items() if "ray" in name and "Agent" not in name]
    assert any("ray::train" in names[pid] for pid in started)
    driver.send_signal(how)
    output, _ = driver.communicate(timeout=60)
    if how is signal.SIGINT:
        assert driver.returncode == 130, output
        assert "interrupted" in output
    assert until(lambda: all(gone(pid) for pid in started), 60)
    done = len(steps()[0].read_text().split())

    assert {label: action for label, (action, _) in bench.plan(suite).items()} == {"ok": "hit", "slow": "resume"}
    (bench.root / "cache" / "hurry").touch()
    records = on_ray(bench, suite)
    assert bench.heard.begun == ["slow"]
    assert records["slow"].status is Status.OK
    assert records["slow"].spent["steps"] == done
    assert np.all([path.read_text() == "fit\n" for path in bench.root.glob("results/trials/*/fits.txt")])
