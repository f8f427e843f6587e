"""Files and folders that are complete or absent: written beside their place, synced, then moved into it.

Their rights follow the umask, as those of files that are written in place do.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` when the block succeeds, and that is removed when the block raises.

    When the block has ended the content survives a power cut: the file and its folder are synced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder, expected a file", str(path))
    partial = _beside(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(partial, flags, 0o666)
    except OSError as problem:  # it names the temporary file, which means nothing to the user
        raise OSError(problem.errno, problem.strerror, str(path)) from problem
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
def atomic_directory(path: Path, partial: Path | None = None) -> Iterator[Path]:
    """A new folder that becomes `path` when the block succeeds, and that is removed when the block raises.

    If another process has made `path` in the meantime, its folder stays. The new folder is `partial` where several
    processes write to it, otherwise a folder of this process beside `path`. Its files are synced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if partial is None:
        partial = _beside(path)
    else:
        shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        for file in (*partial.rglob("*"), partial):
            _sync(file)
        try:
            partial.rename(path)
        except OSError:
            if not path.is_dir():
                raise
        _sync(path.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _beside(path: Path) -> Path:
    """A new hidden name beside `path`."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}")


def _sync(path: Path) -> None:
    """Write a file or folder from the system's cache to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
