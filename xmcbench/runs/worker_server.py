"""Forks the workers of trials from a process that has imported the frameworks: `python -m ... SOCKET`.

Importing torch and transformers takes seconds; forking a process that has imported them takes milliseconds. This
process computes nothing, so a worker gets only modules from it, and no trial can change another. It ends when its
socket closes, which is when the process that runs the suite ends; on Linux the kernel kills it then.

A request is one JSON object (`directory`, `workers`, `environment`) with three file descriptors: the log, the pipe of
events, and a socket. The guard that is forked for it forks the workers. It writes a line into the socket then, and an
exit code when they have ended, with all that they started; a negative code is minus the signal.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import psutil

from xmcbench.trial.programs import MARK, adopt_orphans, end_processes, end_with_parent, process_tree

MAX_REQUEST_BYTES = 65536
GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL
IMPORTED = ("xmcbench.runs.worker", "safetensors.numpy", "scipy.sparse", "threadpoolctl")  # in every trial


def serve(channel: socket.socket) -> None:
    """Fork a guard for each request until the socket closes."""
    while True:
        content, descriptors, _, _ = socket.recv_fds(channel, MAX_REQUEST_BYTES, 3)
        _ended()  # guards of trials before, and orphans of their workers
        if not content:
            return
        request, (log, events, driver) = json.loads(content), descriptors
        for stream in (1, 2):
            os.dup2(log, stream)
        _import_for(Path(request["directory"]))
        sys.stdout.flush()
        sys.stderr.flush()
        if os.fork() == 0:
            channel.close()
            os.close(log)
            guard(request, events, socket.socket(fileno=driver))
        for descriptor in descriptors:
            os.close(descriptor)


def guard(request: dict[str, Any], events: int, driver: socket.socket) -> NoReturn:
    """Fork the workers of a trial. When one fails, or `driver` closes on the other side, end what still runs."""
    from xmcbench.runs.worker import PEER_LOST_EXIT, RENDEZVOUS

    Path(request["directory"], RENDEZVOUS).unlink(missing_ok=True)
    os.environ.update(request["environment"])
    adopt_orphans()
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    running, codes = set[int](), list[int]()
    for rank in range(request["workers"]):
        if (pid := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            driver.close()
            os.close(wake)
            os.close(woken)
            _work(request, events, rank)
        running.add(pid)
    with suppress(OSError):
        driver.send(b"\n")
    while running and not set(codes) - {0, PEER_LOST_EXIT}:
        if wake not in select.select([driver.fileno(), wake], [], [])[0]:
            break  # nobody waits for the trial any more
        os.read(wake, MAX_REQUEST_BYTES)
        ended = _ended()
        codes += [ended[pid] for pid in running & ended.keys()]  # others are orphans of workers
        running -= ended.keys()
    tree = process_tree(os.getpid())
    for pid in running:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGTERM)
    psutil.wait_procs([process for process in tree if process.pid in running], GRACE_SECONDS)
    # Also children that a worker left behind, in sessions of their own.
    end_processes(os.environ[MARK].split()[-1], [*tree, *process_tree(os.getpid())])
    with suppress(OSError):
        driver.send(str(min(filter(None, codes), default=0)).encode())
    os._exit(0)


def _work(request: dict[str, Any], events: int, rank: int) -> NoReturn:
    """Run worker `rank` of a trial in this forked process."""
    os.setsid()
    end_with_parent()
    adopt_orphans()
    code = 1
    try:
        if threads := int(request["environment"].get("OMP_NUM_THREADS", 0)):  # which loaded libraries do not read
            import threadpoolctl

            threadpoolctl.threadpool_limits(threads)
            if torch := sys.modules.get("torch"):
                torch.set_num_threads(threads)
        from xmcbench.runs.worker import main

        code = main(Path(request["directory"]), events, rank, request["workers"])
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException as problem:
        traceback.print_exc()
        sys.stdout.flush()
        if isinstance(problem, KeyboardInterrupt):  # the process ends as Python ends by it
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        os._exit(code)  # a thread that the method left behind holds nothing up


def _import_for(directory: Path) -> None:
    """Import the frameworks that the trial in `directory` needs, once for it and all later ones.

    What cannot be imported here fails in the worker again, which records why.
    """
    try:
        for name in IMPORTED:
            import_module(name)
        from xmcbench.plugins.registry import registry
        from xmcbench.runs.late_imports import import_late

        trial = json.loads((directory / "trial.json").read_bytes())["trial"]
        import_late(registry().method(trial["method"]).thing.late_imports)
        _make_once()
    except Exception:
        traceback.print_exc()


@cache
def _make_once() -> None:
    """Make what every worker would make again, and always makes alike: pydantic's checks, and facts of the machine."""
    from xmcbench.data.dataset import DatasetCard
    from xmcbench.data.prepared import Statistics
    from xmcbench.plugins.registry import registry
    from xmcbench.runs.job import Job
    from xmcbench.trial.provenance import machine
    from xmcbench.trial.record import Record, why_not_recordable

    for model in (Job, DatasetCard, Statistics, Record):
        model.model_rebuild()
    why_not_recordable({}, [])
    for kind in ("dataset", "evaluator"):
        registry().load_built_in(kind)
    machine()
    gc.freeze()  # a worker's collections pass over the frameworks' objects, and leave their memory shared


def _ended() -> dict[int, int]:
    """The exit codes of the child processes that have ended since the last call."""
    ended = {}
    with suppress(ChildProcessError):
        while (state := os.waitpid(-1, os.WNOHANG))[0]:
            ended[state[0]] = os.waitstatus_to_exitcode(state[1])
    return ended


if __name__ == "__main__":
    end_with_parent()  # importing the frameworks takes seconds, in which nobody looks at the socket
    adopt_orphans()
    serve(socket.socket(fileno=int(sys.argv[1])))
