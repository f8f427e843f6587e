"""Runs trials in subprocesses of this machine, so that no trial can harm the run: starts, watches and ends workers."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from xmcbench.data.pairs import usable_cores
from xmcbench.errors.secrets import redact
from xmcbench.files.atomic import atomic_write
from xmcbench.plugins.hookspecs import check_subclass, hookimpl
from xmcbench.plugins.registry import registry
from xmcbench.runs.events import decode
from xmcbench.runs.executor import Death, Executor, RunningTrial, Task
from xmcbench.runs.gpus import VISIBLE, Gpus
from xmcbench.runs.worker_server import GRACE_SECONDS
from xmcbench.suite.resources import Needs
from xmcbench.trial.programs import MARK, end_processes, new_mark, process_tree
from xmcbench.trial.record import Failure, Record, Status
from xmcbench.trial.store import StoreError

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
MUST_DEFINE = ("has_room", "start", "finished")  # methods of an executor


class WorkerServer:
    """The process `xmcbench.runs.worker_server`, which forks workers. At first its output goes to the file `log`."""

    def __init__(self, log: int) -> None:
        self._mark, marked = new_mark()
        self.marks = marked[MARK]
        self.channel, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "xmcbench.runs.worker_server", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                env=WORKER_ENVIRONMENT | os.environ | marked,
                start_new_session=True,
            )

    def end(self) -> None:
        """End the server and all its descendants."""
        end_processes(self._mark, process_tree(self.process.pid))
        self.process.wait()
        self.channel.close()


class _LocalTrial(RunningTrial):
    """A trial whose workers run on this machine, each in a process group of its own, under one guard.

    The cores are divided by `side_by_side` workers, those of other trials included. The workers see the GPUs `gpus`.
    """

    def __init__(self, task: Task, server: WorkerServer, side_by_side: int, gpus: list[str], log: int) -> None:
        self._server, self._rest, self.gpus = server, b"", gpus
        self.events, events = os.pipe()
        self.guard, theirs = socket.socketpair()  # closes when either process ends
        _, environment = new_mark(server.marks)
        if gpus or task.needs.gpus == 0:
            environment[VISIBLE] = ",".join(gpus)
        if side_by_side > 1 and "OMP_NUM_THREADS" not in os.environ:
            environment["OMP_NUM_THREADS"] = str(max(1, usable_cores() // side_by_side))
        request = {"directory": str(task.job.directory), "workers": task.needs.workers, "environment": environment}
        with theirs, suppress(BrokenPipeError, ConnectionResetError):  # of a server that ended, as `code` says
            socket.send_fds(server.channel, [json.dumps(request).encode()], [log, events, theirs.fileno()])
        os.close(events)
        self.guard.recv(1)  # the workers have started
        super().__init__(task)

    def code(self) -> int | None:
        """The exit code of the workers, None while they run; their events are received."""
        ended = select.select([self.guard], [], [], 0)[0]  # before the pipe is read: no last event is missed
        while select.select([self.events], [], [], 0)[0] and (content := os.read(self.events, 65536)):
            *lines, self._rest = (self._rest + content).split(b"\n")
            for line in lines:
                self.receive(decode(line))
        if not ended:
            return None
        if content := self.guard.recv(16):
            return int(content)
        with suppress(subprocess.TimeoutExpired):  # the server has ended, or somebody killed the guard alone
            return self._server.process.wait(POLL_SECONDS) or -signal.SIGKILL
        return -signal.SIGKILL

    def end(self) -> None:
        """Have the guard end the workers, and what these started."""
        with suppress(OSError):  # there is no guard any more, or it does not answer
            self.guard.shutdown(socket.SHUT_WR)
            self.guard.settimeout(2 * GRACE_SECONDS)
            self.guard.recv(16)
        self.guard.close()
        os.close(self.events)
        redact_file(self.task.job.directory / "log.txt")  # also what children of a worker printed


def redact_file(path: Path) -> None:
    """Strip a text file of secrets. It is rewritten only where it holds one."""
    if not path.is_file():
        return
    content = path.read_bytes()
    clean = redact(content.decode(errors="surrogateescape")).encode(errors="surrogateescape")
    if clean != content:
        with atomic_write(path) as file:
            file.write(clean)


class LocalExecutor(Executor):
    """Runs trials in subprocesses of this machine: one at a time because costs are compared, or `parallel` at once.

    Trials that use a GPU get the one of `gpus` that the fewest others use.

    Servers, which have the frameworks loaded, fork the workers. Methods that import the same share a server, so that a
    trial's memory does not depend on which trials ran before it. After a trial that was killed, servers start anew.
    They end with the outermost `with` block, which a tuning keeps open: to load the frameworks takes seconds.

    If a worker dies or a trial takes too long, the record is written here.
    """

    name = "local"
    summary = "subprocesses of this machine"

    def __init__(self, parallel: int = 1, gpus: Sequence[str] = ()) -> None:
        self._parallel = parallel
        self._gpus = Gpus(gpus)
        self._running: list[_LocalTrial] = []
        self._servers: dict[tuple[str, ...], WorkerServer] = {}  # by the modules that the methods import late
        self._killed = False  # a server may have adopted what a killed worker left behind

    def close(self) -> None:
        for trial in self._running:
            trial.end()
            self._gpus.give_back(trial.gpus)
        self._running.clear()
        self._end_servers()

    def check(self, needs: Needs) -> None:
        self._gpus.check(needs)

    def has_room(self, needs: Needs) -> bool:
        busy = sum(trial.task.needs.workers for trial in self._running)
        shared = self._parallel > len(self._gpus.users)  # more at once than there are GPUs is what the user asks for
        at_once = shared or self._gpus.has_free(needs)
        return not self._running or (at_once and busy + needs.workers <= self._parallel)

    def start(self, task: Task) -> None:
        log = task.job.directory / "log.txt"
        try:
            output = log.open("ab")
        except OSError as problem:
            raise StoreError(f"{log}: cannot write: {problem.strerror}") from problem
        with output:
            server = self._server(registry().method(task.job.trial.method).thing.late_imports, output.fileno())
            side_by_side = max(task.needs.workers, self._parallel)
            gpus = self._gpus.take(task.needs)
            self._running.append(_LocalTrial(task, server, side_by_side, gpus, output.fileno()))

    def _server(self, imports: tuple[str, ...], log: int) -> WorkerServer:
        """The running server; starts another one if it was killed."""
        if imports in self._servers and self._servers[imports].process.poll() is not None:
            self._servers.pop(imports).end()
        if imports not in self._servers:
            self._servers[imports] = WorkerServer(log)
        return self._servers[imports]

    def finished(self) -> list[Record]:
        channels = [channel for trial in self._running for channel in (trial.guard, trial.events)]
        select.select(channels, [], [], POLL_SECONDS)
        records = [record for trial in list(self._running) if (record := self._outcome(trial))]
        if self._killed and not self._running:
            self._end_servers()
        return records

    def _outcome(self, trial: _LocalTrial) -> Record | None:
        """The record of a trial that has ended or is overdue; None while it runs."""
        code = trial.code()
        if code is None and not trial.overdue:
            return None
        trial.end()
        self._running.remove(trial)
        self._gpus.give_back(trial.gpus)
        self._killed |= code is None or code < 0
        if not trial.recorded:  # a record that is there all the same is not the harness's
            trial.store.drop_record(trial.task.job.trial.key)
        return trial.outcome(None if code is None else _death(code))

    def _end_servers(self) -> None:
        for server in self._servers.values():
            server.end()
        self._servers, self._killed = {}, False


@hookimpl
def register_executors(register: Callable[[type[Executor]], None]) -> None:
    """Register the executor of this machine."""
    register(LocalExecutor)


def check_plugin(thing: Any) -> None:
    """Raise TypeError if `thing` cannot be registered as an executor."""
    check_subclass(thing, Executor, "xmcbench.Executor")
    if not isinstance(getattr(thing, "summary", None), str):
        raise TypeError(f"{thing.__name__} has no summary")
    if missing := [name for name in MUST_DEFINE if getattr(thing, name) is getattr(Executor, name)]:
        raise TypeError(f"{thing.__name__} does not define {', '.join(missing)}")


def _death(code: int) -> Death:
    """The cause of death of workers that left no record and whose first non-zero exit code is `code`."""
    if code == -signal.SIGKILL:
        return Status.OOM, Failure(type="SIGKILL", message="killed by signal 9, most likely out of memory")
    if code < 0:
        kind = signal.Signals(-code).name
        return Status.ERROR, Failure(type=kind, message=f"killed by signal {-code} ({kind})")
    return Status.ERROR, Failure(type="Exit", message=f"the worker ended with code {code} and left no record")
