"""The state of a running trial in the process that started it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xmcbench.runs.job import Job, now
from xmcbench.runs.worker import log_tail
from xmcbench.suite.resources import Needs
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


@dataclass(frozen=True)
class Death:
    """Why the workers of a trial ended without writing a record."""

    status: Status
    kind: str  # an exception class or a signal
    message: str


@dataclass
class RunningTrial:
    """A trial that runs in other processes, and the state they reported last."""

    task: Task
    started: str = field(default_factory=now)
    start: float = field(default_factory=time.monotonic)
    stage: str = "prepare"
    spent: dict[str, Any] = field(default_factory=dict)
    disk_fault: str = ""
    failed: bool = False  # a worker has recorded why
    recorded: bool = False  # a worker says that the harness wrote the trial's record

    @property
    def store(self) -> Store:
        return Store(self.task.job.store)

    @property
    def directory(self) -> Path:
        return self.store.directory(self.task.job.trial.key)

    @property
    def overdue(self) -> bool:
        return time.monotonic() > self.start + self.task.timeout

    def receive(self, event: dict[str, Any]) -> None:
        """Handle an event of a worker: progress (`worker.as_event`), a disk fault, or the record of a failure."""
        if "disk" in event:
            self.disk_fault = event["disk"]
        elif "recorded" in event:
            self.recorded = True
        elif "record" in event:
            record = Record.model_validate_json(event["record"])
            self.failed = True
            if self.store.record(record.key) is None:  # from a worker that does not see the store
                self.store.write_record(record)
        elif "stage" in event:
            self.stage, self.spent = event["stage"], event["spent"]
            self.task.report(TrialProgress(**event))

    def outcome(self, death: Callable[[], Death]) -> Record:
        """The record that the trial wrote; if there is none, a record of the failure that `death` describes."""
        job = self.task.job
        if self.disk_fault:
            raise StoreError(self.disk_fault)
        if record := self.store.record(job.trial.key):
            return record
        cause = death()
        record = job.record(
            cause.status,
            started=self.started,
            spent={**self.spent, "wall_seconds": time.monotonic() - self.start},
            workers=self.task.needs.workers,
            failure=Failure(
                type=cause.kind, message=cause.message, stage=self.stage, log_tail=log_tail(self.directory)
            ),
        )
        self.store.write_record(record)
        return record

    def timed_out(self) -> Death:
        """The cause of death of a trial that took too long."""
        return Death(Status.TIMEOUT, "Timeout", f"killed after {self.task.timeout:g} seconds of wall clock")
