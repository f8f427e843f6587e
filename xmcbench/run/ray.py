"""Trials on a Ray cluster, as many side by side as it has room for. `docs/executors.md` says why it is done so."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Self

from xmcbench.errors import XMCBenchError
from xmcbench.plugins.extras import import_extra
from xmcbench.run.executor import Task, Watch
from xmcbench.run.local import WORKER_ENVIRONMENT
from xmcbench.run.ray_trial import FOLDER, PURPOSE, RESTARTS, Mailbox, train
from xmcbench.suite.resources import Needs
from xmcbench.trial.record import Record, Status

LOCAL = "local"  # the address of a cluster of this machine alone, started for the run
POLL_SECONDS = 0.2
OBJECT_STORE_BYTES = 100 * 2**20  # of a cluster that is started here: nothing large goes through it
FORWARDED = ("XMCBENCH_", "HF_")  # variables of this process that hold for workers too
# For a cluster that is started here, and this process.
SETTINGS = {
    **WORKER_ENVIRONMENT,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # nothing that Ray prints of itself, its warnings included; it is in its logs
    "RAY_raylet_start_wait_time_s": "120",  # a busy machine takes its time
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # without, a warning a run
    "RAY_worker_niceness": "0",  # Ray's own is 15: a trial would wait for whatever else the machine does
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # a process a trial that has nothing to watch on one machine
}


class RayExecutor:
    """Each trial is a Ray Train run; the driver starts those there is room for, and hears how they go.

    This process stays connected to the cluster until it ends: another run in it finds it there.
    """

    def __init__(self, address: str = LOCAL, storage: str | None = None) -> None:
        self._address = address
        self._storage = storage  # where workers and driver share no store: a URL that all of them reach
        self._running: dict[str, tuple[Watch, Any]] = {}

    def __enter__(self) -> Self:
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        self._ray = import_extra("ray", "ray", PURPOSE)
        if not self._ray.is_initialized():
            self._connect()
        self._total = self._ray.cluster_resources()
        # Where this process is: what steers a trial must not go with a node that only trains.
        strategies = import_extra("ray.util.scheduling_strategies", "ray", PURPOSE)
        here = strategies.NodeAffinitySchedulingStrategy(self._ray.get_runtime_context().get_node_id(), soft=True)
        self._mailbox = self._ray.remote(num_cpus=0, scheduling_strategy=here)(Mailbox).remote()
        self._train = self._ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=here)(train)
        return self

    def __exit__(self, *problem: object) -> None:
        for _, reference in self._running.values():
            self._stop(reference)
        self._running.clear()
        self._ray.kill(self._mailbox)

    def check(self, needs: Needs) -> None:
        if not self._fitting(needs, self._total):
            asked = f"{needs.min_workers} workers, each of {needs.cpus:g} CPUs and {needs.gpus:g} GPUs"
            has = f"{self._total.get('CPU', 0):g} CPUs and {self._total.get('GPU', 0):g} GPUs"
            raise XMCBenchError(f"a trial asks for {asked}, and the Ray cluster has {has}: lower `resources`")

    def takes(self, needs: Needs) -> bool:
        return self._fitting(needs, self._free()) == self._fitting(needs, self._total)

    def start(self, task: Task) -> None:
        environment = {name: value for name, value in os.environ.items() if name.startswith(FORWARDED)}
        job = task.job.model_dump_json()
        reference = self._train.remote(job, asdict(task.needs), self._storage, environment, self._mailbox)
        self._running[task.job.trial.key] = Watch(task), reference

    def ended(self) -> list[Record]:
        over, _ = self._ray.wait([reference for _, reference in self._running.values()], timeout=POLL_SECONDS)
        for key, event in self._ray.get(self._mailbox.take.remote()):
            if key in self._running:
                self._running[key][0].hear(event)
        records = []
        for key, (watch, reference) in list(self._running.items()):
            if reference in over:
                self._collect(watch, reference)
                records.append(watch.outcome(partial(self._verdict, reference)))
            elif watch.overdue:
                self._stop(reference)
                records.append(watch.outcome(watch.timed_out))
            elif watch.disk or watch.failed:
                self._stop(reference)  # before Ray Train starts its workers again
                records.append(watch.outcome(watch.timed_out))
            else:
                continue
            del self._running[key]
            shutil.rmtree(watch.directory / FOLDER, ignore_errors=True)
        return records

    def _connect(self) -> None:
        settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self._address == LOCAL:
            settings |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
        try:
            self._ray.init(self._address, **settings)
        except Exception as problem:  # Ray raises no narrower class where its processes do not come up
            reason = str(problem).splitlines()[0]
            raise XMCBenchError(f"--address {self._address}: no Ray cluster answers: {reason}") from problem

    def _fitting(self, needs: Needs, room: dict[str, float]) -> int:
        """The workers that `room` holds of those a trial asks for; 0 where it holds fewer than the trial must have."""
        asked = {"CPU": needs.cpus, "GPU": needs.gpus}
        held = min(int(room.get(name, 0) / each) for name, each in asked.items() if each)
        return 0 if held < needs.min_workers else min(held, needs.workers)

    def _free(self) -> dict[str, float]:
        """What the trials that run leave of the cluster."""
        free = dict(self._total)
        for watch, _ in self._running.values():
            needs = watch.task.needs
            workers = self._fitting(needs, self._total)
            free["CPU"] = free.get("CPU", 0) - workers * needs.cpus
            free["GPU"] = free.get("GPU", 0) - workers * needs.gpus
        return free

    def _stop(self, reference: Any) -> None:
        """End a trial's task, and with it the workers that it owns."""
        self._ray.cancel(reference, force=True)
        self._ray.wait([reference], timeout=POLL_SECONDS)

    def _collect(self, watch: Watch, reference: Any) -> None:
        """Bring what came of a trial from the storage into the store; the record last, as its presence is the end."""
        if self._storage is None:
            return
        try:
            kept = self._ray.get(reference)
        except Exception:  # the verdict tells
            return
        with tempfile.TemporaryDirectory(prefix=".", dir=watch.directory) as there:
            kept.to_directory(there)
            found = [path for path in Path(there).iterdir() if not path.name.startswith(".")]
            for path in sorted(found, key=lambda path: path.name == "record.json"):
                place = watch.directory / path.name
                if place.is_dir():
                    shutil.rmtree(place)
                path.replace(place)
        kept.filesystem.delete_dir(str(Path(kept.path).parent))

    def _verdict(self, reference: Any) -> tuple[Status, str, str]:
        """What became of a trial that is over and left no record: status, kind and message."""
        try:
            self._ray.get(reference)
        except Exception as problem:  # whatever Ray and Ray Train make of the end of their processes
            causes = [problem, getattr(problem, "cause", None), *_worker_failures(problem)]
            last = [cause for cause in causes if cause is not None][-1]
            memory = any("OutOfMemory" in type(cause).__name__ for cause in causes)
            reason = next((line for line in str(last).splitlines() if line.strip()), type(last).__name__)
            message = f"the trial's workers died, were started again {RESTARTS} times at most, and died: {reason}"
            return Status.OOM if memory else Status.ERROR, type(last).__name__, message
        return Status.ERROR, "Exit", "the workers ended and left no record"


def _worker_failures(problem: BaseException) -> list[BaseException]:
    failures = getattr(getattr(problem, "cause", problem), "worker_failures", {})
    return list(failures.values())
