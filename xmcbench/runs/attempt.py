"""One worker's attempt at a trial: what it knows so far, of which the record is made, however the trial ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from xmcbench.data import Dataset, load
from xmcbench.data.extent import MUCH_ALIKE, MUCH_CUT
from xmcbench.engine.device import device_peak_memory
from xmcbench.errors import XMCBenchError, text_of
from xmcbench.errors.secrets import beginning
from xmcbench.files.pretrained import digests_of
from xmcbench.runs.file_guard import Sandbox
from xmcbench.runs.held_out import Answers
from xmcbench.runs.job import Job, WorkerRank, log_tail, now
from xmcbench.teachers import Teacher
from xmcbench.teachers.judges import AnnotatedDataset, Asking, Judges
from xmcbench.trial.budget import peak_memory
from xmcbench.trial.embedder import asked_through
from xmcbench.trial.facts import Choice, ChosenBy
from xmcbench.trial.provenance import plugin_code, plugin_digest
from xmcbench.trial.record import Failure, Record, Status, why_not_recordable
from xmcbench.trial.run import Progress, Run, TrainingLog, TrialProgress
from xmcbench.trial.store import Store
from xmcbench.trial.trial import flatten

LONGEST_NAME, LONGEST_MESSAGE = 200, 10_000  # characters of an exception's class and message in a record
REPORT_SECONDS = 0.2  # a method may report every step; displays and trackers need no more than this


@dataclass
class Attempt:
    """What a worker knows of its trial so far: the record is made of it, however the trial ends."""

    job: Job
    watch: Callable[[TrialProgress], None] = lambda _: None  # receives worker 0's progress
    worker: WorkerRank = field(default_factory=WorkerRank)
    stage: str = "prepare"
    log: TrainingLog = field(default_factory=TrainingLog)
    teachers: list[Teacher] = field(default_factory=list)  # the teachers that the method asks
    measured: dict[str, float] = field(default_factory=dict)  # what the harness saw of `fit` and `predict` from outside
    outcome: dict[str, Any] = field(default_factory=dict)  # fields of the record that are known so far

    def __post_init__(self) -> None:
        self.started = now()
        self.sandbox = Sandbox(self.job, self.worker.own_thread)
        self.store = Store(self.job.store)
        self.directory = self.job.directory
        self.choice: dict[str, Any] = {}  # of the length of training, with `refit`
        self.answers = Answers(self.job.trial.selection.metric if self.job.trial.selection else "")
        self._reported = "", 0.0, 0  # stage, clock and length of the curve at the last report

    def enter(self, stage: str) -> None:
        """Begin a stage: a failure from here on is one of this stage."""
        self.stage = stage
        self.report(Progress(stage, 0.0))

    def report(self, progress: Progress) -> None:
        """Pass worker 0's progress on, with the ledger and the new points of the curve; at most every 0.2 s a stage."""
        stage, clock, points = self._reported
        if self.worker.rank > 0 or (stage == progress.stage and time.monotonic() - clock < REPORT_SECONDS):
            return
        self._reported = progress.stage, time.monotonic(), len(self.log.curve)
        metrics = {name: float(value) for name, value in progress.metrics.items()}
        evaluations = tuple(self.log.curve[points:])
        spent = self.log.ledger.as_dict()
        self.watch(TrialProgress(progress.stage, float(progress.fraction), metrics, spent, evaluations))

    def record(self, status: Status, **outcome: Any) -> Record:
        """The record of this attempt in its present state."""
        trial = self.job.trial
        ledger = self.log.ledger
        ledger.peak_bytes = max(ledger.peak_bytes, peak_memory(), *ledger.worker_bytes)
        selection, spent = trial.selection, ledger.as_dict()
        if why_not_recordable(spent, self.log.curve):  # the trial failed for it
            spent, self.log.curve[:] = {}, []
        noted: dict[str, Any] = {"ended": self.log.ended} if self.log.ended else {}
        curve = self.log.curve
        if self.choice:
            curve, noted["chosen_at"], noted["choice"] = (
                self.choice["curve"],
                self.choice["share"],
                self.choice["spent"],
            )
        noted |= {} if self.log.chosen_at is None else {"chosen_at": self.log.chosen_at}
        noted |= {"cut_queries": self.log.cut_queries} if self.log.cut_queries > MUCH_CUT else {}
        if peaks := [*ledger.worker_device_bytes, *filter(None, [device_peak_memory()])]:
            noted["peak_device_bytes"] = max(peaks)
        noted |= {"alike_texts": self.log.alike_texts} if self.log.alike_texts > MUCH_ALIKE else {}
        held_out = selection and Choice(by=ChosenBy.HELD_OUT, queries=selection.queries)
        return self.job.record(
            status,
            started=self.started,
            spent={**spent, **noted, **self.measured},
            workers=self.worker.size,
            checks=self.sandbox.checks,
            curve=curve,
            teacher=", ".join(dict.fromkeys(teacher.described for teacher in self.teachers)),
            simulated_teacher=any(teacher.simulated for teacher in self.teachers),
            selection_split=held_out or self.log.chosen_by,
            **self.outcome,
            **outcome,
        )

    def failure(self, status: Status, problem: BaseException) -> Record:
        """The record of this attempt, which failed with `problem`."""
        kind = type(problem).__name__
        texts = (kind, text_of(problem) or kind)
        short, long = (beginning(text, LONGEST_MESSAGE).encode(errors="backslashreplace").decode() for text in texts)
        named = " ".join(short.split())[:LONGEST_NAME]
        tail = log_tail(self.directory)
        return self.record(status, failure=Failure(type=named, message=long, stage=self.stage, log_tail=tail))

    def note_pretrained(self) -> None:
        """Note the content of the pretrained models in the settings: before training, and after of what it fetched."""
        known = self.outcome.setdefault("pretrained", {})
        settings = (value for _, value in flatten(self.job.trial.config) if isinstance(value, str))
        known |= digests_of(dict.fromkeys(name for name in settings if name not in known))

    def note_code(self) -> None:
        """Note the code that this process imported, where it is not what it was when the run was planned."""
        if plugin_digest(self.job.trial) != self.job.plugin.get("digest"):
            self.job = self.job.model_copy(update={"plugin": plugin_code(self.job.trial)})

    def embedders(self) -> AbstractContextManager[None]:
        """What answers embedders where the method predicts, charged to the trial."""
        return embedders_of(self.job, self.directory / "checkpoint", self.log, self.teachers)

    def dataset(self) -> Dataset:
        """The trial's dataset. Each phase opens what it reads: no test target is in the process before scoring."""
        trial = self.job.trial
        dataset = load(trial.dataset, self.job.data, self.job.cache)
        if dataset.card.content_hash != trial.dataset_hash:
            raise XMCBenchError(f"{trial.dataset} changed on disk since the run was planned; run it again")
        return dataset


@contextmanager
def embedders_of(job: Job, folder: Path, log: TrainingLog, teachers: list[Teacher]) -> Iterator[None]:
    """Answer embedders in the block, which predicts, within the trial's whole budget. `log` is charged.

    `folder` holds what was charged before; the teachers that are asked are added to `teachers`.
    """
    run = Run(job.trial.seed, job.trial.budget, folder, job.cache, log)
    annotated = AnnotatedDataset(job.trial.dataset, job.trial.dataset_hash, job.data, job.cache)
    asking = Asking(run, job.store, annotated, [], np.zeros(0, np.int64), [])
    with Judges(asking, teachers) as judges, asked_through(lambda config, texts, _: judges.embed(config, texts, None)):
        yield
