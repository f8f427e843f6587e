"""One worker's attempt at a trial: `perform` calls a function for each phase, which notes what it saw in the `Attempt`.

The method sees training data and test texts only. Test targets are loaded after it has predicted.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from time import process_time  # as it is before a method may change the module
from typing import Any

import numpy as np

from xmcbench.data import Dataset, TrainingData, load
from xmcbench.data.extent import MUCH_ALIKE, MUCH_CUT
from xmcbench.data.prepared import read_statistics
from xmcbench.engine.device import device_peak_memory
from xmcbench.engine.flops import charged_to_open_stages
from xmcbench.errors import XMCBenchError, text_of
from xmcbench.evaluation import check_predictions, drop_ignored, find_evaluators, truth_hash
from xmcbench.evaluation.calibration import Calibration, fit_calibration
from xmcbench.evaluation.evaluator import lower_is_better, score_predictions
from xmcbench.files.atomic import atomic_write
from xmcbench.files.pretrained import digests_of
from xmcbench.plugins.registry import registry
from xmcbench.runs.file_guard import BrokenContractError, Sandbox
from xmcbench.runs.held_out import Answers, Judge
from xmcbench.runs.job import Job, WorkerRank, log_tail, now
from xmcbench.runs.predicting import FreshProcess, Sample, ask, predict_test, untrained
from xmcbench.runs.saved_model import (
    CALIBRATION,
    file_states,
    load_model,
    model_digest,
    restore_log,
    same_training,
    save_model,
    saved_model,
)
from xmcbench.teachers import Teacher
from xmcbench.teachers.judges import AnnotatedDataset, Asking, Judges
from xmcbench.trial.budget import Budget, Ledger, forget_peak_memory, memory_taken, peak_memory
from xmcbench.trial.embedder import asked_through
from xmcbench.trial.facts import Choice, ChosenBy, chosen_share
from xmcbench.trial.meter import IMPORT_SECONDS, children_cpu_seconds, metering, uncharged_work
from xmcbench.trial.method import Method, build_method
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.programs import ENVIRONMENTS
from xmcbench.trial.provenance import evaluator_digests, plugin_code, plugin_digest
from xmcbench.trial.record import METRIC_VERSION, Failure, Record, Status, why_not_recordable
from xmcbench.trial.record_fields import LARGEST
from xmcbench.trial.run import (
    HELD_OUT_LABELS,
    HeldOut,
    Progress,
    Run,
    TrainingLog,
    TrialProgress,
    derive_seed,
    held_out_rows,
)
from xmcbench.trial.store import HELD_OUT, MODEL, PREDICTIONS, RESAMPLED, Store
from xmcbench.trial.trial import Selection, flatten

LONGEST_NAME, LONGEST_MESSAGE = 200, 10_000  # characters of an exception's class and message in a record
LENGTH = "length.json"  # in the checkpoint's folder: how long the training that is repeated on all queries takes
SPENT = ("epochs", "steps", "encoder_tokens", "flops", "device_seconds")  # noted of the training that chose the length
SHORTEST = 0.01  # share of the budget
MOST_SCORES = 20  # times the evaluations that a suite asks for: a method may have reasons of its own for some more
REPORT_SECONDS = 0.2  # a method may report every step; displays and trackers need no more than this
_import_seconds: dict[str, float] = {}  # by late module; a forked process has those of its parent


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
        short, long = (text[:LONGEST_MESSAGE].encode(errors="backslashreplace").decode() for text in texts)
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


def perform(attempt: Attempt) -> Record | None:
    """Run the trial and store its predictions, model and record. Raises what the method raises.

    All workers fit; worker 0 does the rest, and the others return None.
    """
    trial, worker, store = attempt.job.trial, attempt.worker, attempt.store
    attempt.report(Progress("open", 0.0))
    method = build_method(trial)
    attempt.note_code()
    attempt.note_pretrained()
    attempt.measured["import_cpu_seconds"] = import_late(method.late_imports)
    # Several workers always train: they could not agree on what is in the store.
    shared = same_training(trial, method, store) if worker.size == 1 else None
    forks = worker.fork and worker.rank == 0 and not trial.held_out_only
    fresh = FreshProcess(partial(build_method, trial), partial(embedders_of, attempt.job)) if forks else None
    held_out = None
    if shared is None:
        selection, budget = trial.selection, trial.budget
        if selection is not None and selection.refit and not trial.held_out_only:
            budget, selection = budget.times(choose_length(attempt)), None
        # No name here holds the annotations while the method fits.
        held_out = fit(attempt, method, attempt.sandbox.outside(attempt.dataset).training_data(), selection, budget)
    else:
        load_model(method, saved_model(shared, store))
        restore_log(shared, attempt.log)
        attempt.outcome["trained_by"] = shared.trained_by or shared.key
    attempt.log.ledger.check_memory(trial.budget, memory_taken(attempt.log.ledger.as_dict()))
    if worker.rank > 0:
        return None
    if trial.held_out_only:
        assert held_out is not None, "its selection is in the way of a shared training"
        return judge_held_out(attempt, method, held_out)
    attempt.note_pretrained()
    attempt.enter("predict")
    predictions, sample = predict(attempt, method)
    parameters = shared.num_parameters if shared else int(method.num_parameters)
    if not 0 <= parameters <= LARGEST:
        raise BrokenContractError(f"num_parameters is {parameters}, expected a count")
    attempt.outcome["num_parameters"] = parameters
    attempt.enter("check")
    check(attempt, method, sample, fresh)
    attempt.enter("score")
    return attempt.sandbox.outside(score, attempt, predictions)


@contextmanager
def training_run(attempt: Attempt, train: TrainingData, rows: np.ndarray, **more: Any) -> Iterator[Run]:
    """What `fit` is given beside `train`, which are `rows` of the dataset's training split; `more` are fields of it.

    The judges and embedders that the method asks in the block are closed at its end.
    """
    job, trial = attempt.job, attempt.job.trial
    checkpoint = attempt.directory / "checkpoint"
    checkpoint.mkdir(parents=True, exist_ok=True)
    secrets = registry().method(trial.method, trial.distribution).thing.info.secrets
    fields = {"log": attempt.log, "report": attempt.report, "exchange": attempt.worker.exchange, "secrets": secrets}
    fields |= more
    run = Run(trial.seed, fields.pop("budget", trial.budget).model_copy(), checkpoint, job.cache, **fields)
    annotated = AnnotatedDataset(trial.dataset, trial.dataset_hash, job.data, job.cache)
    popen = partial(attempt.sandbox.outside, subprocess.Popen)  # a simulated teacher opens the whole dataset
    asking = Asking(run, job.store, annotated, train.texts, rows, train.label_texts, popen)
    with (
        Judges(asking, attempt.teachers) as judges,
        charged_to_open_stages(run.ledger),
        asked_through(judges.embed),
    ):
        yield replace(run, judge=judges)


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


def choose_length(attempt: Attempt) -> float:
    """Train on all but the held-out queries; the share of the budget after which their best evaluation came.

    The curve and what this spent stay in `attempt.choice`. A run that is killed later finds them in the checkpoint's
    folder, which then holds nothing else of this training. The calibration is that of this training, and waits in the
    trial's folder: the held-out queries are no measure of a model that saw them.
    """
    trial, folder, exchange = attempt.job.trial, attempt.directory / "checkpoint", attempt.worker.exchange
    assert trial.selection is not None
    folder.mkdir(parents=True, exist_ok=True)
    if exchange:
        exchange.download()
    if not (folder / LENGTH).exists():
        method = build_method(trial)
        fit(attempt, method, attempt.dataset().training_data(), trial.selection, trial.budget)
        if attempt.worker.rank == 0 and (calibration := calibrate(attempt, method)) is not None:
            with atomic_write(attempt.directory / CALIBRATION) as file:
                file.write(calibration.encode())
        log, lower = attempt.log, attempt.answers.lower_is_better
        share = chosen_share(log.curve, trial.selection.metric, log.chosen_at, lower)
        spent = {name: log.ledger.spent(name) for name in SPENT if name not in log.ledger.not_counted}
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        with atomic_write(folder / LENGTH) as file:
            file.write(json.dumps({"share": share, "curve": log.curve, "spent": spent}).encode())
        if exchange:
            exchange.upload()
    attempt.choice = json.loads((folder / LENGTH).read_bytes())
    attempt.log = TrainingLog()
    return max(SHORTEST, float(attempt.choice["share"]))


def fit(
    attempt: Attempt, method: Method, train: TrainingData, selection: Selection | None, budget: Budget
) -> HeldOut | None:
    """Fit the method, and check what it charged. Returns the held-out queries, if any."""
    job, trial, worker = attempt.job, attempt.job.trial, attempt.worker
    held_out, rows, answers = None, np.arange(len(train.texts)), attempt.answers
    if selection:
        held_out, train, rows = hold_out(train, selection, trial.seed, job.metrics, answers)
        attempt.outcome["lower_is_better"] = held_out.lower_is_better
    if trial.track == "zero-shot":
        train = train.unannotated(method.name)
    settings = method.config.model_dump(mode="json")
    with training_run(attempt, train, rows, held_out=held_out, budget=budget) as run:
        if run.exchange:
            run.exchange.download()
        attempt.enter("fit")
        _seed_global_generators(trial.seed)
        run.ledger.clock = "wall" if _holds_gpu() else "processor"
        # Seconds of `fit` that the method charges to no stage are charged here: nothing before predictions is free.
        charged = run.ledger.stage("prepare")
        group: AbstractContextManager[None] = nullcontext()  # the only worker, or one that has joined the others
        if worker.rendezvous is not None:
            from xmcbench.engine.workers import joined  # imports torch

            group = joined(worker.rank, worker.size, worker.rendezvous)
        with group, attempt.sandbox.closed("fit"), metering() as meter, charged:
            method.fit(train, run)
    attempt.measured |= {
        "fit_seconds": meter.seconds,
        "fit_wait_seconds": meter.waited_seconds,
        "fit_cpu_seconds": meter.cpu_seconds,
        "fit_children_cpu_seconds": meter.children_cpu_seconds,
    }
    log = attempt.log
    note_memory(log.ledger)
    if held_out and answers.asked > MOST_SCORES * (1 + held_out.evaluations):
        raise BrokenContractError(
            f"fit scored held-out queries {answers.asked} times, the suite asks for {held_out.evaluations}: "
            "they choose a checkpoint, and nothing is trained on them"
        )
    problem = why_not_recordable(log.ledger.as_dict(), log.curve)
    if problem or (problem := uncharged_work(meter, log.ledger, budget, train.num_labels, len(log.curve))):
        raise BrokenContractError(problem)
    if method.config.model_dump(mode="json") != settings:
        raise BrokenContractError("fit changed the method's settings: the record would name other settings")
    attempt.log = deepcopy(log)  # what the method does to its own from now on is in no record
    return held_out


def note_memory(ledger: Ledger) -> None:
    """Note the memory that this worker took to fit, where the method did not note that of all workers itself."""
    if not ledger.worker_bytes:  # a method may have noted what its programs took
        ledger.worker_bytes = [max(peak_memory(), ledger.peak_bytes)]
    if not ledger.worker_device_bytes and (peak := device_peak_memory()) is not None:
        ledger.worker_device_bytes = [peak]


def hold_out(
    train: TrainingData, selection: Selection, seed: int, metrics: Sequence[str], answers: Answers
) -> tuple[HeldOut, TrainingData, np.ndarray]:
    """The held-out queries, the training data without them, and the rows of `train` that remain.

    `answers` keeps what the method answers about the held-out queries. Raises XMCBenchError if no training query would
    remain.
    """
    total, card = len(train.texts), train.card
    if selection.queries >= total:
        raise XMCBenchError(
            f"selection.queries is {selection.queries}, expected fewer than the {total} training queries of {card.name}"
        )
    held_out, remaining = held_out_rows(selection, seed, total)
    judge = Judge(train, held_out, list(dict.fromkeys([selection.metric, *metrics])))
    answers.lower_is_better = judge.lower_is_better

    def metrics_of(predictions: Predictions) -> dict[str, float]:  # holds no test target
        scores = judge.scores(predictions)
        answers.note(predictions, scores)
        return scores

    how = selection.metric, selection.evaluations, selection.patience
    held = HeldOut(judge.queries.texts, metrics_of, *how, answers.lower_is_better)
    return held, train.most_rows(remaining), remaining


def judge_held_out(attempt: Attempt, method: Method, held_out: HeldOut) -> Record:
    """The record of a sample of a tuning. A method that evaluated no held-out queries in `fit` is evaluated now."""
    attempt.enter("select")
    log = attempt.log
    if not any(held_out.metric in point for point in log.curve):
        num_labels = attempt.sandbox.outside(attempt.dataset).card.num_labels
        with attempt.sandbox.closed("predict"), attempt.embedders(), log.ledger.uncharged():
            metrics = held_out.evaluate(method.predict, num_labels)
        log.add_point(1.0, metrics)
    best = max(held_out.worth(point) for point in log.curve if held_out.metric in point)
    if (answers := attempt.answers.of(best)) is not None:
        attempt.outcome["digests"] = {HELD_OUT: attempt.store.write_held_out(attempt.job.trial.key, answers)}
    return finish(attempt, num_parameters=int(method.num_parameters))


def calibrate(attempt: Attempt, method: Method) -> Calibration | None:
    """The probabilities of the method's scores, fitted on the held-out queries, if any; it costs the budget nothing."""
    trial = attempt.job.trial
    if trial.selection is None or trial.track == "zero-shot":
        return None
    train = attempt.sandbox.outside(attempt.dataset).training_data()
    queries = train.rows(held_out_rows(trial.selection, trial.seed, len(train.texts))[0])
    log, sandbox = attempt.log, attempt.sandbox
    with untrained("calibrate"), sandbox.closed("predict"), attempt.embedders(), log.ledger.uncharged():
        found = ask(method, list(queries.texts), min(HELD_OUT_LABELS, train.num_labels))
    check_predictions(found, *queries.targets.shape)
    return fit_calibration(drop_ignored(found, queries.ignore, found.k), queries.targets)


