"""Reads what a store keeps of trials: predictions, checked against their dataset, and metrics on resamples."""

from __future__ import annotations

from collections.abc import Sequence

from xmcbench.data.dataset import Dataset
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.comparison import ComparedMetric, compare_rows
from xmcbench.evaluation.entry_check import check_predictions
from xmcbench.evaluation.scoring import truth_hash
from xmcbench.evaluation.significance import Sample, samples
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.record import Record
from xmcbench.trial.store import Store


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


def stored_samples(store: Store, records: Sequence[Record], metrics: Sequence[str]) -> dict[str, Sample]:
    """By metric: what trials that differ in their seed alone come to. Metrics without replicates are left out."""
    found = samples(records, [store.resampled(record, metrics) for record in records])
    return {name: sample for name, sample in found.items() if name in metrics}


def compare_stored(
    store: Store, first: Sequence[Record], second: Sequence[Record], metrics: Sequence[str]
) -> tuple[ComparedMetric, ...]:
    """Compare two configurations, one record for each seed, without their predictions and the dataset."""
    return compare_rows(stored_samples(store, first, metrics), stored_samples(store, second, metrics))
