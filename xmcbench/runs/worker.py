"""A worker process of a trial, started by `xmcbench.runs.worker_server`: it runs the trial and writes its record."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Lock

from filelock import FileLock

from xmcbench.errors import XMCBenchError, text_of
from xmcbench.errors.secrets import redact, redact_output
from xmcbench.evaluation import InvalidPredictions
from xmcbench.files.regular import MachineFault, machine_fault
from xmcbench.runs.attempt import Attempt
from xmcbench.runs.events import DiskFault, Event, Recorded, Warned, encode
from xmcbench.runs.job import Job, WorkerRank
from xmcbench.runs.perform import perform
from xmcbench.trial.budget import TooLargeError
from xmcbench.trial.record import Record, Status
from xmcbench.trial.store import StoreError

FAILED_EXIT = 1  # the trial failed, and its record says why
DISK_FAULT_EXIT = 74  # EX_IOERR of sysexits.h
PEER_LOST_EXIT = 75  # the peer's failure is recorded: it may still be writing it
# What a `RuntimeError` says where memory was short: torch's on a CPU; CUDA's, also of pinned memory, Triton's, faiss's;
# that of CUDA's libraries, whose handles and workspaces are memory; its driver's.
OUT_OF_MEMORY = re.compile(r"DefaultCPUAllocator|out of memory|_ALLOC_FAILED|CUDA_ERROR_OUT_OF_MEMORY")
RENDEZVOUS = "rendezvous"  # file in a trial's directory over which its workers find each other


class PeerLostError(XMCBenchError):
    """Raised in a worker whose peer died; only the peer's failure is recorded."""


def main(directory: Path, events: int, rank: int, size: int) -> int:
    """Run the trial in `directory` as worker `rank` of `size`, and write its record there; return the exit code.

    `events` is the file descriptor of a pipe for the lines of events (`xmcbench/runs/events.py`).
    """
    redact_output()
    lock = Lock()  # threads of a teacher warn too
    with os.fdopen(events, "w", buffering=1) as pipe:

        def send(event: Event) -> None:
            with lock, suppress(BrokenPipeError):  # the parent is gone, and this process is about to be ended
                pipe.write(encode(event))

        worker = WorkerRank(rank, size, directory / RENDEZVOUS if size > 1 else None, own_thread=True, fork=True)
        job = Job.model_validate_json((directory / "trial.json").read_bytes())
        try:
            record = run_worker(job, worker, send)
        except PeerLostError as problem:
            print(problem, file=sys.stderr)
            return PEER_LOST_EXIT
        except (OSError, StoreError, MachineFault):
            return DISK_FAULT_EXIT
        if record is not None:
            send(Recorded(record.key))
    return FAILED_EXIT if record is not None and record.failure else 0


def run_alone(directory: Path) -> int:
    """Run the trial in `directory` as its only worker, for an executor that waits for the process; the exit code."""
    redact_output()
    record = run_worker(Job.model_validate_json((directory / "trial.json").read_bytes()), WorkerRank(), lambda _: None)
    return FAILED_EXIT if record is not None and record.failure else 0


def run_worker(job: Job, worker: WorkerRank, send: Callable[[Event], None]) -> Record | None:
    """Run a worker's part of a trial; a failure becomes the trial's record. Only worker 0 returns a record of success.

    Progress is sent to the driver, and so is what is not an outcome of the trial:
    `OSError`, `StoreError` and `MachineFault`, which are raised then. Also raises `PeerLostError`.
    """
    attempt = Attempt(job, send, worker)
    try:
        # A worker whose parent was killed may still be ending: two must not write to one directory.
        lock = FileLock(attempt.directory / f".worker-{worker.rank}.lock")
        with lock, _warnings_sent(send) if worker.rank == 0 else nullcontext():
            return _run(attempt)
    except (OSError, StoreError, MachineFault) as problem:
        send(DiskFault(str(problem)))
        raise


class _Warnings(logging.Handler):
    """Sends the warnings of the harness and its rooms to the driver, and logs them as before."""

    def __init__(self, send: Callable[[Event], None]) -> None:
        super().__init__(logging.WARNING)
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        """Log and send a warning."""
        if logging.lastResort is not None:
            logging.lastResort.handle(record)
        self._send(Warned(redact(record.getMessage())))


@contextmanager
def _warnings_sent(send: Callable[[Event], None]) -> Iterator[None]:
    """In the block `send` receives the warnings of the harness and its rooms."""
    handler, loggers = _Warnings(send), [logging.getLogger(name) for name in ("xmcbench", "xmcbench_plugins")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


def _run(attempt: Attempt) -> Record | None:
    store = attempt.store
    try:
        return perform(attempt)
    except (StoreError, MachineFault):
        raise
    except BaseException as problem:
        if fault := machine_fault(problem):
            raise StoreError(f"{getattr(problem, 'filename', None) or store.root}: {fault}") from problem
        if isinstance(problem, KeyboardInterrupt):
            raise
        traceback.print_exc()
        sys.stderr.flush()
        if attempt.worker.size > 1 and _status(problem) is Status.ERROR and _in_collective(problem):
            raise PeerLostError("another worker died") from problem
        record = attempt.failure(_status(problem), problem)
        if first := store.record(record.key):  # another worker failed before this one
            return first
        store.write_record(record)
        if record.status in (Status.INVALID, Status.TOO_LARGE):  # a resumed trial would only fail again
            shutil.rmtree(attempt.directory / "checkpoint", ignore_errors=True)
        return record


def _in_collective(problem: BaseException) -> bool:
    """Whether `problem` was raised in a collective of torch: the usual cause is that another worker died."""
    frames = traceback.extract_tb(problem.__traceback__)
    return any("torch/distributed/" in frame.filename for frame in frames)


def _status(problem: BaseException) -> Status:
    """The status of a trial that ended with `problem`. Torch's exceptions are known by name: no import of torch."""
    if isinstance(problem, TooLargeError):
        return Status.TOO_LARGE
    names = {kind.__name__ for kind in type(problem).__mro__}
    full = isinstance(problem, RuntimeError) and OUT_OF_MEMORY.search(text_of(problem))
    if full or isinstance(problem, MemoryError) or "OutOfMemoryError" in names:
        return Status.OOM
    return Status.INVALID if isinstance(problem, InvalidPredictions) else Status.ERROR


if __name__ == "__main__":
    sys.exit(run_alone(Path(sys.argv[1])))
