"""The first steps of a worker of a trial, in the process that was forked for it.

A guard process is forked at once. It ends the worker, and every process that the worker started, when the process that
runs the suite is gone. The guard works also while the worker is busy in a library, or is gone itself.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil

from xmcbench.trial.program import MARK, adopt_orphans, end_processes, process_tree


def fork_guard(parent: int, other_descriptors: list[int]) -> None:
    """Fork the guard. PARENT is a pipe to which nobody writes: it closes when the parent process is gone."""
    worker = os.getpid()
    if os.fork():
        return
    os.setsid()
    for descriptor in other_descriptors:  # which the parent process waits for
        os.close(descriptor)
    while os.read(parent, 1):
        pass
    tree: list[psutil.Process] = []
    if os.getppid() == worker:
        with suppress(ProcessLookupError):
            os.killpg(worker, signal.SIGSTOP)  # at once; the search for what it started takes a moment
            tree = process_tree(worker)
            os.killpg(worker, signal.SIGKILL)  # a worker that was dying has left its tree, but not its group
    end_processes(own_mark(), tree)
    os._exit(0)


def own_mark() -> str:
    """The mark of the trial's processes, which ends with the innermost one."""
    return os.environ[MARK].split()[-1]


def start(directory: Path, events: int, parent: int, rank: int, size: int) -> int:
    """Run the worker, then end the processes that it left behind; the exit code of the worker."""
    fork_guard(parent, [events])
    adopt_orphans()
    try:
        from xmcbench.runs.worker import main

        return main(directory, events, rank, size)
    finally:
        end_processes(own_mark(), process_tree(os.getpid()))
