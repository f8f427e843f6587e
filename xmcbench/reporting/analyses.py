"""Analyses of stored predictions. Each dataset is read and its labels are binned once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from xmcbench.data import Dataset, load
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.analysis import Analysis, analyse, partitions
from xmcbench.evaluation.stored import stored_predictions
from xmcbench.trial.record import Record
from xmcbench.trial.store import Store


def analyses(
    store: Store, records: Iterable[Record], data: Path, k: int = 5, on_problem: Callable[[str], None] = lambda _: None
) -> dict[str, Analysis]:
    """The analysis of each record with available predictions and dataset, by key. Problems go to `on_problem`.

    Trials whose predictions are not in the store, as of large submissions, are one problem together.
    """
    by_dataset: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record.metrics:
            by_dataset[record.trial.dataset].append(record)
    analyses: dict[str, Analysis] = {}
    for name, some in by_dataset.items():
        try:
            dataset = load(name, data)
        except XMCBenchError as problem:
            on_problem(str(problem))
            continue
        bins = partitions(dataset)
        there = [record for record in some if store.has_predictions(record.key)]
        if missing := len(some) - len(there):
            on_problem(f"{name}: no analysis of {missing} trials, whose predictions are not in {store.root}")
        for record in there:
            try:
                analyses[record.key] = analyse(stored_predictions(store, record, dataset), dataset, bins, k)
            except XMCBenchError as problem:
                on_problem(f"{record.key} {record.trial.label}: {problem}")
    return analyses


def analyse_together(
    store: Store, records: Iterable[Record], dataset: Dataset, k: int = 5, similarity: np.ndarray | None = None
) -> dict[str, Analysis]:
    """The analyses of trials on one dataset, by name. Raises `XMCBenchError` where predictions are missing."""
    bins, named = partitions(dataset, similarity), names(records)
    return {
        name: analyse(stored_predictions(store, record, dataset), dataset, bins, k) for name, record in named.items()
    }


def names(records: Iterable[Record]) -> dict[str, Record]:
    """Each record by its label; where labels repeat, by label and seed; where these repeat, by label and key."""
    named = {record.key: record for record in records}
    forms: tuple[Callable[[Record], str], ...] = (
        lambda record: record.trial.label,
        lambda record: f"{record.trial.label} seed {record.trial.seed}",
        lambda record: f"{record.trial.label} {record.key}",
    )
    for form in forms:
        by_name = {form(record): record for record in named.values()}
        if len(by_name) == len(named):
            break
    return by_name
