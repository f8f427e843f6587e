"""Predictions that no trial made: checked, scored, and kept as records of unknown budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from xmcbench.data.dataset import Dataset
from xmcbench.evaluation.entries import Expected, Ranked
from xmcbench.evaluation.evaluator import (
    Evaluator,
    Scores,
    find_evaluators,
    lower_is_better,
    score_predictions,
    truth_hash,
)
from xmcbench.evaluation.prediction_files import read_entries
from xmcbench.evaluation.ranking import drop_ignored
from xmcbench.reporting.describe import metric_rows
from xmcbench.reporting.text_table import TextTable
from xmcbench.trial.budget import UnknownBudget
from xmcbench.trial.facts import Choice, ChosenBy
from xmcbench.trial.predictions import STORED, Predictions
from xmcbench.trial.provenance import evaluator_digests, provenance
from xmcbench.trial.record import METRIC_VERSION, Part, Record, Status
from xmcbench.trial.store import PREDICTIONS, RESAMPLED, Store
from xmcbench.trial.trial import Trial
from xmcbench_plugins.scoring.doubts import Doubt, find_doubts
from xmcbench_plugins.scoring.prediction_values import entries_of


@dataclass(frozen=True)
class Origin:
    """Where predictions come from."""

    method: str  # no plugin has this name
    settings: Mapping[str, Any] = field(default_factory=dict)  # in the record, and in the key
    chosen_by: Choice = field(default_factory=lambda: Choice(by=ChosenBy.UNKNOWN))  # what chose the settings
    file: str = ""  # name of the file that held the predictions
    parts: tuple[Part, ...] = ()  # the trials whose predictions were fused


def write_unbudgeted(
    store: Store,
    dataset: Dataset,
    label: str,
    origin: Origin,
    predictions: Predictions,
    scores: Scores,
) -> Record:
    """Keep checked `predictions` for the test queries under `label`, and the record of them.

    The same predictions of the same origin have the same key.
    """
    card = dataset.card
    digest = sha256(np.ascontiguousarray(predictions.indices, "<i4").tobytes())
    digest.update(np.ascontiguousarray(predictions.scores, "<f4").tobytes())
    trial = Trial(
        label=label,
        method=origin.method,
        distribution="none",
        version="0",
        config={**origin.settings, "predictions": digest.hexdigest()},
        dataset=card.name,
        dataset_hash=card.content_hash,
        seed=0,
        budget=UnknownBudget(),
    )
    truth, now = truth_hash(dataset), datetime.now(UTC).isoformat(timespec="seconds")
    record = Record(
        key=trial.key,
        suite=origin.method,
        trial=trial,
        status=Status.OK,
        metrics=scores.metrics,
        intervals=scores.intervals,
        metric_version=METRIC_VERSION,
        evaluators=evaluator_digests(name.partition("@")[0] for name in scores.metrics),
        lower_is_better=lower_is_better(find_evaluators(scores.metrics)),
        parts=origin.parts,
        selection_split=origin.chosen_by,
        digests={
            PREDICTIONS: store.write_predictions(trial.key, predictions, truth),
            RESAMPLED: store.write_resampled(trial.key, scores.resampled, truth),
        },
        truth_hash=truth,
        provenance={**provenance(), **({"predictions": origin.file} if origin.file else {})},
        started=now,
        ended=now,
    )
    store.write_record(record)
    return record


METHOD = "imported"  # no plugin has this name: the predictions came from elsewhere


@dataclass(frozen=True)
class Imported:
    """Predictions from elsewhere, with their scores on a dataset and doubts about them."""

    predictions: Predictions
    scores: Scores
    doubts: tuple[Doubt, ...]


def import_predictions(
    given: Any, dataset: Dataset, metrics: Sequence[str], evaluators: Mapping[str, Evaluator]
) -> Imported:
    """Read, check and score predictions for the test queries of `dataset`, in their order.

    `given` is the path of a file, or what `entries_of` takes: a matrix, a data frame, lists or dictionaries.
    """
    num_queries, num_labels = dataset.test.targets.shape
    if isinstance(given, Path | str):
        entries = read_entries(Path(given), num_queries, num_labels)
    else:
        entries = entries_of(given, Expected("predictions", num_queries, num_labels))
    most_ignored = int(np.diff(dataset.ignore_test.indptr).max(initial=0))
    ranked = entries.ranked(min(num_labels, STORED + most_ignored))
    predictions = drop_ignored(ranked.predictions(), dataset.ignore_test, min(STORED, num_labels))
    scores = score_predictions(predictions, dataset, metrics, evaluators)
    return Imported(predictions, scores, tuple(find_doubts(ranked, predictions, dataset)))


def score_checked(
    predictions: Predictions, dataset: Dataset, metrics: Sequence[str], evaluators: Mapping[str, Evaluator]
) -> Imported:
    """The scores of `predictions` that `check_predictions` let pass, and doubts about them."""
    scores = score_predictions(predictions, dataset, metrics, evaluators)
    exact, stored_as = predictions.scores.astype(np.float64), str(predictions.scores.dtype)
    ranked = Ranked(predictions.indices, exact, ordered=True, stored_as=stored_as)
    return Imported(predictions, scores, tuple(find_doubts(ranked, predictions, dataset)))


def scores_table(scores: Scores) -> TextTable:
    """A line per metric, in per cent, with its 95 % interval over test queries where it has one."""
    rows = metric_rows(scores.metrics, scores.intervals, digits=4)
    return TextTable("", ("metric", "per cent", "95 % interval"), rows)
