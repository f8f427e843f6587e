"""Forks the workers of trials from a process that has imported the frameworks: `python -m ... SOCKET`.

Importing torch and transformers takes seconds; forking a process that has imported them takes milliseconds. This
process computes nothing, so a worker gets only modules from it, and no trial can change another. It ends when its
socket closes, which is when the process that runs the suite ends; on Linux the kernel kills it then.

A request is one JSON object (`directory`, `rank`, `size`, `environment`) with three file descriptors: the
log, the pipe of events, and the pipe that closes when the suite's process ends. The answers are lines: `{"pid": ...}`
when a worker was forked, `{"pid": ..., "code": ...}` when it has ended; a negative code is minus the signal.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil

from xmcbench.trial.programs import MARK, adopt_orphans, end_processes, end_with_parent, process_tree

MAX_REQUEST_BYTES = 65536
Worker = Callable[[], int]  # the rest of a forked process; returns its exit code


def fork_guard(parent: int, events: int) -> None:
    """Fork the guard. PARENT is a pipe to which nobody writes: it closes when the parent process is gone."""
    worker = os.getpid()
    if os.fork():
        return
    os.setsid()
    os.close(events)  # which the parent process waits for
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


def serve(channel: socket.socket) -> Worker | None:
    """Fork a worker for each request until the socket closes. In a forked process, return what it shall run."""
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    workers: set[int] = set()
    while True:
        readable, _, _ = select.select([channel.fileno(), wake], [], [])
        if wake in readable:
            os.read(wake, MAX_REQUEST_BYTES)
            for pid, code in _ended():
                if pid in workers:  # others are orphans of workers
                    workers.remove(pid)
                    _answer(channel, {"pid": pid, "code": code})
        if channel.fileno() in readable:
            content, descriptors, _, _ = socket.recv_fds(channel, MAX_REQUEST_BYTES, 3)
            if not content:
                return None
            request, (log, events, parent) = json.loads(content), descriptors
            for stream in (1, 2):
                os.dup2(log, stream)
            _import_for(Path(request["directory"]))
            sys.stdout.flush()
            sys.stderr.flush()
            if (pid := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for descriptor in (channel.detach(), wake, woken, log):
                    os.close(descriptor)
                return lambda: _work(request, events, parent)
            workers.add(pid)
            for descriptor in descriptors:
                os.close(descriptor)
            _answer(channel, {"pid": pid})


def _work(request: dict[str, Any], events: int, parent: int) -> int:
    """Run the worker in this forked process, then end the processes that it left behind; its exit code."""
    os.setsid()
    os.environ.update(request["environment"])
    if threads := int(request["environment"].get("OMP_NUM_THREADS", 0)):  # which libraries that are loaded do not read
        import threadpoolctl

        threadpoolctl.threadpool_limits(threads)
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(threads)
    fork_guard(parent, events)
    adopt_orphans()
    try:
        from xmcbench.runs.worker import main

        return main(Path(request["directory"]), events, request["rank"], request["size"])
    finally:
        end_processes(own_mark(), process_tree(os.getpid()))


def _import_for(directory: Path) -> None:
    """Import the frameworks that the trial in `directory` needs, once for it and all later ones.

    What cannot be imported here fails in the worker again, which records why.
    """
    try:
        import_module("xmcbench.runs.worker")
        from xmcbench.plugins.registry import registry
        from xmcbench.runs.attempt import import_late

        trial = json.loads((directory / "trial.json").read_bytes())["trial"]
        import_late(registry().method(trial["method"]).thing.late_imports)
    except Exception:
        traceback.print_exc()


def _ended() -> list[tuple[int, int]]:
    """Numbers and exit codes of the child processes that have ended."""
    ended = []
    with suppress(ChildProcessError):
        while (state := os.waitpid(-1, os.WNOHANG))[0]:
            ended.append((state[0], os.waitstatus_to_exitcode(state[1])))
    return ended


def _answer(channel: socket.socket, answer: dict[str, int]) -> None:
    with suppress(BrokenPipeError):  # the socket is about to close on this side too
        channel.sendall(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    from xmcbench.errors import XMCBenchError

    end_with_parent()  # importing the frameworks takes seconds, in which nobody looks at the socket
    adopt_orphans()
    if worker := serve(socket.socket(fileno=int(sys.argv[1]))):
        try:
            code = worker()
        except XMCBenchError as error:
            sys.exit(str(error))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # a thread that the method left behind holds nothing up
