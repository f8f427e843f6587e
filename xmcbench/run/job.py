"""What a worker is told: a trial, and what the trial's result does not depend on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from xmcbench.trial.trial import Trial


@dataclass(frozen=True)
class Post:
    """Which of a trial's workers a process is."""

    rank: int = 0
    size: int = 1
    meeting: Path | None = None  # a file over which the workers find each other; None where they have, or there is one


THE_ONLY = Post()


class Job(BaseModel):
    """The content of `trial.json`: enough to carry the trial out in another process."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trial: Trial
    suite: str
    metrics: list[str]
    data: Path  # where datasets lie
    cache: Path  # prepared datasets, tokenised texts
    store: Path
    chosen: dict[str, Any] = {}  # how tuning chose the configuration, for the record
    command: list[str] = []  # how the run was started, for the record
