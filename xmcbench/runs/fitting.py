"""Trains the method of a trial: sets held-out queries aside, calls `fit`, and judges what was held out."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from xmcbench.data import TrainingData
from xmcbench.engine.device import device_peak_memory
from xmcbench.engine.flops import charged_to_open_stages
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation import check_predictions, drop_ignored
from xmcbench.evaluation.calibration import Calibration, fit_calibration
from xmcbench.files.atomic import atomic_write
from xmcbench.plugins.registry import registry
from xmcbench.runs.attempt import Attempt
from xmcbench.runs.file_guard import BrokenContractError
from xmcbench.runs.held_out import Answers, Judge
from xmcbench.runs.predicting import ask, untrained
from xmcbench.runs.saved_model import (
    CALIBRATION,
)
from xmcbench.teachers.judges import AnnotatedDataset, Asking, Judges
from xmcbench.trial.budget import Budget, Ledger, peak_memory
from xmcbench.trial.embedder import asked_through
from xmcbench.trial.facts import chosen_share
from xmcbench.trial.meter import metering, uncharged_work
from xmcbench.trial.method import Method, build_method
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.record import why_not_recordable
from xmcbench.trial.run import HELD_OUT_LABELS, HeldOut, Run, TrainingLog, derive_seed, held_out_rows
from xmcbench.trial.trial import Selection

LENGTH = "length.json"  # in the checkpoint's folder: how long the training that is repeated on all queries takes
SPENT = ("epochs", "steps", "encoder_tokens", "flops", "device_seconds")  # noted of the training that chose the length
SOLVERS = tuple(
    f"sklearn.{kind}" for kind in ("linear_model", "svm", "decomposition", "cluster", "neural_network", "neighbors")
)  # models that multiply matrices to learn
SHORTEST = 0.01  # share of the budget
MOST_SCORES = 20  # times the evaluations that a suite asks for: a method may have reasons of its own for some more


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
def noticing_solvers(ledger: Ledger) -> Iterator[None]:
    """The operations are unknown, not few, if a model of scikit-learn learns in the block and no solver is charged.

    A model that learns looks at its parameters first. Where scikit-learn is first imported within the block, the
    models that it imports are taken to learn.
    """
    base, learnt = sys.modules.get("sklearn.base"), []
    if base is None:
        yield
        learnt = [name for name in sys.modules if name.startswith(SOLVERS)]
    else:
        look = base.BaseEstimator._validate_params

        def note(model: Any) -> None:
            if type(model).__module__.startswith(SOLVERS):
                learnt.append(type(model).__name__)
            look(model)

        base.BaseEstimator._validate_params = note
        try:
            yield
        finally:
            base.BaseEstimator._validate_params = look
    if learnt and not ledger.solver_flops and "flops" not in ledger.not_counted:
        ledger.not_counted.append("flops")


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
        with group, attempt.sandbox.closed("fit"), metering() as meter, charged, noticing_solvers(run.ledger):
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


def calibrate(attempt: Attempt, method: Method) -> Calibration | None:
    """The probabilities of the method's scores, fitted on the held-out queries, if any; it costs the budget nothing."""
    trial = attempt.job.trial
    if trial.selection is None or trial.track == "zero-shot":
        return None
    train = attempt.sandbox.outside(attempt.dataset).training_data()
    queries = train.rows(held_out_rows(trial.selection, trial.seed, len(train.texts))[0])
    log, sandbox = attempt.log, attempt.sandbox
    with untrained("calibrate"), sandbox.closed("predict"), attempt.embedders(), log.ledger.uncharged():
        predictions = ask(method, list(queries.texts), min(HELD_OUT_LABELS, train.num_labels))
    check_predictions(predictions, *queries.targets.shape)
    return fit_calibration(drop_ignored(predictions, queries.ignore, predictions.k), queries.targets)


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
