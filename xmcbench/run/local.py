"""A trial at a time on this machine, in subprocesses: the parent owns the clock, and no trial can harm the run."""

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

from xmcbench.run.executor import Task, Watch
from xmcbench.run.worker import MEETING
from xmcbench.suite.resources import Needs
from xmcbench.trial.record import Record, Status
from xmcbench.trial.store import Store, StoreError

GRACE_SECONDS = 5.0  # between asking a trial to end and ending it
POLL_SECONDS = 0.1
# Threads of OpenMP that spin while they wait stall each other as soon as another process wants a core: on two cores,
# one busy neighbour made a training step seven times slower. To sleep at once costs a waking at each of a step's
# thousand parallel loops. GNU's threads, those of torch on Linux, therefore spin for about as long as a waking takes: a
# step of 128 queries (encoder `tiny`, two cores) is 1.2 times as fast in float32 and 1.5 times in bf16 as where they
# sleep at once, and beside a busy neighbour it takes 1.4 and 1.8 times as long, not seven.
# Products in bf16 are prepared anew for each shape, and texts come in many: of a thousand that oneDNN keeps by default
# few are used again, and they took 400 MB beside the 1.1 GB of a small training (38 steps, encoder `tiny`).
WORKER_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "3000",  # comes before the policy where GNU's threads are
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
}


class LocalExecutor:
    """One trial at a time, since what trials cost is compared; its workers are processes of this machine.

    A worker that dies, or a trial that takes too long, gets a record from here. An interrupt ends the workers and
    leaves no record, so that the next run resumes the trial.
    """

    def __init__(self) -> None:
        self._running: tuple[Watch, _Crew] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        if self._running:
            self._running[1].end()

    def check(self, needs: Needs) -> None: ...

    def takes(self, needs: Needs) -> bool:  # noqa: ARG002  (of the protocol)
        return self._running is None

    def start(self, task: Task) -> None:
        directory = Store(task.job.store).directory(task.job.trial.key)
        self._running = Watch(task), _Crew(directory, task.needs.workers)

    def ended(self) -> list[Record]:
        if self._running is None:
            return []
        watch, crew = self._running
        code = crew.code()  # asked before the pipe is read: what they said last is not missed
        for event in crew.events(POLL_SECONDS if code is None else 0):
            watch.hear(event)
        if code is None and not watch.overdue:
            return []
        crew.end()
        self._running = None
        if code is None:
            return [watch.outcome(watch.timed_out)]
        return [watch.outcome(lambda: _verdict(code))]


class _Crew:
    """The workers of a trial, each in a process group of its own. All report on one pipe."""

    def __init__(self, directory: Path, size: int) -> None:
        self._rest = b""
        self._events, events = os.pipe()
        parent, self._alive = os.pipe()  # `alive` is never written to: it closes when this process ends
        self._workers: list[subprocess.Popen[bytes]] = []
        try:
            (directory / MEETING).unlink(missing_ok=True)
            with (directory / "log.txt").open("ab") as log:
                for rank in range(size):
                    self._workers.append(_worker(directory, events, parent, rank, size, log))
        except OSError as problem:
            self.end()
            raise StoreError(f"{directory / 'log.txt'}: cannot write: {problem.strerror}") from problem
        finally:
            os.close(events)
            os.close(parent)

    def code(self) -> int | None:
        """How they ended: 0 where all did well, else how the first went that did not; None while they work."""
        codes = [worker.poll() for worker in self._workers]
        failed = [code for code in codes if code]
        if failed:
            return min(failed)  # a signal, where there was one
        return None if None in codes else 0

    def events(self, seconds: float) -> list[dict[str, Any]]:
        """What they told since the last call; where nothing, wait `seconds` for it."""
        lines: list[bytes] = []
        while select.select([self._events], [], [], seconds)[0]:
            content = os.read(self._events, 65536)
            if not content:
                time.sleep(seconds)  # they closed the pipe and are about to end
                break
            *whole, self._rest = (self._rest + content).split(b"\n")
            lines += whole
            seconds = 0
        return [json.loads(line) for line in lines]

    def end(self) -> None:
        """Ask the groups of all workers to end, then end them; nothing of them is left."""
        for worker in self._workers:
            if worker.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(worker.pid, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        for worker in self._workers:
            with suppress(subprocess.TimeoutExpired):
                worker.wait(max(0.0, deadline - time.monotonic()))
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(worker.pid, signal.SIGKILL)  # also what a worker that has ended left behind
            worker.wait()
        os.close(self._events)
        os.close(self._alive)


def _worker(directory: Path, events: int, parent: int, rank: int, size: int, log: Any) -> subprocess.Popen[bytes]:
    shared = {} if size == 1 else {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // size))}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "xmcbench.run.worker", directory, *map(str, (events, parent, rank, size))],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        pass_fds=(events, parent),
        env=WORKER_ENVIRONMENT | shared | os.environ,
        start_new_session=True,
    )


def _verdict(code: int) -> tuple[Status, str, str]:
    """What became of workers that left no record: status, kind and message."""
    if code == -signal.SIGKILL:
        return Status.OOM, "SIGKILL", "killed by signal 9, most likely out of memory"
    if code < 0:
        kind = signal.Signals(-code).name
        return Status.ERROR, kind, f"killed by signal {-code} ({kind})"
    return Status.ERROR, "Exit", f"the worker ended with code {code} and left no record"
