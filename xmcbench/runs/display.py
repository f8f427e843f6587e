"""The interface of displays, which show how a run is going."""

from __future__ import annotations

from typing import Protocol

from xmcbench.runs.plan import PlannedTrial
from xmcbench.trial.record import Record
from xmcbench.trial.run import TrialProgress


class Display(Protocol):
    """Receives the events of a run. Trials may run side by side: every call names its trial."""

    def begin(self, planned: PlannedTrial, number: int, total: int) -> None:
        """A trial starts, the `number`th of `total`."""

    def wait(self, planned: PlannedTrial) -> None:
        """This run waits, because another run on the same store runs the trial."""

    def expect(self, seconds: float) -> None:
        """The run is expected to take that many more seconds. Called after each progress and end that tells."""

    def progress(self, planned: PlannedTrial, progress: TrialProgress) -> None:
        """A trial advanced."""

    def end(self, planned: PlannedTrial, record: Record) -> None:
        """A trial ended, well or badly."""