def predict(attempt: Attempt, method: Method) -> tuple[Predictions, Sample]:
    """Save the model, then predict the test queries: what a method learns from these is not in its model."""
    ledger, model = attempt.log.ledger, attempt.directory / "model"
    waiting, selection = attempt.directory / CALIBRATION, attempt.job.trial.selection
    known = Calibration.decode(waiting.read_bytes()) if waiting.exists() else None  # of a training before this one
    sees_all = selection is not None and selection.refit
    calibration = known if known or sees_all else calibrate(attempt, method)
    with untrained("save"):
        saved = save_model(method, model, calibration)
    waiting.unlink(missing_ok=True)
    attempt.measured["model_bytes"] = sum(size for size, _, _ in saved.values())
    attempt.outcome["digests"] = {MODEL: model_digest(model)}
    dataset = attempt.sandbox.outside(attempt.dataset)
    texts, ignore = dataset.test.texts, dataset.ignore_test
    del dataset  # with the test targets
    ledger.peak_bytes = max(ledger.peak_bytes, peak_memory())
    measurable = forget_peak_memory()
    with (
        untrained("predict") as meter,
        attempt.sandbox.closed("predict"),
        attempt.embedders(),
        ledger.stage("predict"),
    ):
        predictions, sample = predict_test(method, texts, ignore)
    attempt.measured |= {"predicted_queries": len(texts), "predict_cpu_seconds": meter.cpu_seconds}
    if measurable:
        attempt.measured["predict_bytes"] = peak_memory()
    if file_states(model) != saved:
        raise BrokenContractError("predict wrote into the saved model: nothing is learned from test queries")
    return predictions, sample


