"""Keeps a method from opening the test files of its dataset: an audit hook of Python.

The hook sees what Python code opens in this process, in any thread. It does not see files that a C library opens by
itself, nor other processes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xmcbench.evaluation import InvalidPredictions


class BrokenContractError(InvalidPredictions):
    """A method broke a rule that every trial checks: the trial has no score, and the message names the rule."""


@dataclass
class _Guard:
    """What may not be opened now, and what was."""

    folder: Path | None  # the dataset's own files
    prepared: Path  # the copy that xmcbench prepared: files that begin with "test"
    opened: list[str] = field(default_factory=list)

    def forbids(self, path: str) -> bool:
        real = Path(os.path.realpath(path))
        if self.folder is not None and self.folder in real.parents:
            return True
        return self.prepared == real.parent and real.name.startswith(("test", "ignore_test"))


_guards: list[_Guard] = []  # of the stages that run now: at most one in a worker
_installed = False


@contextmanager
def no_test_files(folder: Path | None, prepared: Path, stage: str) -> Iterator[None]:
    """Raise `BrokenContractError` where the block opens a test file, or opened one and hid the error."""
    _install()
    guard = _Guard(folder and Path(os.path.realpath(folder)), Path(os.path.realpath(prepared)))
    _guards.append(guard)
    try:
        yield
    finally:
        _guards.remove(guard)
    if guard.opened:
        raise BrokenContractError(_message(stage, guard.opened))


def _message(stage: str, opened: Sequence[str]) -> str:
    return f"the method opened {opened[0]} in {stage}: no method may read the dataset's files, which hold test targets"


def _install() -> None:
    """Add the hook, once a process: it cannot be taken out, and does nothing where no stage runs."""
    global _installed
    if not _installed:
        sys.addaudithook(_hook)
        _installed = True


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not _guards or not isinstance(arguments[0], str | bytes):
        return
    path = os.fsdecode(arguments[0])
    for guard in _guards:
        if guard.forbids(path):
            guard.opened.append(path)
            raise BrokenContractError(_message("fit or predict", [path]))
