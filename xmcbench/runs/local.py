"""Runs trials in subprocesses of this machine, so that no trial can harm the run: starts, watches and ends workers."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil

from xmcbench.files.secrets import redact_file
from xmcbench.plugins.registry import registry
from xmcbench.runs.executor import Death, RunningTrial, Task
from xmcbench.runs.worker import RENDEZVOUS
from xmcbench.suite.resources import Needs
from xmcbench.trial.programs import MARK, end_processes, new_mark, process_tree
from xmcbench.trial.record import Failure, Record, Status
from xmcbench.trial.store import Store, StoreError

GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL
# OpenMP threads that spin while they wait slow each other down as soon as another process needs a core: on two cores,
# one busy neighbour made a training step seven times slower. Threads that sleep at once must be woken for each of a
# step's thousand parallel loops. GNU's OpenMP (torch on Linux) therefore spins about as long as waking takes. A step of
# 128 queries (encoder `tiny`, two cores) is then 1.2 times (float32) and 1.5 times (bf16) as fast as with sleeping
# threads; beside a busy neighbour it takes 1.4 and 1.8 times as long instead of seven times.
# oneDNN prepares a bf16 product for each shape, and texts have many shapes. Of the 1,000 products that it caches by
# default few are used again; they took 400 MB beside the 1.1 GB of a small training (38 steps, encoder `tiny`).
WORKER_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "3000",  # overrides the policy in GNU's OpenMP
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
}

POLL_SECONDS = 0.1


class WorkerServer:
    """The process `xmcbench.runs.worker_server`, which forks workers. At first its output goes to the file `log`."""

    def __init__(self, log: int) -> None:
        self._mark, self._marked = new_mark()
        self._channel, theirs = socket.socketpair()
        self._codes: dict[int, int] = {}
        self._rest = b""
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "xmcbench.runs.worker_server", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                env=WORKER_ENVIRONMENT | os.environ | self._marked,
                start_new_session=True,
            )

    def fork(
        self, directory: Path, rank: int, size: int, side_by_side: int, descriptors: tuple[int, int, int]
    ) -> tuple[int | None, str]:
        """Start worker `rank` of `size` for the trial in `directory`. The cores are divided by `side_by_side` workers.

        Returns its process number, None if this server ended before it forked, and the mark of the programs that it
        starts. `descriptors` are the log, the pipe of events, and the pipe that closes when this process ends.
        """
        mark, environment = new_mark(self._marked[MARK])
        if side_by_side > 1 and "OMP_NUM_THREADS" not in os.environ:
            environment["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // side_by_side))
        content = json.dumps({"directory": str(directory), "rank": rank, "size": size, "environment": environment})
        with suppress(BrokenPipeError, ConnectionResetError):  # no answer comes then either
            socket.send_fds(self._channel, [content.encode()], descriptors)
        forked: list[int] = []
        while not forked and self._process.poll() is None:
            forked = [answer["pid"] for answer in self._receive(None) if "code" not in answer]
        return forked[0] if forked else None, mark

    def code(self, pid: int | None, seconds: float = 0.0) -> int | None:
        """The exit code of a worker, after waiting up to `seconds` for it; None while it runs.

        Once this server is gone nobody knows a worker's code: then it is the server's own.
        """
        deadline = time.monotonic() + seconds
        while pid not in self._codes and (self._receive(max(0.0, deadline - time.monotonic()))):
            pass
        return self._codes.get(pid or 0, self._process.poll())

    @property
    def ended(self) -> bool:
        """Whether the process is gone."""
        return self._process.poll() is not None

    def end(self) -> None:
        """End the server and all its descendants."""
        end_processes(self._mark, process_tree(self._process.pid))
        self._process.wait()
        self._channel.close()

    def _receive(self, seconds: float | None) -> list[dict[str, Any]]:
        """The answers that arrive within `seconds`. Exit codes among them are noted."""
        if not select.select([self._channel], [], [], seconds)[0]:
            return []
        content = self._channel.recv(65536)
        if not content:
            self._process.wait()
        *lines, self._rest = (self._rest + content).split(b"\n")
        answers: list[dict[str, Any]] = [json.loads(line) for line in lines]
        self._codes |= {answer["pid"]: answer["code"] for answer in answers if "code" in answer}
        return answers


class WorkerGroup:
    """The `size` workers of a trial, each in a separate process group. All write events to one pipe.

    `side_by_side` workers, those of other trials included, share the cores.
    """

    def __init__(self, server: WorkerServer, directory: Path, size: int, side_by_side: int, log: int) -> None:
        (directory / RENDEZVOUS).unlink(missing_ok=True)
        self._rest = b""
        self._log = directory / "log.txt"
        self._events, events = os.pipe()
        parent, self._alive = os.pipe()  # `alive` is never written to: it closes when this process ends
        descriptors = log, events, parent
        self._server = server
        self._workers = [server.fork(directory, rank, size, side_by_side, descriptors) for rank in range(size)]
        os.close(events)
        os.close(parent)

    def code(self) -> int | None:
        """The first non-zero exit code of the workers, or 0; None while they run."""
        codes = [self._server.code(pid) for pid, _ in self._workers]
        failed = [code for code in codes if code]
        if failed:
            return min(failed)  # signals are negative
        return None if None in codes else 0

    def events(self, seconds: float) -> list[dict[str, Any]]:
        """The events since the last call; waits up to `seconds` for one."""
        lines: list[bytes] = []
        while select.select([self._events], [], [], seconds)[0]:
            content = os.read(self._events, 65536)
            if not content:
                self._wait(seconds)  # the workers closed the pipe and are about to end
                break
            *whole, self._rest = (self._rest + content).split(b"\n")
            lines += whole
            seconds = 0
        return [json.loads(line) for line in lines]

    def _wait(self, seconds: float) -> None:
        """Wait up to `seconds` for the end of a worker."""
        running = [pid for pid, _ in self._workers if self._server.code(pid) is None]
        if running:
            self._server.code(running[0], seconds)

    def end(self) -> None:
        """Terminate the workers' process groups. Kill what is left after `GRACE_SECONDS`, and what workers started."""
        started: list[psutil.Process] = []
        for pid, _ in self._workers:
            if pid and self._server.code(pid) is None:
                started += process_tree(pid)
                self._send(pid, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        for pid, mark in self._workers:
            self._server.code(pid, max(0.0, deadline - time.monotonic()))
            self._send(pid, signal.SIGKILL)
            end_processes(mark, started)  # children that a worker left behind, also in sessions of their own
        os.close(self._events)
        os.close(self._alive)
        redact_file(self._log)  # also what children of a worker printed

    def _send(self, pid: int | None, number: int) -> None:
        """Send a signal to the process group of a worker that runs."""
        if pid is not None and self._server.code(pid) is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, number)


