"""One trial, start to end: prepare, fit, predict, score, keep. The method sees training data and test texts only."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
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
    resampled_figures,
    score,
    truth_hash,
)
from xmcbench.evaluation.bootstrap import intervals
from xmcbench.plugins.registry import registry
from xmcbench.run.job import THE_ONLY, Job, Post
from xmcbench.teachers import Teacher
from xmcbench.teachers.hosted import Lesson
from xmcbench.teachers.judges import Judges
from xmcbench.trial.budget import Ledger, peak_memory
from xmcbench.trial.method import Exchange, Method, Progress, Run, derive_seed
from xmcbench.trial.predictions import STORED, Predictions
from xmcbench.trial.provenance import provenance
from xmcbench.trial.record import Failure, Record, Status
from xmcbench.trial.store import Store
from xmcbench.trial.trial import Selection, Trial


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


def held_out(selection: Selection, seed: int, total: int) -> tuple[np.ndarray, np.ndarray]:
    """Which of `total` training queries a trial sets aside, and which it trains on: rows, ascending."""
    order = np.random.default_rng(derive_seed(seed, "selection")).permutation(total)
    return np.sort(order[: selection.queries]), np.sort(order[selection.queries :])


@dataclass
class Attempt:
    """A trial being carried out by one of its workers. What is here when it fails goes into the failure's record."""

    job: Job
    report: Callable[[Progress], None] = lambda _: None
    post: Post = THE_ONLY
    exchange: Exchange | None = None
    started: str = field(default_factory=now)
    stage: str = "prepare"
    ledger: Ledger = field(default_factory=Ledger)
    curve: list[dict[str, float]] = field(default_factory=list)
    teachers: list[Teacher] = field(default_factory=list)  # that the method asks
    chosen_by: str = ""  # what chose the checkpoint, where the method itself did

    def perform(self) -> Record | None:
        """Carry the trial out and keep its predictions, model and record. Raises what the method raises.

        Of several workers every one fits; worker 0 does the rest, and the others answer None.
        """
        trial, store = self.job.trial, Store(self.job.store)
        directory = store.directory(trial.key)
        method = method_of(trial)
        # The dataset is let go at once and read again to score: no test target is in the process until then.
        self._fit(method, self._dataset().training_data(), directory)
        self.ledger.check_memory(trial.budget, _device_peak().get("peak_device_bytes", peak_memory()))
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
        resampled = resampled_figures(hits, self.job.metrics, evaluators)
        truth = truth_hash(dataset)
        store.write_predictions(trial.key, predictions, truth)
        store.write_resampled(trial.key, resampled, truth)
        self._save(method, directory / "model")
        over = self.ledger.over(trial.budget)
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
        self.ledger.peak_bytes = max(self.ledger.peak_bytes, peak_memory(), *self.ledger.worker_bytes)
        held = trial.selection
        return Record(
            key=trial.key,
            suite=self.job.suite,
            trial=trial,
            status=status,
            spent={**self.ledger.as_dict(), **_device_peak()},
            curve=self.curve,
            chosen=self.job.chosen,
            workers=self.post.size,
            teacher=", ".join(teacher.title for teacher in self.teachers),
            simulated_teacher=any(teacher.simulated for teacher in self.teachers),
            selection_split=f"train: {held.queries} queries held out" if held else self.chosen_by or "none",
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
            ledger=self.ledger,
            checkpoint=directory / "checkpoint",
            cache=self.job.cache,
            curve=self.curve,
            report=self.report,
            exchange=self.exchange,
        )
        run.checkpoint.mkdir(parents=True, exist_ok=True)
        if run.exchange:
            run.exchange.take()
        rows = np.arange(len(train.texts))
        if trial.selection:
            train, rows = self._hold_out(train, run)
        if trial.track == "zero-shot":
            train = train.unannotated(method.name)
        lesson = Lesson(trial.dataset, trial.dataset_hash, self.job.data, self.job.cache)
        run.judge = judges = Judges(run, self.job.store, lesson, train.texts, rows, train.label_texts, self.teachers)
        self.stage = "fit"
        self.report(Progress("fit", 0.0))
        # What the method leaves uncharged inside `fit` is charged here: nothing before predictions is free.
        with self._together(), closing(judges), self.ledger.stage("prepare"):
            method.fit(train, run)
        self.chosen_by = run.chosen_by

    def _together(self) -> AbstractContextManager[None]:
        """The group of the trial's workers, where this process is to join it."""
        if self.post.meeting is None:
            return nullcontext()
        from xmcbench.engine.workers import joined  # imports torch

        return joined(self.post.rank, self.post.size, self.post.meeting)

    def _hold_out(self, train: TrainingData, run: Run) -> tuple[TrainingData, np.ndarray]:
        """Set the selection queries aside: the training data without them, and the rows it consists of."""
        selection = self.job.trial.selection
        assert selection is not None
        total = len(train.texts)
        if selection.queries >= total:
            raise XMCBenchError(
                f"selection.queries is {selection.queries}, expected fewer than the {total} training queries of "
                f"{train.card.name}"
            )
        held, kept = held_out(selection, run.seed, total)
        aside = train.rows(held)
        metrics = list(dict.fromkeys([selection.metric, *self.job.metrics]))
        run.selection_texts = aside.texts
        run.selection_metric, run.selection_evaluations = selection.metric, selection.evaluations
        run.select = Selector(
            aside.targets,
            aside.ignore,
            inverse_propensity(train.targets, train.card.propensity_a, train.card.propensity_b),
            metrics,
            find_evaluators(metrics),
        )
        return train.rows(kept), kept

    def _predict(self, method: Method) -> Predictions:
        """The best labels of every test query, without ignored pairs. Queries come shuffled: order says nothing."""
        texts, ignore = self._questions()
        num_labels = ignore.shape[1]
        order = np.random.default_rng(derive_seed(0, "test order")).permutation(len(texts))
        most_ignored = int(np.diff(ignore.indptr).max(initial=0))
        k = min(num_labels, STORED + most_ignored)
        self.report(Progress("predict", 0.0))
        with self.ledger.stage("predict"):
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
class Selector:
    """Figures of predictions for held-out training queries; it holds their truth and nothing of the test split."""

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
