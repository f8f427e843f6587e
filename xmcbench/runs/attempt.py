"""One worker's attempt at a trial: prepare, fit, predict, score, save.

The method sees training data and test texts only. Test targets are loaded after it has predicted.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, closing, nullcontext
from copy import deepcopy
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from time import process_time  # as it is before a method may change the module
from typing import Any

import numpy as np
import scipy

from xmcbench.data import Dataset, Texts, TrainingData, load
from xmcbench.data.extent import MUCH_CUT
from xmcbench.data.prepared import read_statistics
from xmcbench.errors import XMCBenchError, text_of
from xmcbench.evaluation import (
    check_predictions,
    find_evaluators,
    truth_hash,
)
from xmcbench.evaluation.evaluator import score_predictions
from xmcbench.runs.file_guard import BrokenContractError, Sandbox
from xmcbench.runs.held_out import MOST_SCORES, hold_out, scorer_calls
from xmcbench.runs.job import Job, WorkerRank, now
from xmcbench.runs.predicting import FreshProcess, Sample, predict_test, untrained
from xmcbench.runs.saved_model import file_states, load_model, restore_log, same_training, save_model, saved_model
from xmcbench.teachers import Teacher
from xmcbench.teachers.cached_judge import JudgeFactory
from xmcbench.teachers.subprocess_teacher import AnnotatedDataset
from xmcbench.trial.budget import forget_peak_memory, peak_memory
from xmcbench.trial.meter import IMPORT_SECONDS, children_cpu_seconds, metering, uncharged_work
from xmcbench.trial.method import Method, build_method
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.programs import ENVIRONMENTS
from xmcbench.trial.record import METRIC_VERSION, Failure, Record, Status
from xmcbench.trial.record_fields import LARGEST
from xmcbench.trial.recordable import why_not_recordable
from xmcbench.trial.run import CheckpointExchange, HeldOut, Progress, Run, TrainingLog, TrialProgress, derive_seed
from xmcbench.trial.store import PREDICTIONS, RESAMPLED, Store

LONGEST_NAME, LONGEST_MESSAGE = 200, 10_000  # characters of an exception's class and message in a record
REPORT_SECONDS = 0.2  # a method may report every step; displays and trackers need no more than this
_import_seconds: dict[str, float] = {}  # by late module; a forked process has those of its parent


@dataclass
class Attempt:
    """One worker's part of a trial. If it fails, the record of the failure is made from the fields here."""

    job: Job
    watch: Callable[[TrialProgress], None] = lambda _: None  # receives worker 0's progress
    worker: WorkerRank = field(default_factory=WorkerRank)
    exchange: CheckpointExchange | None = None
    started: str = field(default_factory=now)
    stage: str = "prepare"
    log: TrainingLog = field(default_factory=TrainingLog)
    teachers: list[Teacher] = field(default_factory=list)  # the teachers that the method asks
    measured: dict[str, float] = field(default_factory=dict)  # what the harness saw of `fit` and `predict` from outside
    outcome: dict[str, Any] = field(default_factory=dict)  # fields of the record that are known so far
    own_thread: InitVar[bool] = False  # this thread ends with the attempt: Landlock may restrict it
    fork: bool = False  # load the saved model in a process that is forked before training
    _fresh: FreshProcess | None = None
    _reported: tuple[str, float, int] = ("", 0.0, 0)  # stage, clock and length of the curve at the last report

    def __post_init__(self, own_thread: bool) -> None:
        self.sandbox = Sandbox(self.job, own_thread)

    def perform(self) -> Record | None:
        """Run the trial and store its predictions, model and record. Raises what the method raises.

        All workers fit; worker 0 does the rest, and the others return None.
        """
        trial, store = self.job.trial, Store(self.job.store)
        directory = store.directory(trial.key)
        self.report(Progress("open", 0.0))
        method = build_method(trial)
        self.measured["import_cpu_seconds"] = import_late(method.late_imports)
        # Several workers always train: they could not agree on what is in the store.
        shared = same_training(trial, method, store) if self.worker.size == 1 else None
        if self.fork and self.worker.rank == 0 and not trial.held_out_only:
            self._fresh = FreshProcess(partial(build_method, trial))
        held_out, num_labels = None, 0
        if shared is None:
            # The dataset is freed at once and read again for scoring: until then no test target is in the process.
            held_out, num_labels = self._fit(method, self._dataset().training_data(), directory)
        else:
            load_model(method, saved_model(shared, store))
            restore_log(shared, self.log)
            self.outcome["trained_by"] = shared.trained_by or shared.key
        self.log.ledger.check_memory(trial.budget, _device_peak().get("peak_device_bytes", peak_memory()))
        if self.worker.rank > 0:
            return None
        if trial.held_out_only:
            assert held_out is not None, "its selection is in the way of a shared training"
            return self._judge_held_out(method, held_out, num_labels)
        self._enter("predict")
        # Saved first: what a method learns from test queries is not in its model.
        with untrained("save"):
            self.measured["model_bytes"] = save_model(method, directory / "model")
        saved = file_states(directory / "model")
        predictions, sample = self._predict(method)
        if file_states(directory / "model") != saved:
            raise BrokenContractError("predict wrote into the saved model: nothing is learned from test queries")
        if not 0 <= (parameters := shared.num_parameters if shared else int(method.num_parameters)) <= LARGEST:
            raise BrokenContractError(f"num_parameters is {parameters}, expected a count")
        self.outcome["num_parameters"] = parameters
        self._enter("check")
        self._check(method, sample, directory / "model")
        self._enter("score")
        return self.sandbox.outside(self._score, predictions)

    def _judge_held_out(self, method: Method, held_out: HeldOut, num_labels: int) -> Record:
        """The record of a sample of a tuning. A method that evaluated no held-out queries on its way does it now."""
        self._enter("select")
        if not any(held_out.metric in point for point in self.log.curve):
            with self.sandbox.closed("predict"), self.log.ledger.uncharged():
                metrics = held_out.evaluate(method.predict, num_labels)
            self.log.add_point(1.0, metrics)
        return self._finished(num_parameters=int(method.num_parameters))

    def _score(self, predictions: Predictions) -> Record:
        """Store the predictions, then score them. If an evaluator fails, the predictions remain."""
        trial, store = self.job.trial, Store(self.job.store)
        dataset = self._dataset()
        check_predictions(predictions, *dataset.test.targets.shape, dataset.ignore_test)
        self.outcome["truth_hash"] = truth = truth_hash(dataset)
        self.outcome["test_texts_in_train"] = read_statistics(self.sandbox.places[1]).test_texts_in_train
        self.outcome["digests"] = digests = {PREDICTIONS: store.write_predictions(trial.key, predictions, truth)}
        scores = score_predictions(predictions, dataset, self.job.metrics, find_evaluators(self.job.metrics))
        digests[RESAMPLED] = store.write_resampled(trial.key, scores.resampled, truth)
        return self._finished(metrics=scores.metrics, intervals=scores.intervals, metric_version=METRIC_VERSION)

    def _finished(self, **outcome: Any) -> Record:
        """Store the record of an attempt that ended well; its checkpoints are removed."""
        store, trial = Store(self.job.store), self.job.trial
        record = self.record(Status.OVER_BUDGET if self.log.ledger.over(trial.budget) else Status.OK, **outcome)
        store.write_record(record)
        shutil.rmtree(store.directory(trial.key) / "checkpoint", ignore_errors=True)
        return record

    def record(self, status: Status, **outcome: Any) -> Record:
        """The record of this attempt in its present state."""
        trial = self.job.trial
        self.log.ledger.peak_bytes = max(self.log.ledger.peak_bytes, peak_memory(), *self.log.ledger.worker_bytes)
        selection, spent = trial.selection, self.log.ledger.as_dict()
        if why_not_recordable(spent, self.log.curve):  # the trial failed for it
            spent, self.log.curve[:] = {}, []
        noted: dict[str, Any] = {"ended": self.log.ended} if self.log.ended else {}
        noted |= {"cut_queries": self.log.cut_queries} if self.log.cut_queries > MUCH_CUT else {}
        split = f"train: {selection.queries} queries held out" if selection else self.log.chosen_by or "none"
        return self.job.record(
            status,
            started=self.started,
            spent={**spent, **noted, **_device_peak(), **self.measured},
            workers=self.worker.size,
            checks=self.sandbox.checks,
            curve=self.log.curve,
            teacher=", ".join(teacher.title for teacher in self.teachers),
            simulated_teacher=any(teacher.simulated for teacher in self.teachers),
            selection_split=split,
            **self.outcome,
            **outcome,
        )

    def failure(self, status: Status, problem: BaseException, log_tail: str = "") -> Record:
        """The record of this attempt, which failed with `problem`."""
        kind, message = in_words(problem)
        return self.record(
            status,
            failure=Failure(type=kind, message=message, stage=self.stage, log_tail=log_tail),
        )

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

    def _enter(self, stage: str) -> None:
        self.stage = stage
        self.report(Progress(stage, 0.0))

    def _dataset(self) -> Dataset:
        trial = self.job.trial
        dataset = load(trial.dataset, self.job.data, self.job.cache)
        if dataset.card.content_hash != trial.dataset_hash:
            raise XMCBenchError(f"{trial.dataset} changed on disk since the run was planned; run it again")
        return dataset

    def _fit(self, method: Method, train: TrainingData, directory: Path) -> tuple[HeldOut | None, int]:
        """Fit the method, and check what it charged. Returns the held-out queries, if any, and the number of labels."""
        trial = self.job.trial
        run = Run(
            seed=trial.seed,
            budget=trial.budget.model_copy(),
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
            held_out, train, rows = hold_out(train, trial.selection, trial.seed, self.job.metrics)
            run = replace(run, held_out=held_out)
        if trial.track == "zero-shot":
            train = train.unannotated(method.name)
        annotated = AnnotatedDataset(trial.dataset, trial.dataset_hash, self.job.data, self.job.cache)
        popen = partial(self.sandbox.outside, subprocess.Popen)  # a simulated teacher opens the whole dataset
        judges = JudgeFactory(
            run, self.job.store, annotated, train.texts, rows, train.label_texts, self.teachers, popen
        )
        self._enter("fit")
        # Seconds of `fit` that the method charges to no stage are charged here: nothing before predictions is free.
        settings = method.config.model_dump(mode="json")
        _seed_global_generators(trial.seed)
        charged = self.log.ledger.stage("prepare")
        with self._worker_group(), closing(judges), self.sandbox.closed("fit"), metering() as meter, charged:
            method.fit(train, replace(run, judge=judges))
        self.measured |= {
            "fit_seconds": meter.seconds,
            "fit_wait_seconds": meter.waited_seconds,
            "fit_cpu_seconds": meter.cpu_seconds,
            "fit_children_cpu_seconds": meter.children_cpu_seconds,
        }
        ledger, points = self.log.ledger, len(self.log.curve)
        if run.held_out and (calls := scorer_calls(run.held_out)) > MOST_SCORES * (1 + run.held_out.evaluations):
            raise BrokenContractError(
                f"fit scored held-out queries {calls} times, the suite asks for {run.held_out.evaluations}: "
                "they choose a checkpoint, and nothing is trained on them"
            )
        problem = why_not_recordable(ledger.as_dict(), self.log.curve)
        if problem or (problem := uncharged_work(meter, ledger, trial.budget, train.num_labels, points)):
            raise BrokenContractError(problem)
        if method.config.model_dump(mode="json") != settings:
            raise BrokenContractError("fit changed the method's settings: the record would name other settings")
        self.log = deepcopy(self.log)  # what the method does to its own from now on is in no record
        return run.held_out, train.num_labels

    def _worker_group(self) -> AbstractContextManager[None]:
        """Membership in the group of the trial's workers; nothing if this process is the only worker or has joined."""
        if self.worker.meeting is None:
            return nullcontext()
        from xmcbench.engine.workers import joined  # imports torch

        return joined(self.worker.rank, self.worker.size, self.worker.meeting)

    def _predict(self, method: Method) -> tuple[Predictions, Sample]:
        texts, ignore = self.sandbox.outside(self._test_queries)
        self.log.ledger.peak_bytes = max(self.log.ledger.peak_bytes, peak_memory())
        measurable = forget_peak_memory()
        with untrained("predict") as meter, self.sandbox.closed("predict"), self.log.ledger.stage("predict"):
            predictions, sample = predict_test(method, texts, ignore)
        self.measured |= {"predicted_queries": len(texts), "predict_cpu_seconds": meter.cpu_seconds}
        if measurable:
            self.measured["predict_bytes"] = peak_memory()
        return predictions, sample

    def _check(self, method: Method, sample: Sample, model: Path) -> None:
        """Predict a sample of the test queries again: in another order, with the saved model, and with exact search."""
        with self.sandbox.closed("predict"), self.log.ledger.stage("check"):
            if (recall := sample.recall(method)) is not None:
                self.measured["search_recall"] = recall
            # On a GPU the model may need the GPU, which a forked process cannot use.
            fresh = None if _device_peak() else self._fresh
            self.sandbox.checks["saved model"] = "forked process" if fresh else "same process"
            if fresh:
                # The process ends before its folder is removed: it may be writing there when the order already differs.
                with tempfile.TemporaryDirectory(prefix="xmcbench-") as folder, closing(fresh):
                    moved = shutil.copytree(model, Path(folder) / "moved" / "model")
                    home = Path(folder) / "home"
                    home.mkdir()
                    # An outside program is installed, as packages are; what else the cache holds is no part of a model.
                    (home / ENVIRONMENTS).symlink_to(self.job.cache / ENVIRONMENTS)
                    cached = [path for path in self.job.cache.glob("*") if path.name != ENVIRONMENTS]
                    fresh.ask(moved, sample.texts, sample.predictions.k, home, [model.parent, *cached])
                    sample.check_order(method)  # while the forked process loads the model
                    sample.check_saved(fresh.answer())
            else:
                sample.check_order(method)
                loaded = build_method(self.job.trial)
                load_model(loaded, model)
                sample.check_saved(loaded.predict(sample.texts, sample.predictions.k))

    def _test_queries(self) -> tuple[Texts, scipy.sparse.csr_array]:
        """Test texts and the pairs to ignore. The test targets, which are loaded with them, are freed here."""
        dataset = self._dataset()
        return dataset.test.texts, dataset.ignore_test


def import_late(modules: Iterable[str]) -> float:
    """Import the modules; the processor time that this took, or took when they were first imported.

    Raises `BrokenContractError` where that is more than `IMPORT_SECONDS`.
    """
    names = tuple(modules)
    for name in names:
        if name not in _import_seconds:
            start = process_time() + children_cpu_seconds()
            import_module(name)
            _import_seconds[name] = max(0.0, process_time() + children_cpu_seconds() - start)
    total = sum(_import_seconds[name] for name in names)
    if total > IMPORT_SECONDS:
        raise BrokenContractError(
            f"importing late_imports took {total:.0f} seconds of processors, expected at most {IMPORT_SECONDS:.0f}: "
            "compute in fit"
        )
    return total


def in_words(problem: BaseException) -> tuple[str, str]:
    """Class and message of an exception, as text that a record can hold."""
    kind = type(problem).__name__
    texts = (kind, text_of(problem) or kind)
    short, long = (text[:LONGEST_MESSAGE].encode(errors="backslashreplace").decode() for text in texts)
    return " ".join(short.split())[:LONGEST_NAME], long


def _seed_global_generators(seed: int) -> None:
    """Seed the global generators, so that a method that uses them instead of `Run.rng` has one result per key."""
    short = derive_seed(seed, "global") % (1 << 32)
    random.seed(short)
    np.random.seed(short)  # noqa: NPY002
    if torch := sys.modules.get("torch"):
        torch.manual_seed(short)


def _device_peak() -> dict[str, int]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    return {"peak_device_bytes": int(torch.cuda.max_memory_allocated())}
