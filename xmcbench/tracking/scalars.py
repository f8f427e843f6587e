"""The values of a trial that trackers log: named numbers per step, and the settings as text."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from xmcbench.tracking.tracker import Tracker
from xmcbench.trial.flatten import flatten

if TYPE_CHECKING:
    from xmcbench.trial.record import Record
    from xmcbench.trial.run import TrialProgress
    from xmcbench.trial.trial import Trial

SPENT = ("encoder_tokens", "device_seconds")


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
