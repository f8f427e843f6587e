"""Runs trials on a Ray cluster, as many side by side as fit. `docs/executors.md` explains the design.

In the cluster, `train` is one task per trial, which starts its workers (`work`) through Ray Train. Samples of a tuning
run on Ray Tune: `samples.py`.
"""

from __future__ import annotations

import logging
import os
import resource
import shutil
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import Any

from xmcbench.errors import XMCBenchError, import_extra
from xmcbench.errors.secrets import redact_output
from xmcbench.runs.events import FailureRecord, decode, encode
from xmcbench.runs.executor import Death, Executor, RunningTrial, Task
from xmcbench.runs.gpus import VISIBLE
from xmcbench.runs.job import Job, WorkerRank
from xmcbench.runs.local import WORKER_ENVIRONMENT
from xmcbench.runs.worker import run_worker
from xmcbench.suite.resources import Needs
from xmcbench.trial.record import Failure, Record, Status
from xmcbench.trial.store import Store

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
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl+C ends the run at once, as with other trials
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "RAY_AIR_NEW_OUTPUT": "0",  # the new one prints a table of the experiment even where nothing is asked for
}


class ClusterLostError(XMCBenchError):
    """The cluster is gone, or the node on which this process is: no outcome of a trial, and the next run goes on."""

    def __init__(self, problem: Exception) -> None:
        reason = next((line.strip() for line in str(problem).splitlines() if line.strip()), "it says no reason")
        super().__init__(
            f"the Ray cluster or the node of this process is lost ({type(problem).__name__}: {reason}); trials that "
            "ended are in the store, and the same command goes on with the others"
        )


@dataclass
class _RayTrial(RunningTrial):
    """A running trial and its task in the cluster."""

    reference: Any = None  # of the task
    aborted: float | None = None  # when its task was interrupted, as `time.monotonic`


