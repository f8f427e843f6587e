"""The plan of a run: the action for each trial, and its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from xmcbench.errors import XMCBenchError
from xmcbench.trial.record import Record
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


def select(trials: Sequence[Trial], only: str) -> list[Trial]:
    """The trials whose label, or `dataset/label`, is `only` or matches it as a shell pattern."""
    matches = [trial for trial in trials if trial.matches(only)]
    if not matches:
        labels = ", ".join(dict.fromkeys(trial.label for trial in trials))
        raise XMCBenchError(f"--only {only}: no trial matches (labels: {labels})")
    return matches
