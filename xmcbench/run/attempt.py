"""One trial, start to end: prepare, fit, predict, score, keep. The method sees training data and test texts only."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from xmcbench.data import Dataset, TrainingData, load
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation import (
    METRIC_VERSION,
    InvalidPredictions,
    check_predictions,
    dataset_hits,
    drop_ignored,
    find_evaluators,
    find_hits,
    inverse_propensity,
    resampled_metrics,
    score,
    truth_hash,
)
from xmcbench.evaluation.bootstrap import intervals
from xmcbench.plugins.registry import registry
from xmcbench.run.job import THE_ONLY, Job, Post
from xmcbench.teachers import Teacher
from xmcbench.teachers.judge_factory import JudgeFactory
from xmcbench.teachers.subprocess_teacher import AnnotatedDataset
from xmcbench.trial.budget import peak_memory
from xmcbench.trial.method import Method
from xmcbench.trial.predictions import STORED, Predictions
from xmcbench.trial.provenance import provenance
from xmcbench.trial.record import Failure, Record, Status
from xmcbench.trial.run import (
    CheckpointExchange,
    HeldOut,
    Progress,
    Run,
    TrainingLog,
    TrialProgress,
    derive_seed,
    held_out_rows,
)
from xmcbench.trial.store import Store
from xmcbench.trial.trial import Trial

REPORT_SECONDS = 0.2  # a method may report every step; displays and trackers need no more than this


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def method_of(trial: Trial) -> Method:
    """The trial's method with its settings, not fitted. Raises XMCBenchError where the installed one is another."""
    found = registry().method(trial.method, trial.distribution)
    if (found.origin.distribution, found.origin.version) != (trial.distribution, trial.version):
        raise XMCBenchError(
            f"method {trial.method!r} is of {found.origin}, expected {trial.distribution} {trial.version}"
        )
    method: Method = found.thing(found.thing.Config.model_validate(trial.config))
    return method


