"""The contracts of trackers: of any, which receives the events of trials, and of one that logs numbers by step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, NamedTuple

from xmcbench.trial.record import Record
from xmcbench.trial.run import TrialProgress
from xmcbench.trial.trial import Trial, flatten

SPENT = ("encoder_tokens", "device_seconds")


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


class Scalars(NamedTuple):
    """Values after `step` steps, by name: `train/loss`, `select/P@1`, `test/P@1`, `spent/encoder_tokens`."""

    values: dict[str, float]
    step: int


def of_progress(progress: TrialProgress) -> Scalars:
    """The metrics that a method reports, under the name of its stage, and the amounts spent."""
    spent = progress.spent
    values = {f"{progress.stage}/{name}": value for name, value in progress.metrics.items() if name != "step"}
    values |= {f"spent/{name}": float(spent[name]) for name in SPENT if name in spent}
    return Scalars(values, int(spent.get("steps", 0)))


def of_evaluation(point: Mapping[str, float]) -> Scalars:
    """The metrics of one evaluation on held-out training queries."""
    values = {f"select/{name}": value for name, value in point.items() if "@" in name}
    return Scalars(values, int(point.get("steps", 0)))


def of_record(record: Record) -> Scalars:
    """The metrics on the test split."""
    values = {f"test/{name}": value for name, value in record.metrics.items()}
    return Scalars(values, int(record.spent.get("steps", 0)))


class ScalarTracker(Tracker):
    """Writes the values of progress and of evaluations as they come."""

    def step(self, trial: Trial, progress: TrialProgress) -> None:
        self._write(trial, of_progress(progress))

    def evaluation(self, trial: Trial, point: Mapping[str, float]) -> None:
        self._write(trial, of_evaluation(point))

    @abstractmethod
    def _write(self, trial: Trial, scalars: Scalars) -> None: ...


def settings(trial: Trial) -> dict[str, str]:
    """Everything that determines the trial's result, as text by dotted name."""
    return {name: str(value) for name, value in flatten(trial.model_dump(mode="json", exclude={"label"}))}
