"""Trackers beside the display of a run: none of them can slow a trial down or harm it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import Empty, Full, Queue
from threading import Thread
from typing import TYPE_CHECKING, Any

from xmcbench.tracking.tracker import Tracker

if TYPE_CHECKING:
    from xmcbench.run.runner import Display, Step
    from xmcbench.trial.record import Record
    from xmcbench.trial.run import TrialProgress

WAITING = 10_000  # events that may wait for a tracker; those that find no room are lost
CLOSE_SECONDS = 30.0  # a tracker has to finish after the last trial


@contextmanager
def tracked(display: Display, trackers: Sequence[Tracker]) -> Iterator[Display]:
    """A display that tells `trackers` what it is told. They are closed at the end of the block."""
    listeners = [Listener(tracker) for tracker in trackers]
    try:
        yield Tracked(display, listeners) if listeners else display
    finally:
        for listener in listeners:
            listener.close()


class Tracked:
    """A display, with listeners who hear of the same trials."""

    def __init__(self, display: Display, listeners: Sequence[Listener]) -> None:
        self._display, self._listeners = display, listeners

    def begin(self, step: Step, number: int, total: int) -> None:
        self._tell("begin", step.trial)
        self._display.begin(step, number, total)

    def wait(self, step: Step) -> None:
        self._display.wait(step)

    def progress(self, step: Step, progress: TrialProgress) -> None:
        self._tell("step", step.trial, progress)
        for point in progress.evaluations:
            self._tell("evaluation", step.trial, point)
        self._display.progress(step, progress)

    def end(self, step: Step, record: Record) -> None:
        self._tell("end", step.trial, record)
        self._display.end(step, record)

    def _tell(self, event: str, *facts: Any) -> None:
        for listener in self._listeners:
            listener.tell(event, *facts)


def _warn(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr, flush=True)


class Listener:
    """A tracker in a thread: a server that does not answer must not keep the parent from watching its workers."""

    def __init__(self, tracker: Tracker, warn: Callable[[str], None] = _warn) -> None:
        self._tracker, self._warn = tracker, warn
        self._events: Queue[tuple[str, tuple[Any, ...]]] = Queue(WAITING)
        self._lost = 0
        self._thread = Thread(target=self._listen, name=f"tracker {tracker.name}", daemon=True)
        self._thread.start()

    def tell(self, event: str, *facts: Any) -> None:
        """Have the tracker's method `event` called with `facts`, soon. Never waits."""
        if not self._thread.is_alive():
            return
        try:
            self._events.put_nowait((event, facts))
        except Full:
            self._lost += 1

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Let the tracker hear what it has not heard yet, for `seconds` at most."""
        while self._thread.is_alive():
            try:
                self._events.put_nowait(("close", ()))
                break
            except Full:
                self._drop_one()
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._warn(f"tracker {self._tracker.name!r} did not finish in {seconds:g} seconds and is left behind")
        if self._lost:
            self._warn(f"tracker {self._tracker.name!r} was too slow and missed {self._lost} events")

    def _drop_one(self) -> None:
        try:
            self._events.get_nowait()
            self._lost += 1
        except Empty:
            pass

    def _listen(self) -> None:
        """Call the tracker until it is closed, or fails."""
        event = ""
        while event != "close":
            event, facts = self._events.get()
            try:
                getattr(self._tracker, event)(*facts)
            except (Exception, SystemExit) as problem:
                reason = " ".join(f"{type(problem).__name__}: {problem}".split())
                self._warn(f"tracker {self._tracker.name!r} failed and is told nothing more: {reason}")
                return
