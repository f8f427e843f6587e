"""Folders that are made once from their source and made again where they are damaged.

Each holds its own name, which has a hash of what it was made from: a folder that was copied to the place of another is
not opened.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from xmcbench.errors import XMCBenchError, shown
from xmcbench.files.atomic import atomic_directory
from xmcbench.files.faults import MachineFault, is_missing, machine_fault
from xmcbench.files.manifest import DamagedFolder, check_manifest, write_manifest

T = TypeVar("T")
NAME = "name.txt"  # the file that holds the name of the folder
_LONGEST_NAME = 1000
_log = logging.getLogger(__name__)


def open_or_make(directory: Path, open: Callable[[Path], T], write: Callable[[Path], None], name: str) -> T:
    """What `open` reads from the folder `directory`. A missing folder is made; a damaged one again, with a warning.

    `write` writes the files of the folder into the folder that it receives. `open` raises ValueError, OSError or
    EOFError where the files do not belong together; it is called after their digests are checked. `name` names the
    folder for people. One process at a time makes a folder, and the others wait for it.

    Raises XMCBenchError where files cannot be written, and `MachineFault` where they cannot be read: then the folder
    stays as it is.
    """
    if directory.is_dir():
        with suppress(DamagedFolder):  # another process may be making it again: look once more under the lock
            return _checked(directory, open)
    from filelock import FileLock

    directory.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(directory.with_name(f"{directory.name}.lock")):
        if directory.is_dir():
            try:
                return _checked(directory, open)
            except DamagedFolder as damage:
                _log.warning("warning: %s is damaged and is written again: %s", name, damage)
                shutil.rmtree(directory)
        with atomic_directory(directory) as made:
            try:
                write(made)
                (made / NAME).write_text(directory.name, encoding="utf-8")
                write_manifest(made)
            except OSError as error:
                reason = f"{error.strerror or error}; {shutil.disk_usage(made).free:,} bytes of its disk are free"
                raise XMCBenchError(f"{directory}: {name} cannot be written ({reason})") from error
        return _checked(directory, open)


def check_cached_folder(directory: Path, names: Iterable[str] | None = None) -> None:
    """Raise `DamagedFolder` unless `directory` is the folder that was made under this name, and its files are intact.

    Only the files `names` are checked, by default all.
    """
    check_manifest(directory, None if names is None else [*names, NAME])
    try:
        found = (directory / NAME).read_bytes()[:_LONGEST_NAME].decode(errors="replace")
    except OSError as problem:
        raise _unreadable(directory / NAME, problem) from problem
    if found != directory.name:
        raise DamagedFolder(f"{directory}: holds a copy of {shown(found)}")


def _checked(directory: Path, open: Callable[[Path], T]) -> T:
    check_cached_folder(directory)
    try:
        return open(directory)
    except OSError as problem:
        raise _unreadable(directory, problem) from problem
    except (EOFError, ValueError) as problem:  # pydantic's errors are ValueErrors
        if fault := machine_fault(problem):
            raise MachineFault(directory, OSError(0, fault)) from problem
        raise DamagedFolder(f"{directory}: {' '.join(str(problem).split())}") from problem


def _unreadable(path: Path, problem: OSError) -> XMCBenchError:
    """Damage, where a file is missing or a library gives no error number; otherwise a fault of the machine."""
    if machine_fault(problem) or (problem.errno and not is_missing(problem)):
        return MachineFault(path, problem)
    return DamagedFolder(f"{path}: {' '.join(str(problem).split())}")
