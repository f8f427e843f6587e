"""The interface of executors, the state of a trial that runs in other processes, and the simplest executor: trials in
this process.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from xmcbench.runs.events import DiskFault, Event, FailureRecord, Recorded, Warned
from xmcbench.runs.job import Job, WorkerRank, log_tail, now
from xmcbench.suite.resources import Needs
from xmcbench.trial.record import Failure, Record, Status
from xmcbench.trial.run import TrialProgress
from xmcbench.trial.store import Store, StoreError

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Task:
    """A trial to run."""

    job: Job
    needs: Needs
    timeout: float  # seconds of wall clock
    report: Callable[[TrialProgress], None]

    def command(self) -> list[str]:
        """The command that runs the trial with one worker: in any process that sees the store and the data."""
        return [sys.executable, "-P", "-m", "xmcbench.runs.worker", str(self.job.directory)]

    def outcome(self, what_happened: str = "the worker left no record") -> Record:
        """The record that the trial wrote, once it has ended; if there is none, one that says what happened."""
        return RunningTrial(self).outcome((Status.ERROR, Failure(type="Exit", message=what_happened)))


Death = tuple[Status, Failure]  # why the workers of a trial ended without writing a record


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
    def overdue(self) -> bool:
        return time.monotonic() > self.start + self.task.timeout

    def receive(self, event: Event) -> None:
        """Handle an event of a worker."""
        match event:
            case DiskFault(message):
                self.disk_fault = message
            case Recorded():
                self.recorded = True
            case FailureRecord(content):
                record = Record.model_validate_json(content)
                self.failed = True
                if self.store.record(record.key) is None:  # from a worker that does not see the store
                    self.store.write_record(record)
            case Warned(message):
                _log.warning("%s", message)
            case TrialProgress():
                self.stage, self.spent = event.stage, dict(event.spent)
                self.task.report(event)

    def outcome(self, death: Death | None) -> Record:
        """The record that the trial wrote; if there is none, one of its `death`, None where it took too long."""
        job = self.task.job
        if self.disk_fault:
            raise StoreError(self.disk_fault)
        if record := self.store.record(job.trial.key):
            return record
        message = f"killed after {self.task.timeout:g} seconds of wall clock"
        status, failure = death or (Status.TIMEOUT, Failure(type="Timeout", message=message))
        record = job.record(
            status,
            started=self.started,
            spent={**self.spent, "wall_seconds": time.monotonic() - self.start},
            workers=self.task.needs.workers,
            failure=failure.model_copy(update={"stage": self.stage, "log_tail": log_tail(job.directory)}),
        )
        self.store.write_record(record)
        return record


class Executor:
    """Runs trials while its `with` block is open, or the outermost of several. `xmcbench run --executor NAME` makes it.

    The arguments of its constructor are strings: the options of `run` that `options` names.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    options: ClassVar[frozenset[str]] = frozenset()  # of `address` and `storage`

    _blocks = 0  # that are open

    def __enter__(self) -> Self:
        self._blocks += 1
        if self._blocks == 1:
            self.open()
        return self

    def __exit__(self, *problem: object) -> None:
        self._blocks -= 1
        if not self._blocks:
            self.close()

    def open(self) -> None:
        """Get ready to run trials."""

    def close(self) -> None:
        """End unfinished trials without a record, so that the next run resumes them."""

    def check(self, needs: Needs) -> None:
        """Raise XMCBenchError if there can never be room for a trial with these needs."""

    def has_room(self, needs: Needs) -> bool:
        """Whether a trial with these needs may be started now."""
        raise NotImplementedError

    def samples_at_once(self, needs: Needs) -> int:  # noqa: ARG002
        """How many samples of a tuning, trials with these needs, are proposed before the first has ended."""
        return 1  # on this machine, as `parallel` changes no result

    def run_samples(self, display: Any, runner: Any, search: Any) -> bool:  # noqa: ARG002
        """Run the samples of a tuning in a way of its own, and return True; False: they run as other trials do."""
        return False

    def start(self, task: Task) -> None:
        """Start a trial. The caller holds its lock."""
        raise NotImplementedError

    def finished(self) -> list[Record]:
        """The records of trials that ended since the last call. If there are none, waits a moment for one."""
        raise NotImplementedError


class ThisProcess(Executor):
    """Runs one trial at a time in this process, for methods that no other process can import: classes of a notebook."""

    name = "this-process"
    summary = "this process, where classes of a notebook are"

    def __init__(self) -> None:
        self._finished: list[Record] = []

    def has_room(self, needs: Needs) -> bool:  # noqa: ARG002
        return not self._finished

    def start(self, task: Task) -> None:
        from xmcbench.runs.worker import run_worker

        def send(event: Event) -> None:
            if isinstance(event, TrialProgress):
                task.report(event)

        record = run_worker(task.job, WorkerRank(), send)
        assert record is not None, "the only worker is worker 0"
        self._finished.append(record)

    def finished(self) -> list[Record]:
        finished, self._finished = self._finished, []
        return finished


class InProcess(ThisProcess):
    """`ThisProcess` for a debugger: exceptions are not caught."""

    def start(self, task: Task) -> None:
        from xmcbench.runs.attempt import Attempt
        from xmcbench.runs.perform import perform

        record = perform(Attempt(task.job, task.report))
        assert record is not None, "the only worker is worker 0"
        self._finished.append(record)
