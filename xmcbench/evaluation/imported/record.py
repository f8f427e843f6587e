"""Predictions of another program as a scored result, and as a record of unknown budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from xmcbench.data.dataset import Dataset
from xmcbench.evaluation.entry_check import check_predictions, drop_ignored
from xmcbench.evaluation.evaluator import Evaluator
from xmcbench.evaluation.imported.files import read_entries
from xmcbench.evaluation.imported.warnings import find_warnings
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
