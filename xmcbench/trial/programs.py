"""Programs outside this process: their time, memory and child processes are limited from here, and a program whose
packages conflict with those of xmcbench has a Python environment of its own.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil

from xmcbench.errors import XMCBenchError
from xmcbench.files.atomic import atomic_write
from xmcbench.trial.budget import TooLargeError, watching_program
from xmcbench.trial.meter import children_cpu_seconds, running_program

__all__ = ["Environment", "ResidentProgram", "run_program"]  # of `xmcbench.programs`

MARK = "XMCBENCH_PROCESS"  # an environment variable that child processes inherit: a token for each owner
POLL_SECONDS = 0.1
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
MAKE_SECONDS = 1800
ENVIRONMENTS = "environments"  # a folder of the cache


class ProgramError(XMCBenchError):
    """A program failed or exceeded its time limit."""


@dataclass(frozen=True)
class ProgramUsage:
    """The cost of a program: wall-clock seconds, and the peak of the summed resident bytes of its processes.

    Its processor seconds are those of a child process that has ended (`xmcbench.trial.budget.processor_seconds`).
    """

    seconds: float
    peak_bytes: int


def run_program(
    command: Sequence[str | Path],
    directory: Path,
    environment: Mapping[str, str] | None = None,
    max_seconds: float | None = None,
    max_cpu_seconds: float | None = None,
    max_bytes: float | None = None,
    poll: Callable[[], None] = lambda: None,
) -> ProgramUsage:
    """Run `command` in `directory` until it ends; `poll` is called ten times per second. No child process survives.

    Raises `ProgramError` for an exit code other than 0, for more than `max_seconds` of wall clock and for more than
    `max_cpu_seconds` of processors, `TooLargeError` for more than `max_bytes` of resident memory in all its processes
    together.
    """
    (mark, marked), start, before, peak = new_mark(), time.monotonic(), children_cpu_seconds(), 0
    words = [str(word) for word in command]
    variables = {**os.environ, **(environment or {}), **marked}
    try:
        process = subprocess.Popen(words, cwd=directory, env=variables, stdin=subprocess.DEVNULL)
    except OSError as problem:
        raise ProgramError(f"{words[0]}: cannot be started: {problem.strerror}") from problem
    with running_program(), watching_program():
        try:
            while process.poll() is None:
                peak = max(peak, resident_bytes(process.pid))
                if max_bytes is not None and peak > max_bytes:
                    raise TooLargeError(
                        f"{_name(words)} took {peak / 1e9:.2f} GB of memory, allowed {max_bytes / 1e9:.2f} GB"
                    )
                if max_seconds is not None and time.monotonic() - start > max_seconds:
                    raise ProgramError(f"{_name(words)} was ended after {max_seconds:g} seconds of wall clock")
                if max_cpu_seconds is not None and children_cpu_seconds() - before > max_cpu_seconds:
                    raise ProgramError(f"{_name(words)} was ended after {max_cpu_seconds:g} seconds of processors")
                poll()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_SECONDS)
        finally:
            end_processes(mark, process_tree(process.pid))
            process.wait()
    poll()
    if process.returncode:
        raise ProgramError(f"{_name(words)} ended with code {process.returncode}, expected 0; its output is in the log")
    return ProgramUsage(time.monotonic() - start, peak)


class ResidentProgram:
    """A program that answers each line on its standard input with one line. Leaving the `with` block ends it.

    It starts with the first line, and again with the next one where it ended early.
    """

    def __init__(self, command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> None:
        self._words = [str(word) for word in command]
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[str] | None = None
        self._mark = ""

    def ask(self, line: str) -> str:
        """The answer to `line`, without its end. Raises `ProgramError` where the program ends instead."""
        if self._process is None:
            self._start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        answer = ""
        with suppress(BrokenPipeError):
            print(line, file=process.stdin, flush=True)
            answer = process.stdout.readline()
        if not answer.endswith("\n"):
            self._end()
            raise ProgramError(f"{_name(self._words)} ended instead of an answer; its output is in the log")
        return answer.removesuffix("\n")

    def _start(self) -> None:
        self._mark, marked = new_mark()
        variables = {**os.environ, **self._environment, **marked}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        try:
            self._process = subprocess.Popen(self._words, env=variables, **pipes)
        except OSError as problem:
            raise ProgramError(f"{self._words[0]}: cannot be started: {problem.strerror}") from problem

    def _end(self) -> None:
        if self._process is not None:
            end_processes(self._mark, process_tree(self._process.pid))
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                with suppress(OSError):
                    pipe.close()
        self._process = None

    def __enter__(self) -> ResidentProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()


def new_mark(outer: str | None = None) -> tuple[str, dict[str, str]]:
    """A token for the child processes that are started next, and the variable that marks them.

    `outer` are the marks of the programs around them; by default, those of this process.
    """
    mark = uuid4().hex
    return mark, {MARK: f"{os.environ.get(MARK, '') if outer is None else outer} {mark}".strip()}


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ends, so that none leaves its tree (Linux)."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends, also while it is stopped (Linux)."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def resident_bytes(pid: int) -> int:
    """Resident memory of a process and its descendants."""
    total = 0
    for process in process_tree(pid):
        with suppress(psutil.Error):
            total += process.memory_info().rss
    return total


def end_processes(mark: str, processes: Iterable[psutil.Process]) -> None:
    """Kill `processes` with their descendants, and every process that carries `mark`, but not this process.

    The mark finds processes that left the tree into sessions of their own.
    """
    known = set(processes)
    for _ in range(20):  # a process may start another between the listing and its end
        known |= {child for process in known for child in _children(process)} | {*_marked(mark)}
        left = {process for process in known if process.pid != os.getpid() and _alive(process)}
        if not left:
            return
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=0.5)


def process_tree(pid: int) -> list[psutil.Process]:
    """A process and its descendants; nothing if there is no such process."""
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        return [root, *_children(root)]
    return []


def _children(process: psutil.Process) -> list[psutil.Process]:
    """All descendants. psutil checks that a number does not belong to another process by now."""
    with suppress(psutil.Error):
        return process.children(recursive=True)
    return []


def _marked(mark: str) -> list[psutil.Process]:
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if mark in process.environ().get(MARK, ""):
                processes.append(process)
    return processes


def _alive(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def _name(words: Sequence[str]) -> str:
    return " ".join(Path(word).name for word in words[:3])


@dataclass(frozen=True)
class Environment:
    """A Python with the packages that a method's program needs: created on request, or chosen by the user."""

    name: str
    requirements: tuple[str, ...]  # as for pip; other requirements are another environment
    no_dependencies: tuple[str, ...] = ()  # installed without their dependencies

    @property
    def directory(self) -> Path:
        """The folder of the environment."""
        from xmcbench.data.prepared import default_cache_dir

        identity = "\n".join([*self.requirements, "", *self.no_dependencies, sys.version])
        folder = f"{self.name}-{sha256(identity.encode()).hexdigest()[:12]}"
        return default_cache_dir() / ENVIRONMENTS / folder

    def python(self) -> Path | None:
        """The interpreter, or None if no environment was created or chosen."""
        directory = self.directory
        link = directory.with_suffix(".python")
        if link.is_file():
            return Path(link.read_text(encoding="utf-8"))
        return directory / "bin" / "python" if (directory / "ready").is_file() else None

    def make(self) -> Path:
        """Create the environment with venv and pip; return its interpreter. Needs a package index."""
        directory = self.directory
        python, ready = directory / "bin" / "python", directory / "ready"
        if not ready.is_file():
            install = [str(python), "-m", "pip", "install", "--quiet"]
            _call([sys.executable, "-m", "venv", "--clear", str(directory)])
            if self.no_dependencies:
                _call([*install, "--no-deps", *self.no_dependencies])
            _call([*install, *self.requirements])
            with atomic_write(ready) as file:
                file.write(b"")
        return python

    def use(self, python: Path) -> None:
        """Choose the interpreter of an existing environment that has the packages."""
        if not os.access(python, os.X_OK):
            raise XMCBenchError(f"{python}: cannot be run, expected a Python interpreter")
        with atomic_write(self.directory.with_suffix(".python")) as file:
            file.write(str(python.absolute()).encode())


def _call(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=MAKE_SECONDS)
    except (OSError, subprocess.SubprocessError) as problem:
        lines = str(getattr(problem, "stderr", "") or problem).strip().splitlines()
        reason = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "")
        raise XMCBenchError(f"{' '.join(command[1:5])} ...: failed: {reason}") from problem
