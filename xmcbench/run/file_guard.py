"""Stops a method from opening the test files of its dataset, with an audit hook of Python.

The hook sees every file that Python code opens in this process, in any thread. It does not see files that a C library
opens by itself, nor files that other processes open.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xmcbench.evaluation import InvalidPredictions

NAME = "audit hook"  # of this guard, for the record
TEST_FILES = ("test", "ignore_test")  # how the names of a prepared copy's test files start


class BrokenContractError(InvalidPredictions):
    """A method broke a rule that every trial checks: the trial is invalid, and the message names the rule."""


@dataclass
class _Guard:
    """The files that the current stage must not open, and those that it opened."""

    stage: str
    folder: Path  # the dataset's own files
    prepared: Path  # the prepared copy
    opened: list[str] = field(default_factory=list)

    def forbids(self, path: str) -> bool:
        real = Path(os.path.realpath(path))
        return (self.prepared == real.parent and real.name.startswith(TEST_FILES)) or self.folder in real.parents

    def error(self) -> BrokenContractError:
        return BrokenContractError(
            f"the method opened {self.opened[0]} in {self.stage}: no method may read the dataset's files, "
            "which hold test targets"
        )


def existing_test_files(folder: Path, prepared: Path) -> list[Path]:
    """The test files of the prepared copy, and the folder of the dataset's own files if there is one."""
    own = [folder] if folder.is_dir() else []
    return own + [path for path in prepared.iterdir() if path.name.startswith(TEST_FILES)]


_active: _Guard | None = None
_installed = False


@contextmanager
def forbid_test_files(folder: Path, prepared: Path, stage: str) -> Iterator[None]:
    """Raise `BrokenContractError` if the block opens a test file, also if the block caught the error of the hook."""
    global _active
    _install()
    guard = _active = _Guard(stage, folder.resolve(), prepared.resolve())
    try:
        yield
    finally:
        _active = None
    if guard.opened:
        raise guard.error()


def _install() -> None:
    """Add the hook, once per process: Python cannot remove it. It does nothing outside `forbid_test_files`."""
    global _installed
    if not _installed:
        sys.addaudithook(_hook)
        _installed = True


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    guard = _active
    if event != "open" or guard is None or not isinstance(arguments[0], str | bytes):
        return
    path = os.fsdecode(arguments[0])
    if guard.forbids(path):
        guard.opened.append(path)
        raise guard.error()
