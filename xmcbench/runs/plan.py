"""The plan of a run: the action for each trial and its reason; what a display hears of the run, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from xmcbench.errors import XMCBenchError
from xmcbench.trial.record import Record, Status
from xmcbench.trial.run import TrialProgress
from xmcbench.trial.trial import Trial


class Action(StrEnum):
    """The action of a run for a trial."""

    HIT = "hit"  # nothing: its result is in the store
    RUN = "run"
    RESUME = "resume"  # it was started and has no outcome yet
    SKIP = "skip"  # the method does not apply to the dataset
    TOO_LARGE = "too large"  # a worker would need more memory than the budget allows
    FAILED = "failed"  # it failed before; only --retry runs it again


@dataclass(frozen=True)
class PlannedTrial:
    """A trial, and what the run will do about it."""

    trial: Trial
    action: Action
    reason: str = ""
    record: Record | None = None  # the outcome that is in the store


def select(trials: Sequence[Trial], only: Sequence[str]) -> list[Trial]:
    """The trials whose label, or `dataset/label`, is in `only` or matches a shell pattern of it; all if it is empty."""
    for pattern in only:
        if not any(trial.matches(pattern) for trial in trials):
            labels = ", ".join(dict.fromkeys(trial.label for trial in trials))
            raise XMCBenchError(f"--only {pattern}: no trial matches (labels: {labels})")
    return [trial for trial in trials if not only or any(map(trial.matches, only))]


PASSED = frozenset({Status.OK, Status.SKIPPED, Status.TOO_LARGE})


def exit_code(records: Sequence[Record]) -> int:
    """0 if every trial is ok, skipped or too large for its budget, else 1."""
    return 0 if all(record.status in PASSED for record in records) else 1


def explain(record: Record) -> str:
    """The status of a trial, and the reason if it is not ok, on one line."""
    if record.failure:
        return f"{record.status}: {record.failure.message.splitlines()[0]}"
    if record.status is not Status.OVER_BUDGET:
        return str(record.status)
    limits = record.trial.budget.limits().items()
    over = [f"{name} {record.spent[name]:g} of {limit:g}" for name, limit in limits if record.spent[name] > limit]
    return f"{record.status}: {', '.join(over)}"


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
