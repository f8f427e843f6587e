"""The code that runs in a Ray cluster: one task per trial, which starts its workers through Ray Train."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from xmcbench.errors import XMCBenchError
from xmcbench.files.secrets import redact_output
from xmcbench.plugins.extras import import_extra
from xmcbench.run.attempt import Attempt
from xmcbench.run.job import Job, WorkerRank
from xmcbench.run.worker import as_event, run_and_record
from xmcbench.trial.record import Record
from xmcbench.trial.store import Store, StoreError

PURPOSE = "--executor ray"
RESTARTS = 3  # of a trial whose workers died; it continues from its checkpoint each time
FOLDER = "ray"  # in a trial's directory while it runs: files of Ray Train
# By default Ray Train polls its workers every two seconds and captures what they print.
TRAIN_SETTINGS = {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2", "RAY_TRAIN_ENABLE_PRINT_PATCH": "0"}


class TrialFailedError(XMCBenchError):
    """Raised in a worker that has recorded why its trial failed, so that Ray Train ends the others."""


class Mailbox:
    """An actor that holds the events of all workers until the driver takes them."""

    def __init__(self) -> None:
        self._events: list[tuple[str, dict[str, Any]]] = []

    def put(self, key: str, event: dict[str, Any]) -> None:
        self._events.append((key, event))

    def take(self) -> list[tuple[str, dict[str, Any]]]:
        """The events since the last call, with the keys of their trials."""
        events, self._events = self._events, []
        return events


def train(job: str, needs: dict[str, Any], storage: str | None, environment: dict[str, str], mailbox: Any) -> Any:
    """Run the workers of a trial, again if they die. Raises what Ray Train raises after the last restart.

    With `storage` the workers share no folder: the trial's files are a Ray checkpoint there, which is returned.
    """
    os.environ.update(TRAIN_SETTINGS)
    workers, fewest, gpus = needs["workers"], needs["min_workers"], needs["gpus"]
    parsed = Job.model_validate_json(job)
    ray_train = _ray("ray.train")
    trainer = _ray("ray.train.torch").TorchTrainer(
        work,
        train_loop_config={"job": job, "storage": storage, "environment": environment, "mailbox": mailbox},
        scaling_config=ray_train.ScalingConfig(
            num_workers=workers if fewest == workers else (fewest, workers),
            use_gpu=gpus > 0,
            resources_per_worker={"CPU": needs["cpus"], **({"GPU": gpus} if gpus else {})},
        ),
        run_config=ray_train.RunConfig(
            name=parsed.trial.key if storage else FOLDER,
            storage_path=storage or str(Store(parsed.store).directory(parsed.trial.key)),
            checkpoint_config=ray_train.CheckpointConfig(num_to_keep=2),
            failure_config=ray_train.FailureConfig(max_failures=RESTARTS),
        ),
    )
    handler = signal.getsignal(signal.SIGINT)
    try:
        return trainer.fit().checkpoint
    finally:
        signal.signal(signal.SIGINT, handler)  # Ray Train's handler references its actors, and this process lives on


def work(config: dict[str, Any]) -> None:
    """Run one worker of a trial. Ray Train calls this in each worker, after the workers have joined a group."""
    os.environ.update(config["environment"])
    job = Job.model_validate_json(config["job"])
    if not config["storage"]:
        _run_worker(job, None, config["mailbox"])
        return
    with TemporaryDirectory(prefix="xmcbench-") as scratch:
        job = job.model_copy(update={"store": Path(scratch)})
        directory = Store(job.store).directory(job.trial.key)
        directory.mkdir(parents=True)
        record = _run_worker(job, RayStorage(directory / "checkpoint"), config["mailbox"])
        _report(directory if record else None)


class RayStorage:
    """Exchanges checkpoints through the storage of Ray Train."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def upload(self) -> None:
        _report(self._folder)

    def download(self) -> None:
        if latest := _ray("ray.train").get_checkpoint():
            latest.to_directory(self._folder)


def _run_worker(job: Job, exchange: RayStorage | None, mailbox: Any) -> Record | None:
    """Run a worker's part of a trial. A failure is sent to the driver, and raised."""
    ray, context = _ray("ray"), _ray("ray.train").get_context()
    store, key = Store(job.store), job.trial.key
    if store.record(key):  # the trial failed, and this group was started in place of the failed one
        return None
    _redirect_output(store.directory(key) / "log.txt")
    redact_output()
    rank = WorkerRank(context.get_world_rank(), context.get_world_size())
    attempt = Attempt(job, worker=rank, exchange=exchange, own_thread=True)
    attempt.watch = lambda progress: mailbox.put.remote(key, as_event(progress))
    try:
        record = run_and_record(attempt)
    except (OSError, StoreError) as problem:
        ray.get(mailbox.put.remote(key, {"disk": str(problem)}))
        raise
    if record is not None and record.failure:
        ray.get(mailbox.put.remote(key, {"record": record.model_dump_json()}))
        raise TrialFailedError(record.failure.message)
    return record


def _report(folder: Path | None) -> None:
    """Upload a folder to the storage. All workers call this in the same step; their files are merged."""
    ray_train = _ray("ray.train")
    ray_train.report({}, checkpoint=ray_train.Checkpoint.from_directory(folder) if folder else None)


def _ray(module: str) -> Any:
    return import_extra(module, "ray", PURPOSE)


def _redirect_output(path: Path) -> None:
    """Append everything that this process prints to the file `path`."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
