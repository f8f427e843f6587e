"""Predictions of another program as a scored result, and as a record of unknown budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import numpy as np

from xmcbench.data.dataset import Dataset
from xmcbench.evaluation.entry_check import check_predictions, drop_ignored
from xmcbench.evaluation.evaluator import Evaluator
from xmcbench.evaluation.imported.files import read_entries
from xmcbench.evaluation.imported.warnings import find_warnings
from xmcbench.evaluation.scoring import Scores, score_predictions, truth_hash
from xmcbench.trial.budget import UnknownBudget
from xmcbench.trial.predictions import STORED, Predictions
from xmcbench.trial.provenance import provenance
from xmcbench.trial.record import METRIC_VERSION, Record, Status
from xmcbench.trial.store import PREDICTIONS, RESAMPLED, Store
from xmcbench.trial.trial import Trial

METHOD = "imported"  # no plugin has this name: the predictions came from elsewhere


@dataclass(frozen=True)
class Imported:
    """Predictions read from a file, with their scores on a dataset and doubts about them."""

    path: Path
    predictions: Predictions
    scores: Scores
    warnings: tuple[str, ...]

    def store(self, store: Store, dataset: Dataset, label: str, command: Sequence[str]) -> Record:
        """Keep the predictions under `label`, and the record of them; the same predictions have the same key."""
        card = dataset.card
        trial = Trial(
            label=label,
            method=METHOD,
            distribution="none",
            version="0",
            config={"predictions": _digest(self.predictions)},
            dataset=card.name,
            dataset_hash=card.content_hash,
            seed=0,
            budget=UnknownBudget(),
        )
        truth, now = truth_hash(dataset), datetime.now(UTC).isoformat(timespec="seconds")
        digests = {
            PREDICTIONS: store.write_predictions(trial.key, self.predictions, truth),
            RESAMPLED: store.write_resampled(trial.key, self.scores.resampled, truth),
        }
        record = Record(
            key=trial.key,
            suite=METHOD,
            trial=trial,
            status=Status.OK,
            metrics=self.scores.metrics,
            intervals=self.scores.intervals,
            metric_version=METRIC_VERSION,
            selection_split="unknown",
            digests=digests,
            truth_hash=truth,
            provenance={**provenance(list(command)), "predictions": self.path.name},
            started=now,
            ended=now,
        )
        store.write_record(record)
        return record


def import_predictions(
    path: Path, dataset: Dataset, metrics: Sequence[str], evaluators: Mapping[str, Evaluator]
) -> Imported:
    """Read, check and score the predictions that `path` holds for the test queries of `dataset`, in their order."""
    num_queries, num_labels = dataset.test.targets.shape
    entries = read_entries(path, num_queries, num_labels)
    most_ignored = int(np.diff(dataset.ignore_test.indptr).max(initial=0))
    ranked = entries.ranked(min(num_labels, STORED + most_ignored))
    predictions = drop_ignored(ranked, dataset.ignore_test, min(STORED, num_labels))
    check_predictions(predictions, num_queries, num_labels, dataset.ignore_test)
    scores = score_predictions(predictions, dataset, metrics, evaluators)
    return Imported(path, predictions, scores, tuple(find_warnings(ranked, predictions, dataset)))


def _digest(predictions: Predictions) -> str:
    """SHA-256 of ranked labels and scores."""
    digest = sha256(np.ascontiguousarray(predictions.indices, "<i4").tobytes())
    digest.update(np.ascontiguousarray(predictions.scores, "<f4").tobytes())
    return digest.hexdigest()
