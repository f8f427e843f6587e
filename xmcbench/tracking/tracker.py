"""The contract of a tracker: it receives the events of a run's trials."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from xmcbench.trial.record import Record
from xmcbench.trial.run import TrialProgress
from xmcbench.trial.trial import Trial


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

    def evaluation(self, trial: Trial, point: Mapping[str, float]) -> None:
        """A trial evaluated its held-out training queries. `point` is one point of its record's `curve`."""

    def end(self, trial: Trial, record: Record) -> None:
        """A trial ended, successfully or not."""

    def close(self) -> None:
        """The run is over. A trial without an `end` event was interrupted."""
