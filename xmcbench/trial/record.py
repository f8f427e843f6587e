"""The outcome of a trial, and its file `record.json`, which ends with a digest of what stands before it.

A record that was edited, truncated or damaged after it was written is refused, as is one of another schema. So a metric
is shown as it was computed, or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from hashlib import sha256
from operator import not_
from pathlib import PurePath
from typing import Annotated, Any, get_type_hints

from pydantic import Field, GetPydanticSchema, ValidationError, model_validator
from typing_extensions import TypedDict

from xmcbench.errors import XMCBenchError
from xmcbench.errors.secrets import redacted
from xmcbench.trial.budget import OPERATIONS, Clock, Ledger
from xmcbench.trial.facts import Choice, Chosen, RecordedChoice, RecordedEnd, is_lower
from xmcbench.trial.record_fields import CODE_FORM, Amount, Count, Fraction, Frozen, Point, Provenance
from xmcbench.trial.trial import SCHEMA_VERSION, Trial
from xmcbench.trial.versions import Versions, charge_part, older_parts

RESAMPLING_VERSION = 2  # of the draws in evaluation/bootstrap.py; replicates of different versions are not paired
METRIC_VERSION = 1  # of the definitions in evaluation/metrics.py; values of different versions are not comparable
FEW_STEPS = 200  # below it a training has hardly begun
SMALLEST_BATCH = 16  # queries of a step, by default at least
COUNTED = ("epochs", "steps", "queries", "pool_labels", "encoder_tokens", "flops", *OPERATIONS)  # not measured
OUTSIDE = 0.5  # of the processor time of a fit: where child processes took more, an outside program computed

# The ledger (`Ledger` explains its counts), what predicting cost, and what the harness measures.
_SPENT = {name: kind for name, kind in get_type_hints(Ledger, include_extras=True).items() if name[0] != "_"} | {
    "cut_queries": Fraction,  # share of the training queries that are as long as a text may be
    "alike_texts": Fraction,  # share of the queries or labels, the larger, that have the tokens of another text
    "chosen_at": Fraction,  # share of the budget after which the chosen weights were evaluated, if the curve lacks it
    "choice": dict[str, Amount],  # what the training spent that chose how long to train, with `refit`
    "ended": RecordedEnd,  # why training ended before its budget was spent
    "device_seconds": Amount,
    "flops": Count,
    "teacher_tokens": Count,
    "fit_seconds": Amount,  # of the last start, as the harness measures them from outside (`xmcbench.trial.meter`)
    "fit_wait_seconds": Amount,  # of these, those without a free core
    "fit_cpu_seconds": Amount,  # of processors, child processes included
    "fit_children_cpu_seconds": Amount,  # of these, those of child processes
    "import_cpu_seconds": Amount,  # of the method's `late_imports`
    "predict_cpu_seconds": Amount,
    "predicted_queries": Count,
    "predict_bytes": Count,
    "model_bytes": Count,
    "search_recall": Fraction,
    "peak_device_bytes": Count,
    "side_by_side": Count,
    "wall_seconds": Amount,  # of a trial that was ended from outside
}
_SpentFields = TypedDict("_SpentFields", _SPENT, total=False)  # type: ignore[misc]
Spent = Annotated[dict[str, Any], GetPydanticSchema(lambda _, handler: handler(_SpentFields))]


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


class Failure(Frozen):
    """Why a trial has no score."""

    type: str  # exception class, or the signal that ended the process
    message: str
    stage: str = ""  # prepare, fit, predict, score
    log_tail: str = ""  # the last lines of log.txt, at most 2,048 characters


class Part(Frozen):
    """A trial whose predictions are fused in another one."""

    key: str
    name: str  # for people
    predictions: str  # SHA-256 of the file of its predictions


class Record(Frozen):
    """One trial's outcome. Floats are stored as computed; rounding is for display."""

    schema_version: Count = SCHEMA_VERSION
    key: str
    key_version: Count = SCHEMA_VERSION  # schema that defined the key
    suite: str  # name of the suite that ran it
    trial: Trial
    status: Status
    metrics: dict[str, Fraction] = Field(default_factory=dict)  # by name ("P@1")
    intervals: dict[str, tuple[Fraction, Fraction]] = Field(default_factory=dict)  # 95 %, bootstrap over test queries
    metric_version: Count = 0  # of the definitions in `xmcbench.evaluation`
    # By name: digests of the code of evaluators that plugins define (`xmcbench.plugins.code`).
    evaluators: dict[str, str] = Field(default_factory=dict, exclude_if=not_)
    # Names of evaluators of its metrics and its curve whose lower values are better.
    lower_is_better: tuple[str, ...] = Field(default=(), exclude_if=not_)
    # By name, as in the settings: digests of pretrained models (`xmcbench.files.pretrained`).
    pretrained: dict[str, str] = Field(default_factory=dict, exclude_if=not_)
    spent: Spent = Field(default_factory=dict)  # the ledger, and what predicting cost
    curve: list[Point] = Field(default_factory=list)  # quality on the selection split along the budget
    selection_split: RecordedChoice = Choice()  # what chose the checkpoint
    chosen: Chosen = Field(default_factory=dict)  # how tuning chose the configuration, and what it cost
    workers: Count = 1  # processes that trained it together
    parts: tuple[Part, ...] = Field(default=(), exclude_if=not_)  # of a fusion
    trained_by: str = ""  # key of the trial whose model it scores; empty if it trained one itself
    teacher: str = ""  # what answered in place of annotations, for people
    simulated_teacher: bool = False  # its answers came from annotations: never ranked as zero-shot
    num_parameters: Count = 0  # trainable, of the model that predicts
    test_texts_in_train: Count = 0  # test queries whose text is also in the training part
    labels_with_shared_text: Count = 0  # labels whose text another label has too
    failure: Failure | None = None
    digests: dict[str, str] = Field(default_factory=dict)  # SHA-256 by name, of the files that belong to this record
    truth_hash: str = ""  # SHA-256 of the test targets and ignored pairs that were scored against
    provenance: Provenance = Field(default_factory=dict)  # versions, hardware, git commit, command
    started: str = ""  # UTC, ISO 8601
    ended: str = ""

    @model_validator(mode="after")
    def _intervals_of_metrics(self) -> Record:
        if unknown := self.intervals.keys() - self.metrics.keys():
            raise ValueError(f"found an interval of {min(unknown)}, which has no value")
        return self

    @property
    def predictions_digest(self) -> str:
        """The SHA-256 of the file of its predictions; empty where the record holds none."""
        return self.digests.get("predictions.npz", "")

    @property
    def code_digest(self) -> str:
        """The digest of the plugin's code; empty for a record from before it was noted."""
        return str(self.provenance.get("plugin", {}).get("digest", ""))

    @property
    def code(self) -> str:
        """The identity of the plugin's code.

        It is empty for a record of an older form: its digest also tells comments apart. The versions in its trial say
        which code made it.
        """
        return self.code_digest if self.provenance.get("plugin", {}).get("form") == CODE_FORM else ""

    @property
    def but_seed(self) -> str:
        """Equal for records whose metrics may be averaged: they differ in their seed alone.

        Their trials, the code and the pretrained models that made them, the definitions of metrics and the test targets
        are the same.
        """
        named = [
            f"{name} {digest}" for names in (self.evaluators, self.pretrained) for name, digest in sorted(names.items())
        ]
        parts = [self.trial.but_seed, self.code, str(self.metric_version), self.truth_hash, *named]
        return "\n".join(parts)

    def is_lower(self, metric: str) -> bool:
        """Whether lower values of a metric are better."""
        return is_lower(metric, self.lower_is_better)

    def definition(self, metric: str) -> tuple[int, str]:
        """The definition that a metric was computed by: equal for values that are comparable."""
        return self.metric_version, self.evaluators.get(metric.partition("@")[0], "")

    @property
    def not_counted(self) -> frozenset[str]:
        """The counts that nobody knows, as an outside program computed, or as older code left some work out.

        A record from before they were noted has 0 for each count of an outside program, and most of its processor time
        in child processes. One from before modules were charged has too few operations of a method whose modules
        multiply.
        """
        if (noted := self.spent.get("not_counted")) is not None:
            return frozenset(noted)
        outside = self.spent.get("fit_children_cpu_seconds", 0.0) > OUTSIDE * self.spent.get("fit_cpu_seconds", 0.0)
        unknown = {name for name in COUNTED if outside and not self.spent.get(name)}
        if "module_flops" not in self.spent and self.spent.get("flops"):
            from xmcbench.trial.method import installed_versions  # imports numpy

            anew = charge_part("flops") in installed_versions(self.trial, {"flops"})
            unknown |= {"flops", "module_flops"} if anew else set()
        return frozenset(unknown)

    @property
    def counted(self) -> dict[str, Any]:
        """What it spent, without the counts that nobody knows."""
        unknown = self.not_counted
        return {name: value for name, value in self.spent.items() if name not in unknown}

    @property
    def parameters(self) -> int | None:
        """Its trainable parameters; None where an outside program did not say how many its model has."""
        return None if not self.num_parameters and self.not_counted else self.num_parameters

    @property
    def counted_curve(self) -> list[dict[str, float]]:
        """Its curve, without the counts that nobody knows."""
        unknown = self.not_counted
        return [{name: value for name, value in point.items() if name not in unknown} for point in self.curve]

    @property
    def clock(self) -> Clock:
        """The clock of its device seconds; a record from before there were two has those of the wall clock."""
        clock: Clock = self.spent.get("clock", "wall")
        return clock

    def older_than(self, newest: Versions) -> str:
        """Why this is a result of older code than `newest`, as text; empty if it is not."""
        older = older_parts(self.trial.versions, newest, self.trial.budget.spending())
        return "; ".join(f"{part} {version}, now {newest[part]}" for part, version in older.items())

    def without_paths(self) -> Record:
        """The record without paths of this machine in its command: of absolute ones the last part is left."""
        words = (str(word).rpartition("=") for word in self.provenance.get("command", ()))
        command = [
            f"{name}{equals}{PurePath(value).name if PurePath(value).is_absolute() else value}"
            for name, equals, value in words
        ]
        return self.model_copy(update={"provenance": {**self.provenance, "command": command}})

    def without_secrets(self) -> Record:
        """The record with its texts stripped of secrets. Settings hold none: a suite with a secret is refused."""
        texts = self.model_dump(mode="json", include={"failure", "provenance", "teacher", "chosen"})
        clean = redacted(texts)
        return self if clean == texts else self.model_validate({**self.model_dump(), **clean})