class LocalExecutor:
    """Runs trials in subprocesses of this machine: one at a time because costs are compared, or `parallel` at once.

    Servers, which have the frameworks loaded, fork the workers. Methods that import the same share a server, so that a
    trial's memory does not depend on which trials ran before it. After a trial that was killed, servers start anew.
    They end with the outermost `with` block, which a tuning keeps open: to load the frameworks takes seconds.

    If a worker dies or a trial takes too long, the record is written here. An interrupt ends the workers and leaves no
    record, so that the next run resumes the trial.
    """

    def __init__(self, parallel: int = 1) -> None:
        self._parallel = parallel
        self._running: list[tuple[RunningTrial, WorkerGroup]] = []
        self._servers: dict[tuple[str, ...], WorkerServer] = {}  # by the modules that the methods import late
        self._blocks = 0  # that are open
        self._killed = False  # a server may have adopted what a killed worker left behind

    def __enter__(self) -> Self:
        self._blocks += 1
        return self

    def __exit__(self, *problem: object) -> None:
        for _, group in self._running:
            group.end()
        self._running.clear()
        self._blocks -= 1
        if not self._blocks:
            self._end_servers()

    def check(self, needs: Needs) -> None: ...

    def has_room(self, needs: Needs) -> bool:
        busy = sum(running.task.needs.workers for running, _ in self._running)
        return not self._running or busy + needs.workers <= self._parallel

    def samples_at_once(self, needs: Needs) -> int:  # noqa: ARG002
        return 1  # `parallel` changes no result

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
        return Status.OOM, Failure(type="SIGKILL", message="killed by signal 9, most likely out of memory")
    if code < 0:
        kind = signal.Signals(-code).name
        return Status.ERROR, Failure(type=kind, message=f"killed by signal {-code} ({kind})")
    return Status.ERROR, Failure(type="Exit", message=f"the worker ended with code {code} and left no record")
