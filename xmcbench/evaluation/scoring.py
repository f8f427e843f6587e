"""Predictions to metrics with their intervals: what a trial, `rescore`, `score` and `submit` all compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from xmcbench.data.dataset import Dataset
from xmcbench.data.pairs import binary
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.bootstrap import intervals, resample
from xmcbench.evaluation.entry_check import check_predictions
from xmcbench.evaluation.evaluator import Evaluator, dataset_hits, metric_terms, score
from xmcbench.evaluation.metrics import Hits
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.record import Record
from xmcbench.trial.store import Store


@dataclass(frozen=True)
class Scores:
    """Metrics by name as fractions, and their replicates on resamples of the test queries, float32 [B] each."""

    metrics: dict[str, float]
    resampled: dict[str, np.ndarray]

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """The 95 % interval of each metric that has replicates."""
        return intervals(self.resampled)


def score_predictions(
    predictions: Predictions, dataset: Dataset, metrics: Sequence[str], evaluators: Mapping[str, Evaluator]
) -> Scores:
    """The scores of checked `predictions` for the dataset's test split."""
    hits = dataset_hits(predictions, dataset)
    return Scores(score(hits, metrics, evaluators), resampled_metrics(hits, metrics, evaluators))


def resampled_metrics(hits: Hits, metrics: Sequence[str], evaluators: Mapping[str, Evaluator]) -> dict[str, np.ndarray]:
    """The replicates of `metrics`, float32 [B] each. Metrics whose evaluator has no `terms` are left out."""
    return resample(metric_terms(hits, metrics, evaluators))


def truth_hash(dataset: Dataset) -> str:
    """SHA-256 of the test targets and the ignored test pairs, as sets: entry order and integer width do not matter."""
    digest = sha256()
    for matrix in (dataset.test.targets, dataset.ignore_test):
        pairs = binary(matrix)
        for part in (pairs.shape, pairs.indptr, pairs.indices):
            digest.update(np.asarray(part, dtype="<i8").tobytes())
    return digest.hexdigest()


def stored_predictions(store: Store, record: Record, dataset: Dataset) -> Predictions:
    """The predictions of a trial, valid for `dataset`.

    Raises `XMCBenchError` if the trial ran on other data, or if the predictions are damaged or were scored against
    other test targets.
    """
    name, content_hash = dataset.card.name, dataset.card.content_hash
    if content_hash != record.trial.dataset_hash:
        raise XMCBenchError(
            f"dataset {name!r} has the content hash {content_hash[:12]}, the trial ran on "
            f"{record.trial.dataset_hash[:12]}"
        )
    predictions, stored_hash = store.predictions(record, dataset.test.targets.shape[0])
    if stored_hash != (expected := truth_hash(dataset)):
        raise XMCBenchError(
            f"its predictions answer to the truth {stored_hash[:12]}, dataset {name!r} has {expected[:12]}"
        )
    check_predictions(predictions, *dataset.test.targets.shape, dataset.ignore_test)
    return predictions
