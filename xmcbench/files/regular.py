"""Reading files that may come from anyone: regular files only, of a bounded size."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from xmcbench.errors import XMCBenchError


def read_regular(path: Path, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes. Raises XMCBenchError for any other file.

    A pipe or a device would block the reader or never end; `O_NONBLOCK` keeps a pipe from blocking in `open`.
    """
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise XMCBenchError(f"{path}: not a regular file")
            content = file.read(limit + 1)
    except OSError as problem:
        raise XMCBenchError(f"{path}: cannot read: {problem.strerror}") from None
    except ValueError as problem:  # a NUL in the name
        raise XMCBenchError(f"{str(path)!r}: cannot read: {problem}") from None
    if len(content) > limit:
        raise XMCBenchError(f"{path}: larger than {limit:,} bytes, the limit for this kind of file")
    return content
