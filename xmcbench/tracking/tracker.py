"""The contracts of trackers, and the thread that calls one: a tracker that hangs or fails cannot affect a run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Full, Queue
from threading import Thread
from typing import Any, ClassVar

from xmcbench.errors import text_of
from xmcbench.errors.secrets import redact
from xmcbench.trial.record import Record
from xmcbench.trial.run import TrialProgress
from xmcbench.trial.trial import Trial

SPENT_BEFORE = ("fraction", "steps", "encoder_tokens", "flops", "device_seconds")  # a point of a curve


@dataclass(frozen=True)
class Point(Mapping[str, float]):
    """A point of a trial's curve: an evaluation on held-out training queries, and what was spent before it.

    It is also a mapping of what a record keeps of it, by name: `point["fraction"]`, `point["P@1"]`.
    """

    metrics: Mapping[str, float]  # fractions by name, and other values that the method wrote beside them
    fraction: float | None = None  # spent share of the budget: 1 at its end; None, as all others, where nobody counts
    steps: int | None = None  # of the optimiser
    encoder_tokens: int | None = None  # that went through the encoder
    flops: float | None = None  # floating-point operations
    device_seconds: float | None = None  # as budgets count them

    @classmethod
    def of(cls, values: Mapping[str, float]) -> Point:
        """The point of a record's curve."""
        spent: dict[str, Any] = {name: values[name] for name in SPENT_BEFORE if name in values}
        whole = {name: int(spent[name]) for name in ("steps", "encoder_tokens") if name in spent}
        metrics = {name: value for name, value in values.items() if name not in SPENT_BEFORE}
        return cls(metrics, **spent | whole)

    @property
    def _values(self) -> dict[str, float]:
        spent = {name: amount for name in SPENT_BEFORE if (amount := getattr(self, name)) is not None}
        return {**spent, **self.metrics}

    def __getitem__(self, name: str) -> float:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Tracker:
    """Forwards the events of trials to another tool. Plugins register subclasses through `register_trackers`.

    A tracker is made once per run, in the driver process. Its methods are called in a thread of its own, in the order
    of the events; trials may run side by side. An exception in that thread becomes a warning, and the tracker receives
    no further events. An exception in `__init__` (an `XMCBenchError` where a package is missing) stops the run before
    it starts.
    """

    name: ClassVar[str]
    summary: ClassVar[str]

    def __init__(self, store: Path) -> None:
        self.store = store  # the folder of the run's results

    def begin(self, trial: Trial) -> None:
        """A trial starts, or resumes after it was killed."""

    def step(self, trial: Trial, progress: TrialProgress) -> None:
        """A trial made progress; called at most about five times per second. `progress.spent` is the ledger."""

    def evaluation(self, trial: Trial, point: Point) -> None:
        """A trial evaluated its held-out training queries."""

    def end(self, trial: Trial, record: Record) -> None:
        """A trial ended, successfully or not."""

    def close(self) -> None:
        """The run is over. A trial without an `end` event was interrupted."""


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
                with suppress(Empty):
                    self._events.get_nowait()
                    self._lost += 1
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._warn(f"tracker {self._tracker.name!r} did not finish within {seconds:g} seconds and was abandoned")
        if self._lost:
            self._warn(f"tracker {self._tracker.name!r} was too slow and missed {self._lost} events")

    def _listen(self) -> None:
        """Call the tracker until it is closed or fails."""
        event = ""
        while event != "close":
            event, arguments = self._events.get()
            try:
                getattr(self._tracker, event)(*arguments)
            except BaseException as problem:  # also an exit, or an exception that no `Exception` is
                reason = " ".join(f"{type(problem).__name__}: {text_of(problem)}".split())
                self._warn(f"tracker {self._tracker.name!r} failed and receives no further events: {reason}")
                return
