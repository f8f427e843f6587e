"""What a worker is told: a trial, and what the trial's result does not depend on."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from xmcbench.trial import Trial


class Job(BaseModel):
    """The content of `trial.json`: enough to carry the trial out in another process."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trial: Trial
    suite: str
    metrics: list[str]
    data: Path  # where datasets lie
    cache: Path  # prepared datasets, tokenised texts
    store: Path
    command: list[str] = []  # how the run was started, for the record
