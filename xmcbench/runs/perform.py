"""Runs a trial: `perform` calls a function for each phase, which notes what it saw in the `Attempt`.

The method sees training data and test texts only. Test targets are loaded after it has predicted.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from xmcbench.data.prepared import read_statistics
from xmcbench.engine.device import device_peak_memory
from xmcbench.evaluation import check_predictions, find_evaluators, truth_hash
from xmcbench.evaluation.calibration import Calibration
from xmcbench.evaluation.evaluator import lower_is_better, score_predictions
from xmcbench.runs.attempt import Attempt, embedders_of
from xmcbench.runs.file_guard import BrokenContractError
from xmcbench.runs.fitting import calibrate, choose_length, fit
from xmcbench.runs.late_imports import import_late
from xmcbench.runs.predicting import FreshProcess, Sample, predict_test, untrained
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
from xmcbench.trial.budget import forget_peak_memory, memory_taken, peak_memory
from xmcbench.trial.method import Method, build_method
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.programs import ENVIRONMENTS
from xmcbench.trial.provenance import evaluator_digests
from xmcbench.trial.record import METRIC_VERSION, Record, Status
from xmcbench.trial.record_fields import LARGEST
from xmcbench.trial.run import HeldOut, Progress
from xmcbench.trial.store import HELD_OUT, MODEL, PREDICTIONS, RESAMPLED


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
    # A trial that differs only in how its model scores takes over a stored training. Several workers always train: they
    # could not agree on what is in the store.
    shared = same_training(trial, method, store) if worker.size == 1 else None
    # The process that `check` asks is forked now: it has nothing of the training but the saved model.
    checks = worker.fork and worker.rank == 0 and not trial.held_out_only
    fresh = FreshProcess(partial(build_method, trial), partial(embedders_of, attempt.job)) if checks else None
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
