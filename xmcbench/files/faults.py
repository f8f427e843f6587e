"""Faults of the machine: a full disk, a failing one, too few file descriptors.

They say nothing about what a file holds. What is stored stays as it is, no outcome of a trial is recorded, and the next
run tries again.
"""

from __future__ import annotations

import errno
import os
import re

from xmcbench.errors import XMCBenchError, text_of

_CODES = ("ENOSPC", "EDQUOT", "EROFS", "EFBIG", "EIO", "ESTALE", "EMFILE", "ENFILE")  # Windows lacks some
MACHINE_FAULTS = frozenset(getattr(errno, name) for name in _CODES if hasattr(errno, name))
HINTS = {errno.EMFILE: " (raise `ulimit -n`)"}
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR})


class MachineFault(XMCBenchError):
    """A file cannot be read, though it is there: the machine is at fault, or the rights to the file."""

    def __init__(self, path: object, problem: OSError) -> None:
        reason = (problem.strerror or str(problem)) + HINTS.get(problem.errno or 0, "")
        super().__init__(f"{path}: cannot be read: {reason}; nothing is deleted, try again")


def is_missing(problem: OSError) -> bool:
    """Whether `problem` says that there is no such file."""
    return problem.errno in _MISSING


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
