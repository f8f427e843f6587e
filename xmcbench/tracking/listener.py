"""Runs a tracker in a separate thread, so that a tracker that hangs or fails cannot affect a run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from queue import Empty, Full, Queue
from threading import Thread
from typing import Any

from xmcbench.files.secrets import redact
from xmcbench.tracking.tracker import Tracker

QUEUE_SIZE = 10_000  # events that may wait for a tracker; further events are lost
CLOSE_SECONDS = 30.0  # time that a tracker has to finish after the last trial


def _warn(message: str) -> None:
    print(f"warning: {redact(message)}", file=sys.stderr, flush=True)


class Listener:
    """Calls the methods of a tracker in a thread. A server that does not answer must not stop the driver of a run."""

    def __init__(self, tracker: Tracker, warn: Callable[[str], None] = _warn) -> None:
        self._tracker, self._warn = tracker, warn
        self._events: Queue[tuple[str, tuple[Any, ...]]] = Queue(QUEUE_SIZE)
        self._lost = 0
        self._thread = Thread(target=self._listen, name=f"tracker {tracker.name}", daemon=True)
        self._thread.start()

    def send(self, event: str, *arguments: Any) -> None:
        """Have the tracker's method `event` called with `arguments`. Returns at once."""
        if not self._thread.is_alive():
            return
        try:
            self._events.put_nowait((event, arguments))
        except Full:
            self._lost += 1

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Let the tracker process the waiting events, for at most `seconds` seconds."""
        while self._thread.is_alive():
            try:
                self._events.put_nowait(("close", ()))
                break
            except Full:
                self._drop_one()
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._warn(f"tracker {self._tracker.name!r} did not finish within {seconds:g} seconds and was abandoned")
        if self._lost:
            self._warn(f"tracker {self._tracker.name!r} was too slow and missed {self._lost} events")

    def _drop_one(self) -> None:
        try:
            self._events.get_nowait()
            self._lost += 1
        except Empty:
            pass

    def _listen(self) -> None:
        """Call the tracker until it is closed or fails."""
        event = ""
        while event != "close":
            event, arguments = self._events.get()
            try:
                getattr(self._tracker, event)(*arguments)
            except (Exception, SystemExit) as problem:
                reason = " ".join(f"{type(problem).__name__}: {problem}".split())
                self._warn(f"tracker {self._tracker.name!r} failed and receives no further events: {reason}")
                return