@dataclass
class Attempt:
    """One worker's part of a trial. If it fails, the record of the failure is made from the fields here."""

    job: Job
    watch: Callable[[TrialProgress], None] = lambda _: None  # receives worker 0's progress
    post: Post = THE_ONLY
    exchange: CheckpointExchange | None = None
    started: str = field(default_factory=now)
    stage: str = "prepare"
    log: TrainingLog = field(default_factory=TrainingLog)
    teachers: list[Teacher] = field(default_factory=list)  # that the method asks
    _reported: tuple[str, float, int] = ("", 0.0, 0)  # stage, clock and length of the curve at the last report

    def perform(self) -> Record | None:
        """Carry the trial out and keep its predictions, model and record. Raises what the method raises.

        Of several workers every one fits; worker 0 does the rest, and the others answer None.
        """
        trial, store = self.job.trial, Store(self.job.store)
        directory = store.directory(trial.key)
        method = method_of(trial)
        # The dataset is let go at once and read again to score: no test target is in the process until then.
        self._fit(method, self._dataset().training_data(), directory)
        self.log.ledger.check_memory(trial.budget, _device_peak().get("peak_device_bytes", peak_memory()))
        if self.post.rank > 0:
            return None
        self.stage = "predict"
        predictions = self._predict(method)
        self.stage = "score"
        dataset = self._dataset()
        check_predictions(predictions, *dataset.test.targets.shape, dataset.ignore_test)
        evaluators = find_evaluators(self.job.metrics)
        hits = dataset_hits(predictions, dataset)
        metrics = score(hits, self.job.metrics, evaluators)
        resampled = resampled_metrics(hits, self.job.metrics, evaluators)
        truth = truth_hash(dataset)
        store.write_predictions(trial.key, predictions, truth)
        store.write_resampled(trial.key, resampled, truth)
        self._save(method, directory / "model")
        over = self.log.ledger.over(trial.budget)
        record = self.record(
            Status.OVER_BUDGET if over else Status.OK,
            metrics=metrics,
            intervals=intervals(resampled),
            metric_version=METRIC_VERSION,
            num_parameters=method.num_parameters,
            truth_hash=truth,
        )
        store.write_record(record)
        shutil.rmtree(directory / "checkpoint", ignore_errors=True)
        return record

    def record(self, status: Status, **outcome: Any) -> Record:
        """The record of this attempt as it stands."""
        trial = self.job.trial
        self.log.ledger.peak_bytes = max(self.log.ledger.peak_bytes, peak_memory(), *self.log.ledger.worker_bytes)
        held = trial.selection
        return Record(
            key=trial.key,
            suite=self.job.suite,
            trial=trial,
            status=status,
            spent={**self.log.ledger.as_dict(), **_device_peak()},
            curve=self.log.curve,
            chosen=self.job.chosen,
            workers=self.post.size,
            teacher=", ".join(teacher.title for teacher in self.teachers),
            simulated_teacher=any(teacher.simulated for teacher in self.teachers),
            selection_split=f"train: {held.queries} queries held out" if held else self.log.chosen_by or "none",
            provenance=provenance(self.job.command),
            started=self.started,
            ended=now(),
            **outcome,
        )

    def failure(self, status: Status, problem: BaseException, log_tail: str = "") -> Record:
        """The record of an attempt that `problem` ended."""
        message = str(problem) or type(problem).__name__
        return self.record(
            status,
            failure=Failure(type=type(problem).__name__, message=message, stage=self.stage, log_tail=log_tail),
        )

    def report(self, progress: Progress) -> None:
        """Pass worker 0's progress on, with the ledger and the new points of the curve; at most every 0.2 s a stage."""
        stage, clock, points = self._reported
        if self.post.rank > 0 or (stage == progress.stage and time.monotonic() - clock < REPORT_SECONDS):
            return
        self._reported = progress.stage, time.monotonic(), len(self.log.curve)
        metrics = {name: float(value) for name, value in progress.metrics.items()}
        evaluations = tuple(self.log.curve[points:])
        spent = self.log.ledger.as_dict()
        self.watch(TrialProgress(progress.stage, float(progress.fraction), metrics, spent, evaluations))

    def _dataset(self) -> Dataset:
        trial = self.job.trial
        dataset = load(trial.dataset, self.job.data, self.job.cache)
        if dataset.card.content_hash != trial.dataset_hash:
            raise XMCBenchError(f"{trial.dataset} changed on disk since the run was planned; run it again")
        return dataset

    def _fit(self, method: Method, train: TrainingData, directory: Path) -> None:
        trial = self.job.trial
        run = Run(
            seed=trial.seed,
            budget=trial.budget,
            checkpoint=directory / "checkpoint",
            cache=self.job.cache,
            log=self.log,
            report=self.report,
            exchange=self.exchange,
        )
        run.checkpoint.mkdir(parents=True, exist_ok=True)
        if run.exchange:
            run.exchange.download()
        rows = np.arange(len(train.texts))
        if trial.selection:
            held_out, train, rows = self._hold_out(train)
            run = replace(run, held_out=held_out)
        if trial.track == "zero-shot":
            train = train.unannotated(method.name)
        annotated = AnnotatedDataset(trial.dataset, trial.dataset_hash, self.job.data, self.job.cache)
        judges = JudgeFactory(run, self.job.store, annotated, train.texts, rows, train.label_texts, self.teachers)
        self.stage = "fit"
        self.report(Progress("fit", 0.0))
        # What the method leaves uncharged inside `fit` is charged here: nothing before predictions is free.
        with self._together(), closing(judges), self.log.ledger.stage("prepare"):
            method.fit(train, replace(run, judge=judges))

    def _together(self) -> AbstractContextManager[None]:
        """The group of the trial's workers, where this process is to join it."""
        if self.post.meeting is None:
            return nullcontext()
        from xmcbench.engine.workers import joined  # imports torch

        return joined(self.post.rank, self.post.size, self.post.meeting)

    def _hold_out(self, train: TrainingData) -> tuple[HeldOut, TrainingData, np.ndarray]:
        """The held-out queries, the training data without them, and the rows that it consists of."""
        selection = self.job.trial.selection
        assert selection is not None
        total = len(train.texts)
        if selection.queries >= total:
            raise XMCBenchError(
                f"selection.queries is {selection.queries}, expected fewer than the {total} training queries of "
                f"{train.card.name}"
            )
        held, kept = held_out_rows(selection, self.job.trial.seed, total)
        aside = train.rows(held)
        metrics = list(dict.fromkeys([selection.metric, *self.job.metrics]))
        scorer = HeldOutScorer(
            aside.targets,
            aside.ignore,
            inverse_propensity(train.targets, train.card.propensity_a, train.card.propensity_b),
            metrics,
            find_evaluators(metrics),
        )
        held_out = HeldOut(aside.texts, scorer, selection.metric, selection.evaluations)
        return held_out, train.rows(kept), kept

    def _predict(self, method: Method) -> Predictions:
        """The best labels of every test query, without ignored pairs. Queries come shuffled: order says nothing."""
        texts, ignore = self._questions()
        num_labels = ignore.shape[1]
        order = np.random.default_rng(derive_seed(0, "test order")).permutation(len(texts))
        most_ignored = int(np.diff(ignore.indptr).max(initial=0))
        k = min(num_labels, STORED + most_ignored)
        self.report(Progress("predict", 0.0))
        with self.log.ledger.stage("predict"):
            shuffled = method.predict([texts[int(i)] for i in order], k)
        if shuffled.indices.shape != (len(order), k):
            raise InvalidPredictions(
                f"predictions are of shape {shuffled.indices.shape}, expected (queries, k) = {(len(order), k)}"
            )
        back = np.argsort(order)
        ranked = Predictions(shuffled.indices[back], shuffled.scores[back])
        check_predictions(ranked, *ignore.shape, _nothing(ignore))
        return drop_ignored(ranked, ignore, min(STORED, num_labels))

    def _questions(self) -> tuple[Any, sp.csr_array]:
        """Test texts and the pairs to ignore; the targets that are loaded with them are let go."""
        dataset = self._dataset()
        return dataset.test.texts, dataset.ignore_test

    def _save(self, method: Method, directory: Path) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        method.save(directory)


@dataclass(frozen=True)
class HeldOutScorer:
    """Computes the metrics of predictions for held-out training queries. It holds their targets and no test target."""

    truth: sp.csr_array
    ignore: sp.csr_array
    weights: np.ndarray
    metrics: list[str]
    evaluators: Mapping[str, Any]

    def __call__(self, predictions: Predictions) -> dict[str, float]:
        check_predictions(predictions, *self.truth.shape, _nothing(self.ignore))
        kept = drop_ignored(predictions, self.ignore, predictions.k)
        return score(find_hits(kept, self.truth, self.weights), self.metrics, self.evaluators)


def _nothing(pairs: sp.csr_array) -> sp.csr_array:
    """No pairs, in the shape of `pairs`: what a method predicts may hold ignored ones, they are dropped later."""
    return sp.csr_array(
        (np.empty(0, np.float32), np.empty(0, np.int32), np.zeros(pairs.shape[0] + 1, np.int32)), pairs.shape
    )


def _device_peak() -> dict[str, int]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    return {"peak_device_bytes": int(torch.cuda.max_memory_allocated())}
