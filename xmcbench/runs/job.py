"""The job of a worker: the trial and its options, and the record that it leads to."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from xmcbench.errors.secrets import end_of_file
from xmcbench.trial.provenance import provenance
from xmcbench.trial.record import Record, Status
from xmcbench.trial.run import CheckpointExchange
from xmcbench.trial.store import Store
from xmcbench.trial.trial import Trial

LOG_TAIL = 2048  # characters of log.txt in the record of a failure


def log_tail(directory: Path) -> str:
    """The last lines of a trial's log, without secrets."""
    try:
        return end_of_file(directory / "log.txt", LOG_TAIL)
    except OSError:
        return ""


def now() -> str:
    """UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class WorkerRank:
    """The place of a process among the workers of a trial, and what the trial may do to it."""

    rank: int = 0
    size: int = 1
    rendezvous: Path | None = None  # a file over which the workers still have to find each other
    exchange: CheckpointExchange | None = None  # where the workers share no folder
    own_thread: bool = False  # its thread ends with the attempt: Landlock may restrict it
    fork: bool = False  # it may be forked before training, to load the saved model in that process


class Job(BaseModel):
    """The content of `trial.json`: enough to run the trial in another process."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    trial: Trial
    suite: str
    metrics: list[str]
    data: Path  # the folder of datasets
    cache: Path  # prepared datasets, tokenised texts
    store: Path
    chosen: dict[str, Any] = {}  # how tuning chose the configuration, for the record
    command: list[str] = []  # how the run was started, for the record
    plugin: dict[str, Any] = {}  # digest and commit of the plugin's code, for the record
    side_by_side: int = 1  # trials at once on this machine

    @property
    def directory(self) -> Path:
        """The trial's folder in the store."""
        return Store(self.store).directory(self.trial.key)

    def record(
        self,
        status: Status,
        *,
        started: str,
        spent: Mapping[str, Any],
        workers: int,
        checks: Mapping[str, str] | None = None,
        **outcome: Any,
    ) -> Record:
        """The record of the trial, which ends now; `outcome` has further fields of the record.

        `checks` says how the method's contract was checked.
        """
        more = {"plugin": self.plugin, "checks": dict(checks or {})}
        more = {name: value for name, value in more.items() if value}
        return Record(
            key=self.trial.key,
            suite=self.suite,
            trial=self.trial,
            status=status,
            spent={**spent, **({"side_by_side": self.side_by_side} if self.side_by_side > 1 else {})},
            chosen=self.chosen,
            workers=workers,
            provenance={**provenance(self.command), **more},
            started=started,
            ended=now(),
            **outcome,
        ).without_secrets()


@contextmanager
def variables(**environment: str) -> Iterator[None]:
    """Environment variables with these values in the block."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
