"""Fuses the stored predictions of finished trials, with rules fitted on training queries that all of them held out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from xmcbench.data.dataset import Dataset
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.evaluator import stored_predictions
from xmcbench.evaluation.fusion import Fusion, RuleName, Weighted, fit_fusion
from xmcbench.evaluation.metrics import inverse_propensity
from xmcbench.evaluation.ranking import check_predictions, drop_ignored
from xmcbench.runs.fused import FusedModel
from xmcbench.runs.saved_model import load_saved_model, model_digest, save_model, saved_model
from xmcbench.trial.budget import UnknownBudget
from xmcbench.trial.facts import Choice, ChosenBy
from xmcbench.trial.predictions import STORED, Predictions
from xmcbench.trial.record import Part, Record
from xmcbench.trial.run import held_out_rows
from xmcbench.trial.store import MODEL, PREDICTIONS, Store
from xmcbench_plugins.scoring.imported import Origin

METHOD = "fused"  # no plugin has this name


def fuse_trials(
    store: Store, records: Sequence[Record], dataset: Dataset, rule: RuleName, metric: str = "nDCG@5"
) -> tuple[Predictions, Origin, Fusion]:
    """Fuse the predictions of `records` for the test queries of `dataset`; also how they came about, and the rule.

    `weighted` and `tree` load the trials' models and ask them for the training queries that all of them held out
    (`selection` in their suites). Raises XMCBenchError where the trials have nothing in common to fuse or to fit on.
    """
    _check_parts(records)
    rows = np.empty(0, np.int64) if rule == "reciprocal-ranks" else _held_out_by_all(records, dataset)
    parts = [stored_predictions(store, record, dataset) for record in records]
    train, card, (num_queries, num_labels) = dataset.training_data(), dataset.card, dataset.test.targets.shape
    weights_L = inverse_propensity(train.targets, card.propensity_a, card.propensity_b)
    held_out, answers = train.rows(rows), []
    for record in records if len(rows) else ():
        found = load_saved_model(store, record).predict(held_out.texts, min(STORED, num_labels))
        check_predictions(found, *held_out.targets.shape)
        answers.append(drop_ignored(found, held_out.ignore, found.k))
    fusion = fit_fusion(rule, answers, held_out.targets, weights_L, metric)
    predictions = fusion.fuse(parts, min(STORED, num_labels))
    check_predictions(predictions, num_queries, num_labels, dataset.ignore_test)
    settings: dict[str, Any] = {"rule": rule, "parts": [record.key for record in records]}
    if isinstance(fusion, Weighted):
        settings |= {"metric": metric, "weights": fusion.weights_P.tolist()}
    fitted_on = Choice(by=ChosenBy.HELD_OUT, queries=len(rows)) if len(rows) else Choice()
    fused = [
        Part(
            key=record.key,
            name=f"{record.trial.label}, seed {record.trial.seed}",
            predictions=store.digest(record, PREDICTIONS),
        )
        for record in records
    ]
    return predictions, Origin(METHOD, settings, fitted_on, parts=tuple(fused)), fusion


def keep_model(store: Store, record: Record, fusion: Fusion, num_labels: int) -> Record:
    """Save the rule of a fused record as its model, which asks the models of its parts; the record that names it."""
    model = FusedModel(())
    model.fusion, model.num_labels = fusion, num_labels
    folder = saved_model(record, store)
    save_model(model, folder)
    kept = record.model_copy(update={"digests": {**record.digests, MODEL: model_digest(folder)}})
    store.write_record(kept)
    return kept


def _check_parts(records: Sequence[Record]) -> None:
    first = records[0].trial
    if len({record.key for record in records}) < max(2, len(records)):
        raise XMCBenchError(f"fuse: found {len(records)} runs, expected two or more different ones")
    for other in (record.trial for record in records):
        if other.dataset_hash != first.dataset_hash:
            names = f"{first.dataset} ({first.dataset_hash[:12]}), {other.dataset} ({other.dataset_hash[:12]})"
            raise XMCBenchError(f"fuse: {first.label} and {other.label} ran on different datasets: {names}")


def _held_out_by_all(records: Sequence[Record], dataset: Dataset) -> np.ndarray:
    """The training queries that no trial was trained on, ascending."""
    total, rows = len(dataset.train.texts), []
    for record in records:
        trial = record.trial
        if isinstance(trial.budget, UnknownBudget):
            raise XMCBenchError(f"fuse: {trial.label} has no model to ask about held-out queries: use reciprocal-ranks")
        if trial.selection is None or not trial.unseen_queries:
            raise XMCBenchError(
                f"fuse: {trial.label} was trained on all training queries: run it with `selection` and without its "
                "`refit`, or use reciprocal-ranks"
            )
        rows.append(held_out_rows(trial.selection, trial.seed, total)[0])
    common: np.ndarray = reduce(np.intersect1d, rows)
    if not len(common):
        raise XMCBenchError("fuse: the runs held out no training query in common: use runs of one seed and selection")
    return common
