"""What a store keeps of a finished trial: its predictions, checked against their dataset, and its model."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from xmcbench.data.dataset import Dataset
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation import check_predictions, truth_hash
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.record import Record
from xmcbench.trial.store import Store

if TYPE_CHECKING:
    from xmcbench.trial.method import Method


def kept_predictions(store: Store, record: Record, dataset: Dataset) -> Predictions:
    """The predictions of a trial, fit to be scored against `dataset`.

    Raises `XMCBenchError` where the trial ran on other data, the predictions answer to another truth or are damaged.
    """
    name, found = dataset.card.name, dataset.card.content_hash
    if found != record.trial.dataset_hash:
        raise XMCBenchError(
            f"dataset {name!r} has the content hash {found[:12]}, the trial ran on {record.trial.dataset_hash[:12]}"
        )
    predictions, answered = store.predictions(record.key)
    if answered != (expected := truth_hash(dataset)):
        raise XMCBenchError(
            f"its predictions answer to the truth {answered[:12]}, dataset {name!r} has {expected[:12]}"
        )
    check_predictions(predictions, *dataset.test.targets.shape, dataset.ignore_test)
    return predictions


def kept_model(store: Store, record: Record) -> Method:
    """The trial's method as it was saved. Raises `XMCBenchError` where it cannot be had."""
    from xmcbench.run.attempt import method_of

    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # a bar for weights that are there in a moment
    directory = store.directory(record.key) / "model"
    if not directory.is_dir():
        raise XMCBenchError(f"{directory}: not there, so nothing can be predicted; `xmcbench run` makes it")
    try:
        method = method_of(record.trial)
        method.load(directory)
    except XMCBenchError:
        raise
    except Exception as problem:  # whatever the method's libraries make of a file that is damaged or missing
        reason = " ".join(f"{type(problem).__name__}: {problem}".split())
        raise XMCBenchError(f"{directory}: cannot be loaded: {reason}") from problem
    return method
