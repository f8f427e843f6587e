"""What trackers show of a trial: named numbers at a number of steps, and settings as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from xmcbench.trial.flatten import flatten

if TYPE_CHECKING:
    from xmcbench.trial.record import Record
    from xmcbench.trial.run import TrialProgress
    from xmcbench.trial.trial import Trial

SPENT = ("encoder_tokens", "device_seconds")


class Scalars(NamedTuple):
    """Numbers by name (`train/loss`, `select/P@1`, `test/P@1`, `spent/encoder_tokens`) after `step` steps."""

    figures: dict[str, float]
    step: int


def of_progress(progress: TrialProgress) -> Scalars:
    """What a method reports, under the name of its stage, and what it has spent."""
    spent = progress.spent
    figures = {f"{progress.stage}/{name}": value for name, value in progress.metrics.items() if name != "step"}
    figures |= {f"spent/{name}": float(spent[name]) for name in SPENT if name in spent}
    return Scalars(figures, int(spent.get("steps", 0)))


def of_evaluation(point: Mapping[str, float]) -> Scalars:
    """Figures on the held-out training queries."""
    figures = {f"select/{name}": value for name, value in point.items() if "@" in name}
    return Scalars(figures, int(point.get("steps", 0)))


def of_record(record: Record) -> Scalars:
    """Figures on the test split."""
    figures = {f"test/{name}": value for name, value in record.metrics.items()}
    return Scalars(figures, int(record.spent.get("steps", 0)))


def settings(trial: Trial) -> dict[str, str]:
    """All that determines the trial's result, by dotted name, as text."""
    return {name: str(value) for name, value in flatten(trial.model_dump(mode="json", exclude={"label"}))}
