"""Files and folders that are complete or absent: written beside their place, synced, then moved into it.

Their rights follow the umask, as those of files that are written in place do. A process holds what it has not finished.
What a killed process left is held by none, and the next process that writes into the folder removes it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO, Literal

_UNFINISHED = re.compile(r"\.(?P<whole>.+)\.[0-9a-f]{16}\.(?P<kind>partial|older)")
_HERE, _RENAME_EXCHANGE = -100, 2  # AT_FDCWD and a flag of renameat2, from include/uapi/linux/fcntl.h and fs.h
_SETTLING_SECONDS = 1.0  # more than pass between making a file and holding it


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` when the block succeeds, and that is removed when the block raises.

    When the block has ended the content survives a power cut: the file and its folder are synced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder, expected a file", str(path))
    _remove_unfinished(path.parent.absolute())
    partial = beside(path)
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as problem:  # it names the temporary file, which means nothing to the user
        raise OSError(problem.errno, problem.strerror, str(path)) from problem
    with _held(partial):
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    _sync(path.parent)


@contextmanager
def atomic_directory(path: Path, partial: Path | None = None, replace: bool = False) -> Iterator[Path]:
    """A new folder that becomes `path` when the block succeeds, and that is removed when the block raises.

    If there is a folder `path` by then, it stays, or with `replace` gives way: no kill loses both. The new folder is
    `partial` where several processes write to it, otherwise a folder of this process beside `path`. Its files are
    synced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_unfinished(path.parent.absolute())
    if partial:
        shutil.rmtree(partial, ignore_errors=True)
    partial = partial or beside(path)
    partial.mkdir()
    with _held(partial):
        try:
            yield partial
            _follow_umask(partial)
            for file in (*partial.rglob("*"), partial):
                _sync(file)
            if not (replace and path.is_dir()):
                try:
                    partial.rename(path)
                except OSError:
                    if not path.is_dir():
                        raise
            elif not _exchange(partial, path):
                older = beside(path, "older")
                with _held(path):
                    path.rename(older)
                    partial.rename(path)
                    shutil.rmtree(older)
            _sync(path.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def beside(path: Path, kind: Literal["partial", "older"] = "partial") -> Path:
    """A new hidden name beside `path`: what has it counts as unfinished, or as what `path` was before."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.{kind}")


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders at once, as Linux can; False, and nothing is changed, elsewhere, also on NFS."""
    import ctypes

    with suppress(AttributeError):  # a C library without it
        rename = ctypes.CDLL(None).renameat2
        return bool(rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _RENAME_EXCHANGE) == 0)
    return False


@cache
def _remove_unfinished(folder: Path) -> None:
    """Remove what killed processes left in a folder, the first time that this process writes there.

    A folder that was moved away for a new one comes back, unless the new one is there.
    """
    for left in folder.glob(".*"):
        with suppress(OSError):
            name = _UNFINISHED.fullmatch(left.name)
            if name and time.time() - left.lstat().st_mtime > _SETTLING_SECONDS:
                with _held(left) as held:
                    if held and name["kind"] == "older" and not (whole := folder / name["whole"]).exists():
                        left.rename(whole)
                    elif held and left.is_dir():
                        shutil.rmtree(left)
                    elif held:
                        left.unlink()


@contextmanager
def _held(partial: Path) -> Iterator[bool]:
    """Hold a file or folder while the block runs, and say whether that is so.

    It is not where another process holds it, and where the file system has no locks.
    """
    kind, held = os.O_RDONLY if partial.is_dir() else os.O_RDWR, False
    with ExitStack() as stack:
        with suppress(OSError):
            descriptor = os.open(partial, kind | os.O_NOFOLLOW | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = True
        yield held


def _follow_umask(folder: Path) -> None:
    """Give files and folders in a new folder the rights that the umask gave to it.

    Some libraries (safetensors) write files that only their owner can read.
    """
    rights = folder.stat().st_mode & 0o777
    for path in folder.rglob("*"):
        mode = stat.S_IMODE(path.lstat().st_mode)
        wanted = mode | (rights if path.is_dir() else rights & 0o666)
        if wanted != mode and not path.is_symlink():  # a link leads to what is not of this folder
            with suppress(PermissionError):  # of another user who writes to the same folder
                path.chmod(wanted)


def _sync(path: Path) -> None:
    """Write a file or folder from the system's cache to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
