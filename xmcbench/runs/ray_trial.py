"""The code that runs in a Ray cluster: one task per trial, which starts its workers through Ray Train, and the samples
of a tuning, which are trials of Ray Tune."""

from __future__ import annotations

import math
import os
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from xmcbench.errors import XMCBenchError
from xmcbench.files.regular import MachineFault
from xmcbench.files.secrets import redact_output
from xmcbench.plugins.extras import import_extra
from xmcbench.runs.attempt import Attempt
from xmcbench.runs.job import Job, WorkerRank
from xmcbench.runs.tuning import quality
from xmcbench.runs.worker import as_event, run_and_record
from xmcbench.trial.record import Record
from xmcbench.trial.store import Store, StoreError

PURPOSE = "--executor ray"
RESTARTS = 3  # of a trial whose workers died; it continues from its checkpoint each time
WORST = -1.0  # the quality of a sample that has none; metrics are not negative
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


def run_sample(config: dict[str, Any]) -> None:
    """Run a sample of a tuning as a trial of Ray Tune: the trials of its budgets, one after another.

    Reports after each of them; Tune ends this process where the sample is not to go on. Trials that the store has are
    not run again, but for failures that are tried again: `again` has the ends of their records.
    """
    os.environ.update(config["environment"])
    ray, mailbox, name = _ray("ray"), config["mailbox"], config["name"]
    for rung, (content, again) in enumerate(zip(config["jobs"], config["again"], strict=True)):
        job = Job.model_validate_json(content)
        store, key = Store(job.store), job.trial.key
        actor = ray.get_runtime_context().current_actor
        ray.get(mailbox.put.remote(name, {"rung": rung, "actor": actor}))
        with store.lock(key):
            record = store.record(key)
            if record is None or record.ended == again:
                store.drop_record(key)
                store.write_json(key, "trial.json", job)
                record = _attempt(Attempt(job, own_thread=True), name, mailbox)
        assert record is not None, "the only worker is worker 0"
        value = quality(record, config["metric"])
        known = math.isfinite(value)
        _ray("ray.tune").report(
            {"rung": rung, "resource": config["growth"] ** rung, "quality": value if known else WORST}
        )
        if not known:
            return


def _run_worker(job: Job, exchange: RayStorage | None, mailbox: Any) -> Record | None:
    """Run a worker's part of a trial. A failure is sent to the driver, and raised."""
    context, key = _ray("ray.train").get_context(), job.trial.key
    if Store(job.store).record(key):  # the trial failed, and this group was started in place of the failed one
        return None
    rank = WorkerRank(context.get_world_rank(), context.get_world_size())
    record = _attempt(Attempt(job, worker=rank, exchange=exchange, own_thread=True), key, mailbox)
    if record is not None and record.failure:
        _ray("ray").get(mailbox.put.remote(key, {"record": record.model_dump_json()}))
        raise TrialFailedError(record.failure.message)
    return record


def _attempt(attempt: Attempt, name: str, mailbox: Any) -> Record | None:
    """Run a worker's part of a trial, whose progress and disk faults are sent under `name`."""
    job = attempt.job
    _redirect_output(Store(job.store).directory(job.trial.key) / "log.txt")
    redact_output()
    attempt.watch = lambda progress: mailbox.put.remote(name, as_event(progress))
    try:
        return run_and_record(attempt)
    except (OSError, StoreError, MachineFault) as problem:
        _ray("ray").get(mailbox.put.remote(name, {"disk": str(problem)}))
        raise


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
