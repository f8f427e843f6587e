"""Passes over the data within a budget of device seconds: how long one will take, and where it stops if that was wrong.

A pass embeds all texts, searches neighbours of all queries or clusters them. It is divided into parts by calls of
`stop_point`: within a block of `stopping` such a call may end the pass, elsewhere it does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

Timer = Callable[[Callable[[], float]], float]  # device seconds per operation, by a clock

_stop: ContextVar[Callable[[], None] | None] = ContextVar("_stop", default=None)


@dataclass
class Pace:
    """Device seconds per operation of passes through an encoder and of searches; None: not measured yet.

    The timers measure them on a sample, before the first pass; each pass then measures them anew, unless they are
    `given`, as in a plan.
    """

    encoding: float | None = None
    scoring: float | None = None
    time_encoding: Timer = lambda _: 0.0
    time_scoring: Timer = lambda _: 0.0
    given: bool = False

    def of(self, kind: Literal["encoding", "scoring"], clock: Callable[[], float]) -> float:
        """The device seconds per operation of this kind."""
        known: float | None = getattr(self, kind)
        if known is None:
            known = getattr(self, f"time_{kind}")(clock)
            setattr(self, kind, known)
        return known


@contextmanager
def stopping(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop`, which may raise, at each `stop_point` of the block."""
    token = _stop.set(stop)
    try:
        yield
    finally:
        _stop.reset(token)


def stop_point() -> None:
    """A place between two parts of a pass, where it ends if the device seconds of the budget are spent."""
    if (stop := _stop.get()) is not None:
        stop()


def may_stop() -> bool:
    """Whether a `stop_point` here can end a pass, so that its parts should be short."""
    return _stop.get() is not None
