"""What a tracker is: it is told when a trial begins, how far it is, what an evaluation found, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from xmcbench.trial.record import Record
    from xmcbench.trial.run import TrialProgress
    from xmcbench.trial.trial import Trial


class Tracker:
    """Passes what happens to trials on to another tool. Plugins register subclasses through `register_trackers`.

    It is made once a run, in the process that plans, and told things in a thread of its own, in their order; trials
    may run side by side. What it raises there is a warning, and it is told nothing more. What it raises when it is
    made (an `XMCBenchError` where a package is missing) stops the run before anything ran.
    """

    name: ClassVar[str]
    summary: ClassVar[str]

    def __init__(self, store: Path) -> None:
        self.store = store  # where the run keeps its results

    def begin(self, trial: Trial) -> None:
        """A trial begins, or goes on after it was killed."""

    def step(self, trial: Trial, progress: TrialProgress) -> None:
        """A trial got on: about five times a second at most, not every step. `progress.spent` is the ledger."""

    def evaluation(self, trial: Trial, point: Mapping[str, float]) -> None:
        """A trial looked at its held-out queries: one point of its record's `curve`."""

    def end(self, trial: Trial, record: Record) -> None:
        """A trial came to an outcome, good or bad."""

    def close(self) -> None:
        """The run is over; a trial that has not ended was interrupted."""