def check(attempt: Attempt, method: Method, sample: Sample, fresh: FreshProcess | None) -> None:
    """Predict a sample of the test queries again: in another order, with the saved model, and with exact search."""
    job, model, sandbox = attempt.job, attempt.directory / "model", attempt.sandbox
    with sandbox.closed("predict"), attempt.embedders(), attempt.log.ledger.stage("check"):
        if (recall := sample.recall(method)) is not None:
            attempt.measured["search_recall"] = recall
        # A forked process cannot use the GPU, which the model may need.
        if fresh is None or device_peak_memory() is not None:
            sandbox.checks["saved model"] = "same process"
            sample.check_order(method)
            loaded = build_method(job.trial)
            load_model(loaded, model)
            sample.check_saved(loaded.predict(sample.texts, sample.predictions.k))
            return
        sandbox.checks["saved model"] = "forked process"
        # The process ends before its folder is removed: it may be writing there when the order already differs.
        with tempfile.TemporaryDirectory(prefix="xmcbench-") as folder, closing(fresh):
            moved = shutil.copytree(model, Path(folder) / "moved" / "model")
            home = Path(folder) / "home"
            home.mkdir()
            # An outside program is installed, as packages are; what else the cache holds is no part of a model.
            (home / ENVIRONMENTS).symlink_to(job.cache / ENVIRONMENTS)
            cached = [path for path in job.cache.glob("*") if path.name != ENVIRONMENTS]
            fresh.ask(moved, sample.texts, sample.predictions.k, home, [attempt.directory, *cached])
            sample.check_order(method)  # while the forked process loads the model
            sample.check_saved(fresh.answer())