class _Recordable(Frozen):
    spent: Spent
    curve: list[Point]


def why_not_recordable(spent: Mapping[str, Any], curve: Sequence[Mapping[str, float]]) -> str:
    """Why a ledger and a curve, which methods write into, cannot stand in a record; empty if they can."""
    try:
        _Recordable.model_validate({"spent": spent, "curve": curve})
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: found {first['input']!r:.80}, {first['msg'].lower()}"
    return ""


_START = b'{\n "schema_version": %d,' % SCHEMA_VERSION
_DIGEST = b',\n "digest": "'
_END = b'"\n}\n'


class RecordError(XMCBenchError):
    """The content of a file is not a valid record; the message gives the reason in one line."""


def encode(record: Record) -> bytes:
    """The file that holds `record`."""
    body = record.model_dump_json(indent=1).encode().removesuffix(b"\n}")
    return body + _DIGEST + _digest(body) + _END


def decode(content: bytes) -> Record:
    """The record in a file's content. Raises `RecordError` for other content, another schema, or a wrong digest."""
    body, _, end = content.rpartition(_DIGEST)
    if not body.startswith(_START) or end != _digest(body) + _END:
        raise RecordError(_why_refused(content))
    try:
        return Record.model_validate_json(body + b"\n}")
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise RecordError(
            f"not a record: {place + ': ' if place else ''}{first['msg'].removeprefix('Value error, ')}"
        ) from None


def _why_refused(content: bytes) -> str:
    """Why this is not a file as `encode` makes it."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as problem:
        return f"not a record: not JSON: {problem}"
    version = data.get("schema_version") if isinstance(data, dict) else None
    if type(version) is not int or version != SCHEMA_VERSION:
        return f"not a record: found schema version {version!r}, expected {SCHEMA_VERSION}: another xmcbench wrote it"
    if data.get("digest") is None:
        return "found no digest, expected one after the record: edited by hand"
    return "its digest does not match its content: edited after it was written"


def _digest(body: bytes) -> bytes:
    return sha256(body).hexdigest().encode()
