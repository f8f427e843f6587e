"""Landlock, of Linux 5.19 and later: the kernel refuses to open certain files for reading, in Python or not.

It holds for the thread that asks for it and for all threads and processes that this thread starts later, for good.
Landlock has no rules that forbid. Everything beside the forbidden paths is allowed instead: each entry of each folder
above them. What is created later directly in such a folder is therefore forbidden too.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

NAME = "Landlock"  # of this guard, for the record
# From include/uapi/linux/landlock.h, prctl.h and asm-generic/unistd.h: the same on all processors but Alpha.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH, _NO_NEW_PRIVILEGES = 1, 1, 38
_READ_FILE, _REFER = 1 << 2, 1 << 13
_MIN_VERSION = 2  # the first one refuses to move files between folders
_libc = ctypes.CDLL(None, use_errno=True)


def forbid_reading(paths: Iterable[Path]) -> bool:
    """Forbid this thread to read the files and folders `paths`; False, and nothing is forbidden, if that cannot be."""
    forbidden = {path.resolve() for path in paths}
    if sys.platform != "linux" or not forbidden:
        return False
    try:
        if _call(_CREATE_RULESET, None, 0, _VERSION) < _MIN_VERSION:
            return False
        handled = struct.pack("=Q", _READ_FILE | _REFER)
        ruleset = _call(_CREATE_RULESET, handled, len(handled), 0)
        try:
            for path in _beside(forbidden):
                with suppress(FileNotFoundError):  # a file that another process has removed by now
                    _allow(ruleset, path)
            _check(_libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))  # the kernel asks for this of unprivileged processes
            _call(_RESTRICT_SELF, ruleset, 0)
        finally:
            os.close(ruleset)
    except (OSError, AttributeError):  # no Landlock, or a folder above the paths cannot be listed
        return False
    return True


def folders_above(paths: Iterable[Path]) -> set[Path]:
    """The folders in which nothing that is created after `forbid_reading(paths)` can be read."""
    return {parent for path in paths for parent in path.resolve().parents}


def _beside(forbidden: set[Path]) -> Iterator[Path]:
    """The entries of the folders above `forbidden` which are not above it themselves, without symbolic links."""
    above = folders_above(forbidden)
    for folder in above - forbidden:
        with os.scandir(folder) as entries:
            for entry in entries:
                path = folder / entry.name
                if path not in above and path not in forbidden and not entry.is_symlink():
                    yield path


def _allow(ruleset: int, path: Path) -> None:
    """Allow files at or below `path` to be read, and moved to other folders that are allowed."""
    target = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        rights = _READ_FILE | _REFER if path.is_dir() else _READ_FILE
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, target), 0)
    finally:
        os.close(target)


def _call(number: int, *arguments: int | bytes | None) -> int:
    """A system call by its number. Raises `OSError`."""
    sized = [ctypes.c_size_t(value) if isinstance(value, int) else value for value in arguments]
    return _check(_libc.syscall(ctypes.c_long(number), *sized))


def _check(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
