"""Runs one trial at a time in subprocesses of this machine, so that no trial can harm the run."""

from __future__ import annotations

import signal
from typing import Self

from xmcbench.run.running_trial import Death, RunningTrial, Task
from xmcbench.run.worker_processes import WorkerGroup, WorkerServer
from xmcbench.suite.resources import Needs
from xmcbench.trial.record import Record, Status
from xmcbench.trial.store import Store, StoreError

POLL_SECONDS = 0.1


class LocalExecutor:
    """Runs one trial at a time, because costs are compared. Its workers are processes of this machine.

    One server, which has the frameworks loaded, forks the workers of all trials; after a trial that was killed, a new
    one is started. If a worker dies or a trial takes too long, the record is written here. An interrupt ends the
    workers and leaves no record, so that the next run resumes the trial.
    """

    def __init__(self) -> None:
        self._running: tuple[RunningTrial, WorkerGroup] | None = None
        self._server: WorkerServer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        if self._running:
            self._running[1].end()
        self._end_server()

    def check(self, needs: Needs) -> None: ...

    def has_room(self, needs: Needs) -> bool:  # noqa: ARG002  (of the protocol)
        return self._running is None

    def start(self, task: Task) -> None:
        directory = Store(task.job.store).directory(task.job.trial.key)
        log = directory / "log.txt"
        try:
            with log.open("ab") as output:
                self._server = self._server or WorkerServer(output.fileno())
                group = WorkerGroup(self._server, directory, task.needs.workers, output.fileno())
        except OSError as problem:
            raise StoreError(f"{log}: cannot write: {problem.strerror}") from problem
        self._running = RunningTrial(task), group

    def finished(self) -> list[Record]:
        if self._running is None:
            return []
        running, group = self._running
        code = group.code()  # before the pipe is read: no last event is missed
        for event in group.events(POLL_SECONDS if code is None else 0):
            running.receive(event)
        if code is None and not running.overdue:
            return []
        group.end()
        self._running = None
        if code is None or code < 0:
            self._end_server()  # with whatever a killed worker left behind
        return [running.outcome(running.timed_out if code is None else lambda: _death(code))]

    def _end_server(self) -> None:
        if self._server:
            self._server.end()
        self._server = None


def _death(code: int) -> Death:
    """The cause of death of workers that left no record and whose first non-zero exit code is `code`."""
    if code == -signal.SIGKILL:
        return Death(Status.OOM, "SIGKILL", "killed by signal 9, most likely out of memory")
    if code < 0:
        kind = signal.Signals(-code).name
        return Death(Status.ERROR, kind, f"killed by signal {-code} ({kind})")
    return Death(Status.ERROR, "Exit", f"the worker ended with code {code} and left no record")
