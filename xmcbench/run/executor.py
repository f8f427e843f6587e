"""What runs trials, whatever it runs them on, and what the process that started a trial knows of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from xmcbench.run.attempt import Attempt, now
from xmcbench.run.job import Job
from xmcbench.run.worker import log_tail
from xmcbench.suite.resources import Needs
from xmcbench.trial.provenance import provenance
from xmcbench.trial.record import Failure, Record, Status
from xmcbench.trial.run import TrialProgress
from xmcbench.trial.store import Store, StoreError


@dataclass(frozen=True)
class Task:
    """A trial to run."""

    job: Job
    needs: Needs
    timeout: float  # seconds of wall clock
    report: Callable[[TrialProgress], None]


class Executor(Protocol):
    """Runs trials between entering and leaving it; what runs when it is left is ended, and leaves no record."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *problem: object) -> None: ...

    def check(self, needs: Needs) -> None:
        """Raise XMCBenchError where there can never be room for a trial that needs this."""

    def takes(self, needs: Needs) -> bool:
        """Whether a trial that needs this may be started now."""

    def start(self, task: Task) -> None:
        """Start a trial; the caller holds its lock."""

    def ended(self) -> list[Record]:
        """Of the trials that ended since the last call; where none has, wait a moment for one."""


class InProcess:
    """Trials in this process, for a debugger: exceptions pass through."""

    def __init__(self) -> None:
        self._ended: list[Record] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None: ...

    def check(self, needs: Needs) -> None: ...

    def takes(self, needs: Needs) -> bool:  # noqa: ARG002  (of the protocol)
        return not self._ended

    def start(self, task: Task) -> None:
        record = Attempt(task.job, task.report).perform()
        assert record is not None, "the only worker is worker 0"
        self._ended.append(record)

    def ended(self) -> list[Record]:
        ended, self._ended = self._ended, []
        return ended


@dataclass
class Watch:
    """A trial that runs elsewhere, as it is seen from here."""

    task: Task
    begun: str = field(default_factory=now)
    start: float = field(default_factory=time.monotonic)
    stage: str = "prepare"
    spent: dict[str, Any] = field(default_factory=dict)
    disk: str = ""
    failed: bool = False  # a worker has recorded why

    @property
    def store(self) -> Store:
        return Store(self.task.job.store)

    @property
    def directory(self) -> Path:
        return self.store.directory(self.task.job.trial.key)

    def hear(self, event: dict[str, Any]) -> None:
        """Take what a worker told: `worker.telling` says how it looks."""
        if "disk" in event:
            self.disk = event["disk"]
            return
        if "record" in event:
            record = Record.model_validate_json(event["record"])
            self.failed = True
            if self.store.record(record.key) is None:  # of a worker that does not see the store
                self.store.write_record(record)
            return
        self.stage, self.spent = event["stage"], event["spent"]
        self.task.report(TrialProgress(**event))

    @property
    def overdue(self) -> bool:
        return time.monotonic() > self.start + self.task.timeout

    def outcome(self, lost: Callable[[], tuple[Status, str, str]]) -> Record:
        """The record that the trial left; where there is none, one of what `lost` says: status, kind and message."""
        job = self.task.job
        if self.disk:
            raise StoreError(self.disk)
        if record := self.store.record(job.trial.key):
            return record
        status, kind, message = lost()
        failure = Failure(type=kind, message=message, stage=self.stage, log_tail=log_tail(self.directory))
        record = Record(
            key=job.trial.key,
            suite=job.suite,
            trial=job.trial,
            status=status,
            spent={**self.spent, "wall_seconds": time.monotonic() - self.start},
            workers=self.task.needs.workers,
            failure=failure,
            provenance=provenance(job.command),
            started=self.begun,
            ended=now(),
        )
        self.store.write_record(record)
        return record

    def timed_out(self) -> tuple[Status, str, str]:
        """What is to be said of it where it was ended for taking too long."""
        return Status.TIMEOUT, "Timeout", f"killed after {self.task.timeout:g} seconds of wall clock"
