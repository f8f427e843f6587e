"""The process that carries one trial out: `python -m xmcbench.execution.worker DIRECTORY EVENTS PARENT`.

EVENTS is the descriptor of a pipe for JSON lines: progress, and a fault of the disk. PARENT is that of a pipe nobody
writes to: its end means that the parent is gone, however it went, and this process and its children go too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

from xmcbench.errors import XMCBenchError
from xmcbench.evaluation import InvalidPredictions
from xmcbench.execution.job import Job
from xmcbench.execution.stages import Attempt
from xmcbench.method import Progress
from xmcbench.record import Record, Status
from xmcbench.store import DISK_FAULTS, Store, StoreError

DISK_FAULT_EXIT = 74  # EX_IOERR of sysexits.h
LOG_TAIL = 2048  # bytes of log.txt that a failure's record holds
REPORT_SECONDS = 0.2  # progress is for eyes: a fast method must not spend its time on telling


def main(directory: Path, events: int, parent: int) -> int:
    """Carry out the trial in `directory` and leave a record there; the exit code tells only of the store."""
    threading.Thread(target=_die_with_parent, args=(parent,), daemon=True).start()
    # A worker whose parent was killed may still be going down: two must not write to one directory.
    with os.fdopen(events, "w", buffering=1) as pipe, FileLock(directory / ".worker.lock"):
        attempt = Attempt(Job.model_validate_json((directory / "trial.json").read_bytes()))
        attempt.report = _reporter(attempt, pipe)
        try:
            carry_out(attempt)
        except (OSError, StoreError) as problem:
            _send(pipe, {"disk": str(problem)})
            return DISK_FAULT_EXIT
    return 0


def carry_out(attempt: Attempt) -> Record:
    """Perform the attempt, and record a failure as one. A fault of the disk is no outcome of a trial and is raised."""
    store = Store(attempt.job.store)
    try:
        return attempt.perform()
    except StoreError:
        raise
    except BaseException as problem:
        if fault := disk_fault(problem):
            raise StoreError(f"{getattr(problem, 'filename', None) or store.root}: cannot write: {fault}") from problem
        if isinstance(problem, KeyboardInterrupt):
            raise
        traceback.print_exc()
        sys.stderr.flush()
        key = attempt.job.trial.key
        record = attempt.failure(_status(problem), problem, log_tail(store.directory(key)))
        store.write_record(record)
        if record.status is Status.INVALID:  # going on from here would only end there again
            shutil.rmtree(store.directory(key) / "checkpoint", ignore_errors=True)
        return record


def disk_fault(problem: BaseException) -> str | None:
    """What the disk said, where a full or read-only disk is what `problem` is about."""
    code = problem.errno if isinstance(problem, OSError) else None
    # Libraries written in Rust (safetensors, tokenizers) raise classes of their own, with the number in the text.
    if code is None and (told := re.search(r"\(os error (\d+)\)", str(problem))):
        code = int(told[1])
    return os.strerror(code) if code in DISK_FAULTS else None


def log_tail(directory: Path) -> str:
    """The last 2 kB of a trial's log."""
    try:
        with (directory / "log.txt").open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - LOG_TAIL))
            return log.read().decode(errors="replace")
    except OSError:
        return ""


def _status(problem: BaseException) -> Status:
    """What an exception means; torch's are known by name and text, since nothing here imports torch."""
    names = {kind.__name__ for kind in type(problem).__mro__}
    if isinstance(problem, MemoryError) or "OutOfMemoryError" in names or "DefaultCPUAllocator" in str(problem):
        return Status.OOM
    return Status.INVALID if isinstance(problem, InvalidPredictions) else Status.ERROR


def _reporter(attempt: Attempt, pipe: Any) -> Callable[[Progress], None]:
    last = ("", 0.0)

    def report(progress: Progress) -> None:
        nonlocal last
        stage, when = last
        if stage == progress.stage and time.monotonic() - when < REPORT_SECONDS:
            return
        last = (progress.stage, time.monotonic())
        figures = {name: float(value) for name, value in progress.figures.items()}
        event = {"stage": progress.stage, "fraction": float(progress.fraction), "figures": figures}
        _send(pipe, event | {"spent": attempt.ledger.as_dict()})

    return report


def _send(pipe: Any, event: dict[str, Any]) -> None:
    with suppress(BrokenPipeError):  # the parent is gone, and the other pipe is about to say so
        pipe.write(json.dumps(event) + "\n")


def _die_with_parent(parent: int) -> None:
    while os.read(parent, 1):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
    except XMCBenchError as error:
        sys.exit(str(error))
