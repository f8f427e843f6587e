"""Trackers beside the display of a run: both receive the events of its trials."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from xmcbench.runs.plan import Display, PlannedTrial
from xmcbench.tracking.tracker import Listener, Tracker
from xmcbench.trial.record import Record
from xmcbench.trial.run import TrialProgress


@contextmanager
def tracked(display: Display, trackers: Sequence[Tracker]) -> Iterator[Display]:
    """A display that forwards its events to `trackers` too. They are closed at the end of the block."""
    listeners = [Listener(tracker) for tracker in trackers]
    try:
        yield TrackedDisplay(display, listeners) if listeners else display
    finally:
        for listener in listeners:
            listener.close()


class TrackedDisplay:
    """A display whose events also reach the listeners."""

    def __init__(self, display: Display, listeners: Sequence[Listener]) -> None:
        self._display, self._listeners = display, listeners

    def begin(self, planned: PlannedTrial, number: int, total: int) -> None:
        self._send("begin", planned.trial)
        self._display.begin(planned, number, total)

    def wait(self, planned: PlannedTrial) -> None:
        self._display.wait(planned)

    def expect(self, seconds: float | None) -> None:
        self._display.expect(seconds)

    def progress(self, planned: PlannedTrial, progress: TrialProgress) -> None:
        self._send("step", planned.trial, progress)
        for point in progress.evaluations:
            self._send("evaluation", planned.trial, point)
        self._display.progress(planned, progress)

    def end(self, planned: PlannedTrial, record: Record) -> None:
        self._send("end", planned.trial, record)
        self._display.end(planned, record)

    def _send(self, event: str, *arguments: Any) -> None:
        for listener in self._listeners:
            listener.send(event, *arguments)
