"""Runs one trial at a time in subprocesses of this machine, so that no trial can harm the run."""

from __future__ import annotations

import signal
from typing import Self

from xmcbench.plugins.registry import registry
from xmcbench.runs.running_trial import Death, RunningTrial, Task
from xmcbench.runs.worker_processes import WorkerGroup, WorkerServer
from xmcbench.suite.resources import Needs
from xmcbench.trial.record import Record, Status
from xmcbench.trial.store import Store, StoreError

POLL_SECONDS = 0.1


class LocalExecutor:
    """Runs trials in subprocesses of this machine: one at a time because costs are compared, or `parallel` at once.

    Servers, which have the frameworks loaded, fork the workers. Methods that import the same share a server, so that a
    trial's memory does not depend on which trials ran before it. After a trial that was killed, servers start anew.

    If a worker dies or a trial takes too long, the record is written here. An interrupt ends the workers and leaves no
    record, so that the next run resumes the trial.
    """

    def __init__(self, parallel: int = 1) -> None:
        self._parallel = parallel
        self._running: list[tuple[RunningTrial, WorkerGroup]] = []
        self._servers: dict[tuple[str, ...], WorkerServer] = {}  # by the modules that the methods import late
        self._killed = False  # a server may have adopted what a killed worker left behind

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        for _, group in self._running:
            group.end()
        self._end_servers()

    def check(self, needs: Needs) -> None: ...

    def has_room(self, needs: Needs) -> bool:
        busy = sum(running.task.needs.workers for running, _ in self._running)
        return not self._running or busy + needs.workers <= self._parallel

    def start(self, task: Task) -> None:
        directory = Store(task.job.store).directory(task.job.trial.key)
        log = directory / "log.txt"
        workers, imports = task.needs.workers, registry().method(task.job.trial.method).thing.late_imports
        try:
            output = log.open("ab")
        except OSError as problem:
            raise StoreError(f"{log}: cannot write: {problem.strerror}") from problem
        with output:
            server = self._server(imports, output.fileno())
            group = WorkerGroup(server, directory, workers, max(workers, self._parallel), output.fileno())
        self._running.append((RunningTrial(task), group))

    def _server(self, imports: tuple[str, ...], log: int) -> WorkerServer:
        """A running server, in the place of one that somebody killed."""
        server = self._servers.get(imports)
        if server is not None and server.ended:
            server.end()
            server = None
        if server is None:
            server = self._servers[imports] = WorkerServer(log)
        return server

    def finished(self) -> list[Record]:
        patience = POLL_SECONDS / max(1, len(self._running))
        records = [self._outcome(running, group, patience) for running, group in list(self._running)]
        if self._killed and not self._running:
            self._end_servers()
        return [record for record in records if record is not None]

    def _outcome(self, running: RunningTrial, group: WorkerGroup, patience: float) -> Record | None:
        """The record of a trial that has ended or is overdue; None while it runs. Waits up to `patience` seconds."""
        code = group.code()  # before the pipe is read: no last event is missed
        for event in group.events(patience if code is None else 0):
            running.receive(event)
        if code is None and not running.overdue:
            return None
        group.end()
        self._running.remove((running, group))
        self._killed |= code is None or code < 0
        if not running.recorded:  # a record that is there all the same is not the harness's
            running.store.drop_record(running.task.job.trial.key)
        return running.outcome(running.timed_out if code is None else lambda: _death(code))

    def _end_servers(self) -> None:
        for server in self._servers.values():
            server.end()
        self._servers, self._killed = {}, False


def _death(code: int) -> Death:
    """The cause of death of workers that left no record and whose first non-zero exit code is `code`."""
    if code == -signal.SIGKILL:
        return Death(Status.OOM, "SIGKILL", "killed by signal 9, most likely out of memory")
    if code < 0:
        kind = signal.Signals(-code).name
        return Death(Status.ERROR, kind, f"killed by signal {-code} ({kind})")
    return Death(Status.ERROR, "Exit", f"the worker ended with code {code} and left no record")