class RayExecutor(Executor):
    """Each trial is a Ray Train run. The driver starts those that fit and receives their events.

    This process stays connected to the cluster until it ends; a later run in the same process uses the connection.
    """

    name = "ray"
    summary = "tasks of a Ray cluster"
    options = frozenset({"address", "storage"})

    def __init__(self, address: str = LOCAL, storage: str | None = None) -> None:
        self._address = address
        self.storage = storage  # a URL that workers and driver reach, if they share no store
        self._running: dict[str, _RayTrial] = {}  # by key

    def run_samples(self, display: Any, runner: Any, search: Any) -> bool:
        """See `Executor`. Ray Tune runs them."""
        from xmcbench_plugins.ray.samples import run_samples

        return run_samples(self, display, runner, search)

    def open(self) -> None:
        known = sys.modules.get("ray")  # where this process is connected to a cluster, that is the one which is used
        if self._address == LOCAL and not (known and known.is_initialized()):
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            if 0 <= soft < OPEN_FILES:
                needed = f"a Ray cluster on this machine needs {OPEN_FILES:,} open files or more"
                raise XMCBenchError(f"ulimit -n is {soft}: {needed}")
            _require_token()
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        self._ray = ray_module("ray")
        if not self._ray.is_initialized():
            self._connect()
        self._total = self._ray.cluster_resources()
        # On the node of this process: losing a node that only trains must not end the task of a trial.
        strategies = ray_module("ray.util.scheduling_strategies")
        here = strategies.NodeAffinitySchedulingStrategy(self._ray.get_runtime_context().get_node_id(), soft=True)
        # The events of all workers, under names: of trials, their keys.
        self.mailbox = ray_module("ray.util.queue").Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})
        self._train = self._ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=here)(train)

    def close(self) -> None:
        with suppress(ray_module("ray.exceptions").RayError):  # where the cluster is lost, nothing is left to end
            for trial in self._running.values():
                self._abort(trial)
            if references := [trial.reference for trial in self._running.values()]:
                self._ray.wait(references, num_returns=len(references), timeout=ABORT_SECONDS)
            for trial in self._running.values():
                self._ray.cancel(trial.reference, force=True)
            self.mailbox.shutdown(force=True)
        self._running.clear()

    def check(self, needs: Needs) -> None:
        if not self._fitting(needs, self._total):
            wanted = f"{needs.min_workers} workers, each of {needs.cpus:g} CPUs and {self.gpus(needs):g} GPUs"
            total = f"{self._total.get('CPU', 0):g} CPUs and {self._total.get('GPU', 0):g} GPUs"
            raise XMCBenchError(f"a trial asks for {wanted}, and the Ray cluster has {total}: lower `resources`")

    def has_room(self, needs: Needs) -> bool:
        return self._fitting(needs, self._free()) == self._fitting(needs, self._total)

    def samples_at_once(self, needs: Needs) -> int:
        return max(1, self._fitting(replace(needs, workers=sys.maxsize), self._total) // needs.workers)

    def gpus(self, needs: Needs) -> float:
        """The GPUs of each worker of a trial: one where the cluster has any, unless its needs say a number."""
        return needs.gpus if needs.gpus is not None else float(self._total.get("GPU", 0) >= 1)

    def start(self, task: Task) -> None:
        needs = replace(task.needs, gpus=self.gpus(task.needs))
        reference = self._train.remote(task.job, needs, self.storage, self.environment(), self.mailbox)
        self._running[task.job.trial.key] = _RayTrial(task, reference=reference)

    def finished(self) -> list[Record]:
        done, _ = self._ray.wait([trial.reference for trial in self._running.values()], timeout=POLL_SECONDS)
        for key, event in self.events():
            if key in self._running:
                self._running[key].receive(event)
        records = []
        for key, trial in list(self._running.items()):
            if trial.reference not in done:
                if trial.overdue or trial.disk_fault or trial.failed:
                    self._abort(trial)
                continue
            records.append(self._outcome(trial))
            del self._running[key]
            shutil.rmtree(trial.task.job.directory / FOLDER, ignore_errors=True)
        return records

    def events(self) -> list[tuple[str, Any]]:
        """The events that workers have sent since the last call, each with the name under which it was sent.

        Raises ClusterLostError.
        """
        try:
            events = self.mailbox.get_nowait_batch(self.mailbox.size())
        except ray_module("ray.exceptions").RayError as problem:
            raise ClusterLostError(problem) from problem
        return [(name, decode(event) if isinstance(event, str) else event) for name, event in events]

    def environment(self) -> dict[str, str]:
        """The environment variables that are passed to workers."""
        return {name: value for name, value in os.environ.items() if name.startswith(FORWARDED)}

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
        per_worker = {"CPU": needs.cpus, "GPU": self.gpus(needs)}
        fitting = min(int(room.get(name, 0) / amount) for name, amount in per_worker.items() if amount)
        return 0 if fitting < needs.min_workers else min(fitting, needs.workers)

    def _free(self) -> dict[str, float]:
        """The resources of the cluster that no running trial uses."""
        free = dict(self._total)
        for trial in self._running.values():
            needs = trial.task.needs
            workers = self._fitting(needs, self._total)
            free["CPU"] = free.get("CPU", 0) - workers * needs.cpus
            free["GPU"] = free.get("GPU", 0) - workers * self.gpus(needs)
        return free

    def _outcome(self, trial: _RayTrial) -> Record:
        """The record of a trial whose task has ended. Raises ClusterLostError where the task's node has."""
        death = Status.ERROR, Failure(type="Exit", message="the workers ended and left no record")
        try:
            checkpoint = self._ray.get(trial.reference)
        except ray_module("ray.exceptions").NodeDiedError as problem:
            raise ClusterLostError(problem) from problem
        except Exception as problem:  # Ray and Ray Train raise many classes when processes die
            death = _death(problem)
        else:
            if self.storage is not None:
                _download(checkpoint, trial.task.job.directory)
        return trial.outcome(None if trial.overdue else death)


def _download(checkpoint: Any, directory: Path) -> None:
    """Move a trial's files from the storage into the store; the record last, as it marks the trial as finished."""
    with TemporaryDirectory(prefix=".", dir=directory) as folder:
        checkpoint.to_directory(folder)
        paths = [path for path in Path(folder).iterdir() if not path.name.startswith(".")]
        for path in sorted(paths, key=lambda path: path.name == "record.json"):
            target = directory / path.name
            if target.is_dir():
                shutil.rmtree(target)
            path.replace(target)
    checkpoint.filesystem.delete_dir(str(Path(checkpoint.path).parent))


def _death(problem: Exception) -> Death:
    """Why a trial ended without a record, its task with `problem`."""
    cause = getattr(problem, "cause", None)
    causes = [problem, cause, *getattr(cause or problem, "worker_failures", {}).values()]
    last = [cause for cause in causes if cause is not None][-1]
    memory = any("OutOfMemory" in type(cause).__name__ for cause in causes)
    reason = next((line for line in str(last).splitlines() if line.strip()), type(last).__name__)
    message = f"the workers died and were restarted at most {RESTARTS} times: {reason}"
    return Status.OOM if memory else Status.ERROR, Failure(type=type(last).__name__, message=message)


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


RESTARTS = 3  # of a trial whose workers died; it continues from its checkpoint each time
FOLDER = "ray"  # in a trial's directory while it runs: files of Ray Train
# By default Ray Train polls its workers every two seconds and captures what they print.
TRAIN_SETTINGS = {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2", "RAY_TRAIN_ENABLE_PRINT_PATCH": "0"}


class TrialFailedError(XMCBenchError):
    """Raised in a worker that has recorded why its trial failed, so that Ray Train ends the others."""


def train(job: Job, needs: Needs, storage: str | None, environment: dict[str, str], mailbox: Any) -> Any:
    """Run the workers of a trial, again if they die. Raises what Ray Train raises after the last restart.

    With `storage` the workers share no folder: the trial's files are a Ray checkpoint there, which is returned.
    """
    os.environ.update(TRAIN_SETTINGS)
    workers, fewest, gpus = needs.workers, needs.min_workers, needs.gpus or 0.0
    ray_train, ray_torch = ray_module("ray.train"), ray_module("ray.train.torch")
    trainer = ray_torch.TorchTrainer(
        work,
        torch_config=ray_torch.TorchConfig(backend=backend(needs)),
        train_loop_config={"job": job, "storage": storage, "environment": environment, "mailbox": mailbox},
        scaling_config=ray_train.ScalingConfig(
            num_workers=workers if fewest == workers else (fewest, workers),
            use_gpu=gpus > 0,
            resources_per_worker={"CPU": needs.cpus, **({"GPU": gpus} if gpus else {})},
        ),
        run_config=ray_train.RunConfig(
            name=job.trial.key if storage else FOLDER,
            storage_path=storage or str(job.directory),
            checkpoint_config=ray_train.CheckpointConfig(num_to_keep=2),
            failure_config=ray_train.FailureConfig(max_failures=RESTARTS),
        ),
    )
    handler = signal.getsignal(signal.SIGINT)
    try:
        return trainer.fit().checkpoint
    finally:
        signal.signal(signal.SIGINT, handler)  # Ray Train's handler references its actors, and this process lives on


def backend(needs: Needs) -> str:
    """The backend of collectives: NCCL refuses two workers on one GPU, and one worker talks to nobody."""
    return "nccl" if needs.workers > 1 and (needs.gpus or 0.0) >= 1 else "gloo"


def work(config: dict[str, Any]) -> None:
    """Run one worker of a trial. Ray Train calls this in each worker, after the workers have joined a group.

    The record of a failure is sent to the driver.
    """
    os.environ.update(config["environment"])
    use_own_gpus()
    job, mailbox, exchange = config["job"], config["mailbox"], None
    key, context = job.trial.key, ray_module("ray.train").get_context()
    with TemporaryDirectory(prefix="xmcbench-") as scratch:
        if config["storage"]:
            job = job.model_copy(update={"store": Path(scratch)})
            job.directory.mkdir(parents=True)
            exchange = RayStorage(job.directory / "checkpoint")
        elif Store(job.store).record(key):  # the trial failed, and this group was started in place of the failed one
            return
        worker = WorkerRank(context.get_world_rank(), context.get_world_size(), exchange=exchange, own_thread=True)
        record = run_attempt(job, worker, key, mailbox)
        if record is not None and record.failure:
            mailbox.put((key, encode(FailureRecord(record.model_dump_json()))))
            raise TrialFailedError(record.failure.message)
        if exchange:
            _report(job.directory if record else None)


def use_own_gpus() -> None:
    """Compute on the GPU that Ray has given to this worker; where it gave none, see none.

    Ray hides no GPU of a node from workers that asked for none. The workers of a trial see all GPUs that they have on
    one node, and would all take the first one.
    """
    if not ray_module("ray").get_gpu_ids():
        os.environ[VISIBLE] = ""
        return
    device = ray_module("ray.train.torch").get_device()
    import torch

    if device.type == "cuda" and torch.cuda.is_available():
        torch.cuda.set_device(device)


class RayStorage:
    """Exchanges checkpoints through the storage of Ray Train."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def upload(self) -> None:
        _report(self._folder)

    def download(self) -> None:
        if latest := ray_module("ray.train").get_checkpoint():
            latest.to_directory(self._folder)


def run_attempt(job: Job, worker: WorkerRank, name: str, mailbox: Any) -> Record | None:
    """Run a worker's part of a trial. Its output goes to the log; progress and disk faults to the driver, as `name`."""
    with (job.directory / "log.txt").open("ab") as log:
        for number, stream in enumerate((sys.stdout, sys.stderr), start=1):
            stream.flush()
            os.dup2(log.fileno(), number)
    redact_output()
    return run_worker(job, worker, lambda event: mailbox.put((name, encode(event))))


def _report(folder: Path | None) -> None:
    """Upload a folder to the storage. All workers call this in the same step; their files are merged."""
    train = ray_module("ray.train")
    train.report({}, checkpoint=train.Checkpoint.from_directory(folder) if folder else None)


def ray_module(name: str) -> Any:
    """A module of Ray, which is an extra."""
    return import_extra(name, "ray", "--executor ray")
