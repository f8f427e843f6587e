"""Reading what may come from anyone: regular files of a bounded size, JSON objects in which each name is there once.

Faults of the machine (a full disk, a failing one, too few file descriptors) say nothing about what a file holds. What
is stored stays as it is, no outcome of a trial is recorded, and the next run tries again.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xmcbench.errors import XMCBenchError, shown, text_of

MACHINE_FAULTS = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE)
)
HINTS = {errno.EMFILE: " (raise `ulimit -n`)"}


def open_regular(path: Path, limit: int | None = None, buffering: int = -1) -> Any:
    """Open a regular file of at most `limit` bytes for reading. Raises XMCBenchError for any other, or OSError.

    A pipe or a device would block the reader or never end; `O_NONBLOCK` keeps a pipe from blocking in `open`.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
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


class MachineFault(XMCBenchError):
    """A file cannot be read, though it is there: the machine is at fault, or the rights to the file."""

    def __init__(self, path: object, problem: OSError) -> None:
        reason = (problem.strerror or str(problem)) + HINTS.get(problem.errno or 0, "")
        super().__init__(f"{path}: cannot be read: {reason}; nothing is deleted, try again")


def is_missing(problem: OSError) -> bool:
    """Whether `problem` says that there is no such file."""
    return problem.errno in (errno.ENOENT, errno.ENOTDIR)


def machine_fault(problem: BaseException | None) -> str | None:
    """The message of the fault of the machine that `problem`, or what led to it, is about; None if there is none."""
    seen: set[int] = set()
    while problem is not None and id(problem) not in seen:
        seen.add(id(problem))
        if (code := _code(problem)) in MACHINE_FAULTS:
            return os.strerror(code) + HINTS.get(code, "")
        problem = problem.__cause__ or (None if problem.__suppress_context__ else problem.__context__)
    return None


def _code(problem: BaseException) -> int:
    """The error number of an exception, 0 if it has none."""
    if isinstance(problem, OSError) and problem.errno:
        return problem.errno
    # Libraries in Rust (safetensors, tokenizers) write the number into the text, those in C (torch, the loader of
    # shared libraries) the words.
    text = text_of(problem)
    if match := re.search(r"\(os error (\d+)\)", text):
        return int(match[1])
    return next((code for code in MACHINE_FAULTS if os.strerror(code) in text), 0)
