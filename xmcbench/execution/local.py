"""A trial in a subprocess of its own: the parent owns the clock, and what the trial does cannot harm the run."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xmcbench.execution.job import Job
from xmcbench.execution.stages import now
from xmcbench.execution.worker import log_tail
from xmcbench.method import Progress
from xmcbench.provenance import provenance
from xmcbench.record import Failure, Record, Status
from xmcbench.store import Store, StoreError

GRACE_SECONDS = 5.0  # between asking a trial to end and ending it
POLL_SECONDS = 0.1
# Threads of OpenMP that spin while they wait stall each other as soon as another process wants a core: on two cores,
# one busy neighbour made a training step seven times slower.
WORKER_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE"}


@dataclass
class _Seen:
    """What a worker told on its pipe."""

    stage: str = "prepare"
    spent: dict[str, Any] = field(default_factory=dict)
    disk: str = ""


def run_in_subprocess(job: Job, timeout: float, report: Callable[[Progress], None]) -> Record:
    """Carry `job` out in a worker, and answer with its record; a worker that dies or takes too long gets one too.

    An interrupt ends the worker and leaves no record, so that the next run resumes the trial.
    """
    store = Store(job.store)
    directory = store.directory(job.trial.key)
    started, start, seen = now(), time.monotonic(), _Seen()
    with _worker(directory) as (worker, events):
        timed_out = not _watch(worker, events, start + timeout, seen, report)
        if timed_out:
            _end(worker)
    if seen.disk:
        raise StoreError(seen.disk)
    if record := store.record(job.trial.key):
        return record
    status, failure = _verdict(worker.returncode, timed_out, timeout, seen.stage, log_tail(directory))
    record = Record(
        key=job.trial.key,
        suite=job.suite,
        trial=job.trial,
        status=status,
        spent={**seen.spent, "wall_seconds": time.monotonic() - start},
        failure=failure,
        provenance=provenance(job.command),
        started=started,
        ended=now(),
    )
    store.write_record(record)
    return record


@contextmanager
def _worker(directory: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A worker in a process group of its own and the pipe it reports on. Nothing of the group outlives the block."""
    events, events_out = os.pipe()
    parent, alive = os.pipe()  # `alive` is held here and never written to: it closes when this process ends
    try:
        try:
            with (directory / "log.txt").open("ab") as log:
                worker = subprocess.Popen(
                    [sys.executable, "-P", "-m", "xmcbench.execution.worker", directory, str(events_out), str(parent)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=(events_out, parent),
                    env=WORKER_ENVIRONMENT | os.environ,
                    start_new_session=True,
                )
        except OSError as problem:
            raise StoreError(f"{directory / 'log.txt'}: cannot write: {problem.strerror}") from problem
        finally:
            os.close(events_out)
            os.close(parent)
        try:
            yield worker, events
        finally:
            _end(worker)
    finally:
        os.close(events)
        os.close(alive)


def _watch(
    worker: subprocess.Popen[bytes], events: int, deadline: float, seen: _Seen, report: Callable[[Progress], None]
) -> bool:
    """Pass progress on until the worker ends; False when the deadline comes first."""
    content, rest = b"-", b""
    while True:
        ended = worker.poll() is not None  # asked before the pipe is read: what it said last is not missed
        if time.monotonic() > deadline and not ended:
            return False
        while select.select([events], [], [], 0 if ended else POLL_SECONDS)[0]:
            content = os.read(events, 65536)
            *lines, rest = (rest + content).split(b"\n")
            for line in lines:
                _take(json.loads(line), seen, report)
            if not content or not ended:
                break
        if ended:
            return True
        if not content:
            time.sleep(POLL_SECONDS)  # it closed the pipe and is about to end


def _take(event: dict[str, Any], seen: _Seen, report: Callable[[Progress], None]) -> None:
    if "disk" in event:
        seen.disk = event["disk"]
        return
    seen.stage, seen.spent = event["stage"], event["spent"]
    report(Progress(event["stage"], event["fraction"], event["figures"]))


def _end(worker: subprocess.Popen[bytes]) -> None:
    """Ask the worker's whole group to end, then end it."""
    if worker.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            worker.wait(GRACE_SECONDS)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(worker.pid, signal.SIGKILL)  # also what a worker that has ended left behind
    worker.wait()


def _verdict(code: int, timed_out: bool, timeout: float, stage: str, tail: str) -> tuple[Status, Failure]:
    """What became of a worker that left no record."""
    if timed_out:
        status, kind, message = Status.TIMEOUT, "Timeout", f"killed after {timeout:g} seconds of wall clock"
    elif code == -signal.SIGKILL:
        status, kind = Status.OOM, "SIGKILL"
        message = "killed by signal 9, most likely out of memory"
    elif code < 0:
        kind = signal.Signals(-code).name
        status, message = Status.ERROR, f"killed by signal {-code} ({kind})"
    else:
        status, kind, message = Status.ERROR, "Exit", f"the worker ended with code {code} and left no record"
    return status, Failure(type=kind, message=message, stage=stage, log_tail=tail)
