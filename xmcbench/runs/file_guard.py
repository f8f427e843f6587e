"""Stops a method from opening the test files of its dataset: by an audit hook of Python, and by Landlock where it can.

The hook sees every file that Python code opens in this process, in any thread. It does not see files that a C library
opens by itself, nor files that other processes open.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from xmcbench.data.prepared import find_source, prepared_directory, source_folders
from xmcbench.evaluation import InvalidPredictions
from xmcbench.files import network
from xmcbench.plugins.registry import LOOKED_UP, registry
from xmcbench.runs import landlock
from xmcbench.runs.job import Job
from xmcbench.trial.programs import ENVIRONMENTS

T = TypeVar("T")

NAME = "audit hook"  # of this guard, for the record
TEST_FILES = ("test", "ignore_test")  # how the names of a prepared copy's test files start
ANNOTATIONS = ("train_targets", "ignore_train")  # the same for training annotations
# What frameworks, and compilers for GPUs, keep in a user's home, beside what they keep in the folder of caches; and the
# variables that name other folders for it. Other files there would be shared by trials that have nothing in common.
HOME_CACHES = (".config/matplotlib", ".cupy", ".nv", ".triton")
CACHES = ("huggingface", "matplotlib", "numba", "torch", "torch_extensions")
CACHE_VARIABLES = (
    "CUDA_CACHE_PATH", "CUPY_CACHE_DIR", "HF_HOME", "MPLCONFIGDIR", "NUMBA_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR", "TORCH_HOME", "TRITON_CACHE_DIR",
)  # fmt: skip
CACHE_FOLDERS = (ENVIRONMENTS, "tokenizers", "tokens")  # besides those of datasets
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class BrokenContractError(InvalidPredictions):
    """A method broke a rule that every trial checks: the trial is invalid, and the message names the rule."""


@dataclass
class Guard:
    """The places that a stage must not open, and whether it did."""

    stage: str
    folders: Sequence[Path]  # nothing in them may be opened
    prepared: Path | None = None  # the prepared copy, in which names must not start like `names`, if there is one
    names: tuple[str, ...] = TEST_FILES
    writable: Sequence[Path] | None = None  # the folders of the home in which a trial may write; None: any
    broken: BrokenContractError | None = None  # the first rule that the stage broke

    def __post_init__(self) -> None:
        self.folders = [folder.resolve() for folder in self.folders]
        self.prepared = self.prepared and self.prepared.resolve()
        self.home = Path(os.environ.get("HOME", "/")).resolve()
        if self.home == Path("/"):  # that of a process without a home of its own
            self.writable = None
        if self.writable is not None:
            self.writable = [folder.resolve() for folder in self.writable]

    def reads(self, path: Path) -> bool:
        """Whether the path is closed to the stage."""
        hidden = self.prepared == path.parent and path.name.startswith(self.names)
        return hidden or any(folder in path.parents for folder in self.folders)

    def shares(self, path: Path) -> bool:
        """Whether a file that is written lies in the user's home, where other trials find it."""
        if self.writable is None or self.home not in path.parents or path.parent.name == "__pycache__":
            return False
        return not any(folder in path.parents for folder in self.writable)

    def refuse(self, what: str, rule: str) -> NoReturn:
        rule = rule if self.prepared else "a saved model is all in its folder"
        self.broken = self.broken or BrokenContractError(f"the method {what} in {self.stage}: {rule}")
        raise self.broken


_active: Guard | None = None


