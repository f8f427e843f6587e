"""Reading what may come from anyone: regular files of a bounded size, JSON objects in which each name is there once."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xmcbench.errors import XMCBenchError, shown


def open_regular(path: Path, limit: int | None = None, buffering: int = -1) -> Any:
    """Open a regular file of at most `limit` bytes for reading. Raises XMCBenchError for any other, or OSError.

    A pipe or a device would block the reader or never end; `O_NONBLOCK` keeps a pipe from blocking in `open`.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except ValueError as problem:  # a NUL in the name
        raise XMCBenchError(f"{str(path)!r}: cannot read: {problem}") from None
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise XMCBenchError(f"{path}: not a regular file")
        if limit is not None and state.st_size > limit:
            raise XMCBenchError(f"{path}: larger than {limit:,} bytes, the limit for this kind of file")
        return os.fdopen(descriptor, "rb", buffering)
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes. Raises XMCBenchError for any other file."""
    try:
        with open_regular(path, limit) as file:
            content: bytes = file.read(limit + 1)
    except OSError as problem:
        raise XMCBenchError(f"{path}: cannot read: {problem.strerror}") from None
    if len(content) > limit:  # it grew since it was opened
        raise XMCBenchError(f"{path}: larger than {limit:,} bytes, the limit for this kind of file")
    return content


def with_names_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs, for `object_pairs_hook` of `json.loads`. Raises ValueError for a name that repeats."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(repeated([name for name, _ in pairs]))
    return found


def repeated(names: Sequence[str]) -> str:
    """What is wrong with names of which one repeats; empty if none does."""
    if len(set(names)) == len(names):
        return ""
    twice = next(name for place, name in enumerate(names) if name in names[:place])
    return f"found {shown(twice)} twice, expected each column or key once"
