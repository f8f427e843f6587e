"""Runs one trial at a time in subprocesses of this machine, so that no trial can harm the run."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil

from xmcbench.files.secrets import redact_file
from xmcbench.run.running_trial import Death, RunningTrial, Task
from xmcbench.run.worker import MEETING
from xmcbench.suite.resources import Needs
from xmcbench.trial.program import end_processes, new_mark, process_tree
from xmcbench.trial.record import Record, Status
from xmcbench.trial.store import Store, StoreError

GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL
POLL_SECONDS = 0.1
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


class LocalExecutor:
    """Runs one trial at a time, because costs are compared. Its workers are processes of this machine.

    If a worker dies or a trial takes too long, the record is written here. An interrupt ends the workers and leaves no
    record, so that the next run resumes the trial.
    """

    def __init__(self) -> None:
        self._running: tuple[RunningTrial, _WorkerGroup] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        if self._running:
            self._running[1].end()

    def check(self, needs: Needs) -> None: ...

    def has_room(self, needs: Needs) -> bool:  # noqa: ARG002  (of the protocol)
        return self._running is None

    def start(self, task: Task) -> None:
        directory = Store(task.job.store).directory(task.job.trial.key)
        self._running = RunningTrial(task), _WorkerGroup(directory, task.needs.workers)

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
        if code is None:
            return [running.outcome(running.timed_out)]
        return [running.outcome(lambda: _death(code))]


class _WorkerGroup:
    """The workers of a trial, each in a separate process group. All write events to one pipe."""

    def __init__(self, directory: Path, size: int) -> None:
        self._rest = b""
        self._marks: list[str] = []  # of the processes of each worker
        self._log = directory / "log.txt"
        self._events, events = os.pipe()
        parent, self._alive = os.pipe()  # `alive` is never written to: it closes when this process ends
        self._workers: list[subprocess.Popen[bytes]] = []
        try:
            (directory / MEETING).unlink(missing_ok=True)
            with self._log.open("ab") as log:
                for rank in range(size):
                    mark, marked = new_mark()
                    self._marks.append(mark)
                    self._workers.append(_worker((directory, events, parent, rank, size), log, marked))
        except OSError as problem:
            self.end()
            raise StoreError(f"{self._log}: cannot write: {problem.strerror}") from problem
        finally:
            os.close(events)
            os.close(parent)

    def code(self) -> int | None:
        """The first non-zero exit code of the workers, or 0; None while they run."""
        codes = [worker.poll() for worker in self._workers]
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
                time.sleep(seconds)  # the workers closed the pipe and are about to end
                break
            *whole, self._rest = (self._rest + content).split(b"\n")
            lines += whole
            seconds = 0
        return [json.loads(line) for line in lines]

    def end(self) -> None:
        """Terminate the workers' process groups. Kill what is left after `GRACE_SECONDS`, and what workers started."""
        started: list[psutil.Process] = []
        for worker in self._workers:
            if worker.poll() is None:
                started += process_tree(worker.pid)
                with suppress(ProcessLookupError):
                    os.killpg(worker.pid, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        for worker, mark in zip(self._workers, self._marks, strict=False):
            with suppress(subprocess.TimeoutExpired):
                worker.wait(max(0.0, deadline - time.monotonic()))
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
            end_processes(mark, started)  # children that a worker left behind, also in sessions of their own
        os.close(self._events)
        os.close(self._alive)
        redact_file(self._log)  # also what children of a worker printed


def _worker(arguments: tuple[Path, int, int, int, int], log: Any, marked: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a worker with these arguments of `start_worker`."""
    _, events, parent, _, size = arguments
    shared = {} if size == 1 else {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // size))}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "xmcbench.run.start_worker", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        pass_fds=(events, parent),
        env=WORKER_ENVIRONMENT | shared | os.environ | marked,
        start_new_session=True,
    )


def _death(code: int) -> Death:
    """The cause of death of workers that left no record and whose first non-zero exit code is `code`."""
    if code == -signal.SIGKILL:
        return Death(Status.OOM, "SIGKILL", "killed by signal 9, most likely out of memory")
    if code < 0:
        kind = signal.Signals(-code).name
        return Death(Status.ERROR, kind, f"killed by signal {-code} ({kind})")
    return Death(Status.ERROR, "Exit", f"the worker ended with code {code} and left no record")