@contextmanager
def guarded(guard: Guard) -> Iterator[None]:
    """Raise `BrokenContractError` if the block opens what is closed, also if it caught the error of the hook.

    So does looking up a dataset in the registry: its source could be read.
    """
    global _active
    _active = guard
    try:
        yield
    finally:
        _active = None
    if guard.broken:
        raise guard.broken


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    guard = _active
    if guard is None:
        return
    if event == LOOKED_UP:
        guard.refuse(f"looked up the dataset {arguments[0]!r}", "what a method may see of a dataset is in `train`")
    if event == "open" and isinstance(arguments[0], str | bytes):
        path = Path(os.path.realpath(os.fsdecode(arguments[0])))
        if guard.reads(path):
            guard.refuse(f"opened {path}", "no method may read the dataset's files, which hold test targets")
        if (arguments[2] or 0) & WRITING and guard.shares(path):
            guard.refuse(f"wrote {path}", "what it keeps belongs into run.checkpoint or run.cache")


sys.addaudithook(_hook)  # once per process: Python cannot remove it


def framework_caches() -> list[Path]:
    """The folders in which frameworks and compilers keep what every process of the user may share."""
    named = [Path(os.environ[name]) for name in CACHE_VARIABLES if os.environ.get(name)]
    home = Path(os.environ.get("HOME", "/"))
    within = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return [*named, *(home / name for name in HOME_CACHES), *(within / name for name in CACHES)]


class Sandbox:
    """Keeps the method of a trial from test files and the network, by stage, and lets the harness through.

    With `own_thread` this thread ends with the trial: the kernel may restrict it, for good.
    """

    def __init__(self, job: Job, own_thread: bool) -> None:
        self._job, self._own_thread = job, own_thread
        self._unrestricted: ThreadPoolExecutor | None = None  # a thread that may read test files, where this may not
        self._caches = framework_caches()  # before the method could name others
        self.checks: dict[str, str] = {}  # which checks of the contract were made, and how

    @cached_property
    def places(self) -> tuple[tuple[Path, ...], Path]:
        """The folders of the dataset's source, and that of its prepared copy. The card of the former is read here."""
        job = self._job
        source = find_source(job.trial.dataset, job.data)
        return source_folders(source, job.data, job.cache), prepared_directory(source, job.data, job.cache)

    @contextmanager
    def closed(self, stage: str) -> Iterator[None]:
        """Opening the dataset's test files raises `BrokenContractError` in the block.

        The network is off, but for a method that declares hosts.
        """
        job, (folders, prepared) = self._job, self.places
        names = TEST_FILES + (ANNOTATIONS if job.trial.track == "zero-shot" else ())
        if self._own_thread and self._unrestricted is None:
            test_files = [path for path in prepared.iterdir() if path.name.startswith(names)]
            self._restrict([folder for folder in folders if folder.is_dir()] + test_files)
        self.checks["test files"] = f"{landlock.NAME}, {NAME}" if self._unrestricted else NAME
        hosts = registry().method(job.trial.method, job.trial.distribution).thing.info.network
        self.checks["network"] = f"open, for {', '.join(hosts)}" if hosts else network.NAME
        kept_off = nullcontext() if hosts else network.forbid_network()
        # With --debug the process is the user's.
        own_folders = job.store, job.cache, job.data, Path(tempfile.gettempdir()), *self._caches
        writable = own_folders if self._own_thread else None
        with guarded(Guard(stage, folders, prepared, names, writable)), kept_off:
            yield

    def outside(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Call a function of the harness, which may read test files."""
        if self._unrestricted is None:
            return function(*arguments, **options)
        return self._unrestricted.submit(function, *arguments, **options).result()

    def _restrict(self, test_files: list[Path]) -> None:
        """Have the kernel forbid this thread to read test files, where this hinders nothing that a trial needs."""
        above = landlock.folders_above(test_files)
        if above & {Path(tempfile.gettempdir()).resolve(), self._job.store.resolve()}:
            return  # what is created there later could not be read
        for folder in (*(self._job.cache / name for name in CACHE_FOLDERS), *self._caches):
            if folder.parent.resolve() in above:
                folder.mkdir(exist_ok=True)
        unrestricted = ThreadPoolExecutor(1)
        unrestricted.submit(int).result()  # starts the thread
        if landlock.forbid_reading(test_files):
            self._unrestricted = unrestricted
