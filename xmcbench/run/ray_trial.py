"""What runs in a Ray cluster: a task a trial, which has Ray Train run the trial's workers, and what each one does."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from xmcbench.errors import XMCBenchError
from xmcbench.plugins.extras import import_extra
from xmcbench.run.attempt import Attempt
from xmcbench.run.job import Job, Post
from xmcbench.run.worker import as_event, carry_out
from xmcbench.trial.record import Record
from xmcbench.trial.store import Store, StoreError

PURPOSE = "--executor ray"
RESTARTS = 3  # of a trial whose workers died; it goes on from its checkpoint each time
FOLDER = "ray"  # in a trial's directory, while it runs: what Ray Train keeps
# Ray Train looks at its workers every two seconds and takes what they print for itself, unless told otherwise.
TRAIN_SETTINGS = {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2", "RAY_TRAIN_ENABLE_PRINT_PATCH": "0"}


class TrialFailedError(XMCBenchError):
    """A worker has recorded why its trial failed; raised so that the others end too."""


class Mailbox:
    """An actor: what the workers of all trials tell the driver, until it looks."""

    def __init__(self) -> None:
        self._events: list[tuple[str, dict[str, Any]]] = []

    def tell(self, key: str, event: dict[str, Any]) -> None:
        self._events.append((key, event))

    def take(self) -> list[tuple[str, dict[str, Any]]]:
        """What was told since the last call: of which trial, and what."""
        events, self._events = self._events, []
        return events


def train(job: str, needs: dict[str, Any], storage: str | None, environment: dict[str, str], mailbox: Any) -> Any:
    """Have the workers of a trial run, and run again where they died. Raises what Ray Train raises in the end.

    With `storage` the workers share no folder: what comes of the trial is a checkpoint there, which is returned.
    """
    os.environ.update(TRAIN_SETTINGS)
    workers, fewest, gpus = needs["workers"], needs["min_workers"], needs["gpus"]
    told = Job.model_validate_json(job)
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
            name=told.trial.key if storage else FOLDER,
            storage_path=storage or str(Store(told.store).directory(told.trial.key)),
            checkpoint_config=ray_train.CheckpointConfig(num_to_keep=2),
            failure_config=ray_train.FailureConfig(max_failures=RESTARTS),
        ),
    )
    handler = signal.getsignal(signal.SIGINT)
    try:
        return trainer.fit().checkpoint
    finally:
        signal.signal(signal.SIGINT, handler)  # Ray Train's own holds on to its actors, and this process lives on


def work(config: dict[str, Any]) -> None:
    """Be one of the workers of a trial. Ray Train has put them into a group, and calls this in each."""
    os.environ.update(config["environment"])
    job = Job.model_validate_json(config["job"])
    if not config["storage"]:
        _carry_out(job, None, config["mailbox"])
        return
    with TemporaryDirectory(prefix="xmcbench-") as scratch:
        job = job.model_copy(update={"store": Path(scratch)})
        directory = Store(job.store).directory(job.trial.key)
        directory.mkdir(parents=True)
        record = _carry_out(job, RayStorage(directory / "checkpoint"), config["mailbox"])
        _report(directory if record else None)


class RayStorage:
    """Exchanges checkpoints through the storage of Ray Train."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def upload(self) -> None:
        _report(self._folder)

    def download(self) -> None:
        if kept := _ray("ray.train").get_checkpoint():
            kept.to_directory(self._folder)


def _carry_out(job: Job, exchange: RayStorage | None, mailbox: Any) -> Record | None:
    """Do a worker's part of a trial; a failure is told to the driver, and raised."""
    ray, context = _ray("ray"), _ray("ray.train").get_context()
    store, key = Store(job.store), job.trial.key
    if store.record(key):  # this group took the place of one that had failed for good
        return None
    _write_to(store.directory(key) / "log.txt")
    attempt = Attempt(job, post=Post(context.get_world_rank(), context.get_world_size()), exchange=exchange)
    attempt.watch = lambda progress: mailbox.tell.remote(key, as_event(progress))
    try:
        record = carry_out(attempt)
    except (OSError, StoreError) as problem:
        ray.get(mailbox.tell.remote(key, {"disk": str(problem)}))
        raise
    if record is not None and record.failure:
        ray.get(mailbox.tell.remote(key, {"record": record.model_dump_json()}))
        raise TrialFailedError(record.failure.message)
    return record


def _report(folder: Path | None) -> None:
    """Keep a folder in the storage. Every worker calls this at the same time; what they give is put together."""
    ray_train = _ray("ray.train")
    ray_train.report({}, checkpoint=ray_train.Checkpoint.from_directory(folder) if folder else None)


def _ray(module: str) -> Any:
    return import_extra(module, "ray", PURPOSE)


def _write_to(path: Path) -> None:
    """Have all that this process prints go to the file `path`."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
