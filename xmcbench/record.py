"""What came of a trial: one JSON file, written last."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from xmcbench.trial import SCHEMA_VERSION, Trial

METRIC_VERSION = 1  # of the definitions in evaluation/metrics.py; figures of different versions are not comparable


class Status(StrEnum):
    """How a trial ended. A failure is a record too."""

    OK = "ok"
    OVER_BUDGET = "over_budget"  # finished, but spent more than one step past its budget: shown, never ranked
    OOM = "oom"
    TIMEOUT = "timeout"
    ERROR = "error"
    INVALID = "invalid"  # its predictions break a rule, so they have no score
    SKIPPED = "skipped"  # the method says it does not apply to the dataset


class Failure(BaseModel):
    """Why a trial has no score."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: str  # exception class, or the signal that ended the process
    message: str
    stage: str = ""  # prepare, fit, predict, score
    log_tail: str = ""  # the last 2 kB of log.txt


class Record(BaseModel):
    """One trial's outcome. Floats are stored as computed; rounding is for display."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = SCHEMA_VERSION
    key: str
    suite: str  # name of the suite that ran it
    trial: Trial
    status: Status
    metrics: dict[str, float] = Field(default_factory=dict)  # fractions in 0..1, by name ("P@1")
    metric_version: int = 0  # of the definitions in `xmcbench.evaluation`
    spent: dict[str, Any] = Field(default_factory=dict)  # the ledger
    curve: list[dict[str, float]] = Field(default_factory=list)  # quality on the selection split along the budget
    selection_split: str = "none"  # what chose the checkpoint: "none", or "train: n queries held out"
    num_parameters: int = 0  # trainable, of the model that predicts
    failure: Failure | None = None
    truth_hash: str = ""  # SHA-256 of the test targets and ignored pairs the predictions answer to
    provenance: dict[str, Any] = Field(default_factory=dict)  # versions, hardware, git commit, command
    started: str = ""  # UTC, ISO 8601
    ended: str = ""
