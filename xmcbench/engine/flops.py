"""Floating-point operations, counted where they happen.

A multiplication and an addition are two operations. Code that runs inside `counting` adds to `current().flops`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass
class Count:
    """Operations so far. A backward pass may run in another thread: it keeps the count that its forward pass saw."""

    flops: int = 0
    kept_scores: int = 0  # by forward passes of losses, for their backward passes


_current: ContextVar[Count | None] = ContextVar("_current", default=None)


@contextmanager
def counting() -> Iterator[Count]:
    """Count the operations of the block."""
    count = Count()
    token = _current.set(count)
    try:
        yield count
    finally:
        _current.reset(token)


def current() -> Count:
    """The count of the innermost `counting` block; outside of any block, a count that is discarded."""
    return _current.get() or Count()
