"""Folders that are made once from their source and made again where they are damaged."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from filelock import FileLock

from xmcbench.errors import XMCBenchError
from xmcbench.files.atomic import atomic_directory
from xmcbench.files.manifest import DamagedFolder, check_manifest, write_manifest

T = TypeVar("T")
_log = logging.getLogger(__name__)


def open_or_make(directory: Path, open: Callable[[Path], T], write: Callable[[Path], None], name: str) -> T:
    """What `open` reads from the folder `directory`. A missing folder is made; a damaged one again, with a warning.

    `write` writes the files of the folder into the folder that it receives. `open` raises ValueError, OSError or
    EOFError where the files do not belong together; it is called after their digests are checked. `name` names the
    folder for people. One process at a time makes a folder, and the others wait for it.

    Raises XMCBenchError where files cannot be written.
    """
    if directory.is_dir():
        with suppress(DamagedFolder):  # another process may be making it again: look once more under the lock
            return _checked(directory, open)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(directory.with_name(f"{directory.name}.lock")):
        if directory.is_dir():
            try:
                return _checked(directory, open)
            except DamagedFolder as damage:
                _log.warning("warning: %s is damaged and is written again: %s", name, damage)
                shutil.rmtree(directory)
        for partial in directory.parent.glob(f".{directory.name}.*"):  # what a killed process left
            shutil.rmtree(partial, ignore_errors=True)
        with atomic_directory(directory) as made:
            try:
                write(made)
                write_manifest(made)
            except OSError as error:
                reason = f"{error.strerror or error}; {shutil.disk_usage(made).free:,} bytes of its disk are free"
                raise XMCBenchError(f"{directory}: {name} cannot be written ({reason})") from error
        return _checked(directory, open)


def _checked(directory: Path, open: Callable[[Path], T]) -> T:
    check_manifest(directory)
    try:
        return open(directory)
    except (OSError, EOFError, ValueError) as problem:  # pydantic's errors are ValueErrors
        raise DamagedFolder(f"{directory}: {' '.join(str(problem).split())}") from problem
