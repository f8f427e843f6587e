"""Trackers beside the display of a run: both receive the events of its trials."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from xmcbench.run.runner import Display, Step
from xmcbench.tracking.listener import Listener
from xmcbench.tracking.tracker import Tracker
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

    def begin(self, step: Step, number: int, total: int) -> None:
        self._send("begin", step.trial)
        self._display.begin(step, number, total)

    def wait(self, step: Step) -> None:
        self._display.wait(step)

    def progress(self, step: Step, progress: TrialProgress) -> None:
        self._send("step", step.trial, progress)
        for point in progress.evaluations:
            self._send("evaluation", step.trial, point)
        self._display.progress(step, progress)

    def end(self, step: Step, record: Record) -> None:
        self._send("end", step.trial, record)
        self._display.end(step, record)

    def _send(self, event: str, *arguments: Any) -> None:
        for listener in self._listeners:
            listener.send(event, *arguments)