def score(attempt: Attempt, predictions: Predictions) -> Record:
    """Store the predictions, then score them. If an evaluator fails, the predictions remain."""
    key, store, metrics, outcome = attempt.job.trial.key, attempt.store, attempt.job.metrics, attempt.outcome
    dataset = attempt.dataset()
    check_predictions(predictions, *dataset.test.targets.shape, dataset.ignore_test)
    outcome["truth_hash"] = truth = truth_hash(dataset)
    counts = read_statistics(attempt.sandbox.places[1])
    outcome["test_texts_in_train"] = counts.test_texts_in_train
    outcome["labels_with_shared_text"] = counts.labels_with_shared_text
    digests = outcome["digests"]
    digests[PREDICTIONS] = store.write_predictions(key, predictions, truth)
    evaluators = find_evaluators(metrics)
    scores = score_predictions(predictions, dataset, metrics, evaluators)
    digests[RESAMPLED] = store.write_resampled(key, scores.resampled, truth)
    outcome["evaluators"] = evaluator_digests(evaluators)
    selection = attempt.job.trial.selection
    chosen_by = [selection.metric] if selection else []
    outcome["lower_is_better"] = lower_is_better(evaluators | find_evaluators(chosen_by))
    return finish(attempt, metrics=scores.metrics, intervals=scores.intervals, metric_version=METRIC_VERSION)


def finish(attempt: Attempt, **outcome: Any) -> Record:
    """Store the record of an attempt that ended well; its checkpoints are removed."""
    over = attempt.log.ledger.over(attempt.job.trial.budget)
    record = attempt.record(Status.OVER_BUDGET if over else Status.OK, **outcome)
    attempt.store.write_record(record)
    shutil.rmtree(attempt.directory / "checkpoint", ignore_errors=True)
    return record


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


def _seed_global_generators(seed: int) -> None:
    """Seed the global generators, so that a method that uses them instead of `Run.rng` has one result per key."""
    short = derive_seed(seed, "global") % (1 << 32)
    random.seed(short)
    np.random.seed(short)  # noqa: NPY002
    if torch := sys.modules.get("torch"):
        torch.manual_seed(short)


def _holds_gpu() -> bool:
    """Whether this process computes on a GPU, if its method uses torch at all."""
    if "torch" not in sys.modules:
        return False
    from xmcbench.engine.device import default_device

    return default_device().type != "cpu"
