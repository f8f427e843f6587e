"""The outcome of a trial. `record_file.py` defines the file format."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from xmcbench.files.secrets import redacted
from xmcbench.trial.trial import SCHEMA_VERSION, Trial
from xmcbench.trial.versions import FIRST_SCHEMA, Versions, raised

RESAMPLING_VERSION = 2  # of the draws in evaluation/bootstrap.py; replicates of different versions are not paired
METRIC_VERSION = 1  # of the definitions in evaluation/metrics.py; values of different versions are not comparable


class Status(StrEnum):
    """The outcome of a trial. Failures are recorded too."""

    OK = "ok"
    OVER_BUDGET = "over_budget"  # finished, but exceeded its budget by more than one step: shown, never ranked
    TOO_LARGE = "too_large"  # a worker needs more memory than the budget allows: predicted, or measured
    OOM = "oom"
    TIMEOUT = "timeout"
    ERROR = "error"
    INVALID = "invalid"  # its predictions break a rule and are not scored
    SKIPPED = "skipped"  # the method does not apply to the dataset


SCORED = frozenset({Status.OK, Status.OVER_BUDGET})  # only these have metrics
Fraction = Annotated[float, Field(ge=-1e-9, le=1 + 1e-9)]  # a sum of fractions may be a rounding error outside 0..1


class Failure(BaseModel):
    """Why a trial has no score."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    type: str  # exception class, or the signal that ended the process
    message: str
    stage: str = ""  # prepare, fit, predict, score
    log_tail: str = ""  # the last 2 kB of log.txt


class Record(BaseModel):
    """One trial's outcome. Floats are stored as computed; rounding is for display."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    schema_version: int = SCHEMA_VERSION
    key: str
    key_version: int = SCHEMA_VERSION  # schema that defined the key; a migrated record keeps its key
    suite: str  # name of the suite that ran it
    trial: Trial
    status: Status
    metrics: dict[str, Fraction] = Field(default_factory=dict)  # by name ("P@1")
    intervals: dict[str, tuple[float, float]] = Field(default_factory=dict)  # 95 %, bootstrap over test queries
    metric_version: int = 0  # of the definitions in `xmcbench.evaluation`
    spent: dict[str, Any] = Field(default_factory=dict)  # the ledger
    curve: list[dict[str, float]] = Field(default_factory=list)  # quality on the selection split along the budget
    selection_split: str = (
        "none"  # what chose the checkpoint: "none", "train: n queries held out", or a method's own way
    )
    chosen: dict[str, Any] = Field(default_factory=dict)  # how tuning chose the configuration, and what it cost
    workers: int = 1  # processes that trained it together
    trained_by: str = ""  # key of the trial whose model it scores; empty if it trained one itself
    teacher: str = ""  # what answered in place of annotations, for people
    simulated_teacher: bool = False  # its answers came from annotations: never ranked as zero-shot
    num_parameters: int = 0  # trainable, of the model that predicts
    failure: Failure | None = None
    truth_hash: str = ""  # SHA-256 of the test targets and ignored pairs that were scored against
    provenance: dict[str, Any] = Field(default_factory=dict)  # versions, hardware, git commit, command
    started: str = ""  # UTC, ISO 8601
    ended: str = ""

    def older_than(self, newest: Versions) -> str:
        """Why this is a result of older code than `newest`, as text; empty if it is not."""
        if self.key_version < FIRST_SCHEMA:
            return "from before versions were recorded"
        first = {"selection": 1} if self.trial.selection else {}  # until version 2 it was not recorded
        return raised({**first, **self.trial.versions}, newest)

    def without_secrets(self) -> Record:
        """The record with its texts stripped of secrets. Settings hold none: a suite with a secret is refused."""
        texts = self.model_dump(mode="json", include={"failure", "provenance", "teacher", "chosen"})
        clean = redacted(texts)
        return self if clean == texts else self.model_validate({**self.model_dump(), **clean})
