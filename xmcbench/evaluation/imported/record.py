"""Predictions of another program as a scored result, and as a record of unknown budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from xmcbench.data.dataset import Dataset
from xmcbench.data.pairs import binary, contains
from xmcbench.evaluation.entry_check import check_predictions, drop_ignored
from xmcbench.evaluation.evaluator import Evaluator
from xmcbench.evaluation.imported.files import read_entries
from xmcbench.evaluation.scoring import Scores, score_predictions
from xmcbench.evaluation.unbudgeted import Origin, write_unbudgeted
from xmcbench.trial.predictions import STORED, Predictions
from xmcbench.trial.record import Record
from xmcbench.trial.store import Store

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
        origin = Origin(METHOD, file=self.path.name)
        return write_unbudgeted(store, dataset, label, origin, self.predictions, self.scores, command)


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


DEPTH = 5  # labels per query that are looked at


def find_warnings(ranked: Predictions, kept: Predictions, dataset: Dataset) -> Iterator[str]:
    """Doubts about predictions: `ranked` as they were read, `kept` without the pairs that the dataset filters."""
    total, num_labels = kept.indices.shape[0], dataset.test.targets.shape[1]
    if dropped := int((ranked.indices >= 0).sum() - (kept.indices >= 0).sum()):
        yield (
            f"{dropped:,} predicted pairs are filtered by the dataset (reciprocal pairs); they were dropped. A program "
            "that scores with them reports lower metrics"
        )
    depth = min(DEPTH, num_labels)
    if short := int((kept.indices[:, :depth] < 0).any(axis=1).sum()):
        yield f"{short:,} of {total:,} queries have fewer than {depth} labels; a missing label counts as a wrong one"
    if kept.k > depth:
        tied = (kept.scores[:, depth - 1] == kept.scores[:, depth]) & (kept.indices[:, depth] >= 0)
        if tied.any():
            yield (
                f"{int(tied.sum()):,} of {total:,} queries have equal scores at ranks {depth} and {depth + 1}; "
                "ties rank by ascending label here, other programs may order them otherwise"
            )
    hits, shifted = (_hits(rows, dataset) for rows in (kept.indices[:, :1], np.roll(kept.indices[:, :1], 1, axis=0)))
    if total > 1 and hits <= shifted:
        yield (
            f"{hits:,} queries have a true label first, and {shifted:,} if every row is moved by one: the rows may not "
            "be in the order of the dataset's test queries"
        )


def _hits(indices: np.ndarray, dataset: Dataset) -> int:
    """True pairs among the labels `indices` [T, k]."""
    return int(contains(binary(dataset.test.targets), indices).sum())
