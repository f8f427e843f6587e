"""Records of predictions that no trial made: their budget is unknown, so they are ranked on their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import numpy as np

from xmcbench.data.dataset import Dataset
from xmcbench.evaluation.scoring import Scores, truth_hash
from xmcbench.trial.budget import UnknownBudget
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.provenance import provenance
from xmcbench.trial.record import METRIC_VERSION, Record, Status
from xmcbench.trial.store import PREDICTIONS, RESAMPLED, Store
from xmcbench.trial.trial import Trial


@dataclass(frozen=True)
class Origin:
    """Where predictions come from."""

    method: str  # no plugin has this name
    settings: Mapping[str, Any] = field(default_factory=dict)  # in the record, and in the key
    selection_split: str = "unknown"  # what the settings were chosen by
    file: str = ""  # name of the file that held the predictions


def write_unbudgeted(
    store: Store,
    dataset: Dataset,
    label: str,
    origin: Origin,
    predictions: Predictions,
    scores: Scores,
    command: Sequence[str],
) -> Record:
    """Keep checked `predictions` for the test queries under `label`, and the record of them.

    The same predictions of the same origin have the same key.
    """
    card = dataset.card
    trial = Trial(
        label=label,
        method=origin.method,
        distribution="none",
        version="0",
        config={**origin.settings, "predictions": _digest(predictions)},
        dataset=card.name,
        dataset_hash=card.content_hash,
        seed=0,
        budget=UnknownBudget(),
    )
    truth, now = truth_hash(dataset), datetime.now(UTC).isoformat(timespec="seconds")
    digests = {
        PREDICTIONS: store.write_predictions(trial.key, predictions, truth),
        RESAMPLED: store.write_resampled(trial.key, scores.resampled, truth),
    }
    record = Record(
        key=trial.key,
        suite=origin.method,
        trial=trial,
        status=Status.OK,
        metrics=scores.metrics,
        intervals=scores.intervals,
        metric_version=METRIC_VERSION,
        selection_split=origin.selection_split,
        digests=digests,
        truth_hash=truth,
        provenance={**provenance(list(command)), **({"predictions": origin.file} if origin.file else {})},
        started=now,
        ended=now,
    )
    store.write_record(record)
    return record


def _digest(predictions: Predictions) -> str:
    """SHA-256 of ranked labels and scores."""
    digest = sha256(np.ascontiguousarray(predictions.indices, "<i4").tobytes())
    digest.update(np.ascontiguousarray(predictions.scores, "<f4").tobytes())
    return digest.hexdigest()
