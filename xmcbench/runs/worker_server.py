"""Forks the workers of trials from a process that has imported the frameworks: `python -m ... SOCKET`.

Importing torch and transformers takes seconds; forking a process that has imported them takes milliseconds. This
process computes nothing, so a worker gets only modules from it, and no trial can change another. It ends when its
socket closes, which is when the process that runs the suite ends; on Linux the kernel kills it then.

A request is one JSON object (`directory`, `rank`, `size`, `environment`, `threads`) with three file descriptors: the
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

from xmcbench.runs.start_worker import start
from xmcbench.trial.program import adopt_orphans, end_with_parent

MAX_REQUEST_BYTES = 65536
Worker = Callable[[], int]  # the rest of a forked process; returns its exit code


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
            _redirect_output(log)
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
    """Run the worker in this forked process."""
    os.setsid()
    os.environ.update(request["environment"])
    if request["threads"]:
        _limit_threads(request["threads"])
    return start(Path(request["directory"]), events, parent, request["rank"], request["size"])


def _limit_threads(threads: int) -> None:
    """Limit the threads of every library that is loaded, as `OMP_NUM_THREADS` does for one that is not yet loaded."""
    import threadpoolctl

    threadpoolctl.threadpool_limits(threads)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(threads)


def _import_for(directory: Path) -> None:
    """Import the frameworks that the trial in `directory` needs, once for it and all later ones.

    What cannot be imported here fails in the worker again, which records why.
    """
    try:
        import_module("xmcbench.runs.worker")
        from xmcbench.plugins.registry import registry

        trial = json.loads((directory / "trial.json").read_bytes())["trial"]
        for module in registry().method(trial["method"]).thing.late_imports:
            import_module(module)
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


def _redirect_output(log: int) -> None:
    for stream in (1, 2):
        os.dup2(log, stream)


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
