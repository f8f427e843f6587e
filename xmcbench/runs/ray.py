"""Runs trials on a Ray cluster, as many side by side as fit. `docs/executors.md` explains the design."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any, Self

from xmcbench.errors import XMCBenchError
from xmcbench.plugins.extras import import_extra
from xmcbench.runs.executor import Death, RunningTrial, Task
from xmcbench.runs.local import WORKER_ENVIRONMENT
from xmcbench.runs.ray_trial import FOLDER, PURPOSE, RESTARTS, Mailbox, train
from xmcbench.suite.resources import Needs
from xmcbench.trial.record import Record, Status

LOCAL = "local"  # address: start a cluster on this machine for the run
POLL_SECONDS = 0.2
ABORT_SECONDS = 30.0  # between interrupting a trial's task and killing it
OPEN_FILES = 256  # with 64 a cluster loses its node in the middle of a trial
OBJECT_STORE_BYTES = 100 * 2**20  # of a cluster started here: nothing large goes through it
OPEN = "XMCBENCH_OPEN_RAY"  # environment variable: 1 asks for a cluster without authentication
FORWARDED = ("XMCBENCH_", "HF_")  # prefixes of the environment variables that are passed to workers
# Environment of a cluster started here and of this process.
SETTINGS = {
    **WORKER_ENVIRONMENT,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # Ray's own messages stay in its logs
    "RAY_raylet_start_wait_time_s": "120",  # a busy machine starts slowly
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # otherwise a warning per run
    "RAY_worker_niceness": "0",  # the default of 15 lets every other process go first
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # otherwise a useless process per trial
}


@dataclass
class _RayTrial:
    """A running trial and its task in the cluster."""

    running: RunningTrial
    reference: Any  # of the task
    aborted: float | None = None  # when its task was interrupted, as `time.monotonic`


class RayExecutor:
    """Each trial is a Ray Train run. The driver starts those that fit and receives their events.

    This process stays connected to the cluster until it ends; a later run in the same process uses the connection.
    """

    def __init__(self, address: str = LOCAL, storage: str | None = None) -> None:
        self._address = address
        self.storage = storage  # a URL that workers and driver reach, if they share no store
        self._running: dict[str, _RayTrial] = {}  # by key

    def __enter__(self) -> Self:
        known = sys.modules.get("ray")  # where this process is connected to a cluster, that is the one which is used
        if self._address == LOCAL and not (known and known.is_initialized()):
            _require_files()
            _require_token()
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        self._ray = import_extra("ray", "ray", PURPOSE)
        if not self._ray.is_initialized():
            self._connect()
        self._total = self._ray.cluster_resources()
        # On the node of this process: losing a node that only trains must not end the task of a trial.
        strategies = import_extra("ray.util.scheduling_strategies", "ray", PURPOSE)
        here = strategies.NodeAffinitySchedulingStrategy(self._ray.get_runtime_context().get_node_id(), soft=True)
        self.mailbox = self._ray.remote(num_cpus=0, scheduling_strategy=here)(Mailbox).remote()
        self._train = self._ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=here)(train)
        return self

    def __exit__(self, *problem: object) -> None:
        for trial in self._running.values():
            self._abort(trial)
        if references := self._references():
            self._ray.wait(references, num_returns=len(references), timeout=ABORT_SECONDS)
        for trial in self._running.values():
            self._ray.cancel(trial.reference, force=True)
        self._running.clear()
        self._ray.kill(self.mailbox)

    def check(self, needs: Needs) -> None:
        if not self._fitting(needs, self._total):
            wanted = f"{needs.min_workers} workers, each of {needs.cpus:g} CPUs and {needs.gpus:g} GPUs"
            total = f"{self._total.get('CPU', 0):g} CPUs and {self._total.get('GPU', 0):g} GPUs"
            raise XMCBenchError(f"a trial asks for {wanted}, and the Ray cluster has {total}: lower `resources`")

    def has_room(self, needs: Needs) -> bool:
        return self._fitting(needs, self._free()) == self._fitting(needs, self._total)

    def start(self, task: Task) -> None:
        job, needs = task.job.model_dump_json(), asdict(task.needs)
        reference = self._train.remote(job, needs, self.storage, self.environment(), self.mailbox)
        self._running[task.job.trial.key] = _RayTrial(RunningTrial(task), reference)

    def finished(self) -> list[Record]:
        done, _ = self._ray.wait(self._references(), timeout=POLL_SECONDS)
        for key, event in self.events():
            if key in self._running:
                self._running[key].running.receive(event)
        records = []
        for key, trial in list(self._running.items()):
            running = trial.running
            if trial.reference not in done:
                if running.overdue or running.disk_fault or running.failed:
                    self._abort(trial)
                continue
            self._download(running, trial.reference)
            death = running.timed_out if running.overdue else partial(self._death, trial.reference)
            records.append(running.outcome(death))
            del self._running[key]
            shutil.rmtree(running.directory / FOLDER, ignore_errors=True)
        return records

    def events(self) -> list[tuple[str, dict[str, Any]]]:
        """What workers have sent since the last call, with the names under which they sent it."""
        events: list[tuple[str, dict[str, Any]]] = self._ray.get(self.mailbox.take.remote())
        return events

    def environment(self) -> dict[str, str]:
        """The environment variables that are passed to workers."""
        return {name: value for name, value in os.environ.items() if name.startswith(FORWARDED)}

    def capacity(self, needs: Needs) -> int:
        """The number of trials of one worker that the whole cluster has room for."""
        return self._fitting(replace(needs, workers=sys.maxsize), self._total)

    def kill(self, actor: Any) -> None:
        self._ray.kill(actor)

    def _references(self) -> list[Any]:
        return [trial.reference for trial in self._running.values()]

    def _abort(self, trial: _RayTrial) -> None:
        """Interrupt a trial's task, which makes Ray Train end the workers; kill the task if that takes too long.

        A task that is killed while Ray Train restarts the workers leaves the CPUs that it reserved for them reserved
        until the driver ends: the placement group is registered for cleaning only after the workers have started.
        """
        now = time.monotonic()
        if trial.aborted is None:
            trial.aborted = now
            self._ray.cancel(trial.reference, force=False, recursive=False)
        elif now > trial.aborted + ABORT_SECONDS:
            self._ray.cancel(trial.reference, force=True)

    def _connect(self) -> None:
        settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self._address == LOCAL:
            settings |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
        try:
            self._ray.init(self._address, **settings)
        except Exception as problem:  # Ray raises no narrower class if its processes do not start
            reason = str(problem).splitlines()[0]
            raise XMCBenchError(f"--address {self._address}: no Ray cluster answers: {reason}") from problem

    def _fitting(self, needs: Needs, room: dict[str, float]) -> int:
        """The number of a trial's workers that fit into `room`; 0 if fewer than `min_workers` fit."""
        per_worker = {"CPU": needs.cpus, "GPU": needs.gpus}
        fitting = min(int(room.get(name, 0) / amount) for name, amount in per_worker.items() if amount)
        return 0 if fitting < needs.min_workers else min(fitting, needs.workers)

    def _free(self) -> dict[str, float]:
        """The resources of the cluster that no running trial uses."""
        free = dict(self._total)
        for trial in self._running.values():
            needs = trial.running.task.needs
            workers = self._fitting(needs, self._total)
            free["CPU"] = free.get("CPU", 0) - workers * needs.cpus
            free["GPU"] = free.get("GPU", 0) - workers * needs.gpus
        return free

    def _download(self, running: RunningTrial, reference: Any) -> None:
        """Move a trial's files from the storage into the store; the record last, as it marks the trial as finished."""
        if self.storage is None:
            return
        try:
            checkpoint = self._ray.get(reference)
        except Exception:  # `_death` reports it
            return
        with tempfile.TemporaryDirectory(prefix=".", dir=running.directory) as folder:
            checkpoint.to_directory(folder)
            paths = [path for path in Path(folder).iterdir() if not path.name.startswith(".")]
            for path in sorted(paths, key=lambda path: path.name == "record.json"):
                target = running.directory / path.name
                if target.is_dir():
                    shutil.rmtree(target)
                path.replace(target)
        checkpoint.filesystem.delete_dir(str(Path(checkpoint.path).parent))

    def _death(self, reference: Any) -> Death:
        """Why a trial ended without a record."""
        try:
            self._ray.get(reference)
        except Exception as problem:  # Ray and Ray Train raise many classes when processes die
            cause = getattr(problem, "cause", None)
            causes = [problem, cause, *getattr(cause or problem, "worker_failures", {}).values()]
            last = [cause for cause in causes if cause is not None][-1]
            memory = any("OutOfMemory" in type(cause).__name__ for cause in causes)
            reason = next((line for line in str(last).splitlines() if line.strip()), type(last).__name__)
            message = f"the workers died and were restarted at most {RESTARTS} times: {reason}"
            return Death(Status.OOM if memory else Status.ERROR, type(last).__name__, message)
        return Death(Status.ERROR, "Exit", "the workers ended and left no record")


def _require_files() -> None:
    """Refuse to start a cluster that would lose its node for want of open files."""
    if sys.platform == "win32":
        return
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < OPEN_FILES:
        raise XMCBenchError(
            f"ulimit -n is {soft}: a Ray cluster on this machine needs {OPEN_FILES:,} open files or more"
        )


def _require_token() -> None:
    """Have the cluster that is started here ask for a token: Ray listens on all interfaces, and runs what it is sent.

    Its processes inherit the token from this one, in the environment. Raises XMCBenchError where authentication is off.
    """
    if sys.modules.get("ray") is None:  # Ray reads its mode when it is imported, which a plugin may have done
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    mode = os.environ.get("RAY_AUTH_MODE", "disabled")
    if mode != "token" and os.environ.get(OPEN) != "1":
        raise XMCBenchError(
            f"RAY_AUTH_MODE={mode}: whoever reaches this machine could run code in the cluster; expected token, "
            f"or {OPEN}=1 if that is meant"
        )
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        os.environ["RAY_AUTH_TOKEN"] = token_hex(32)
