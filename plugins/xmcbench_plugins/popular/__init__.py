"""The popularity baseline: the same labels for every query, ranked by their number of training queries.

Legend: N training queries, L labels, K predicted labels.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from xmcbench import Method, MethodInfo, Predictions, Run, XMCBenchError, data, evaluation, hookimpl


class Popular(Method):
    """Ranks labels by training frequency and reads no text. A trained method below it has learnt nothing useful."""

    name = "popular"
    info = MethodInfo(summary="the most frequent labels of the training split, the same for every query")
    uses_gpu = False

    @classmethod
    def needs_annotations(cls, config: Method.Config) -> bool:  # noqa: ARG003
        return True

    def fit(self, train: data.TrainingData, run: Run) -> None:
        """Count the training queries of each label; pairs that evaluation ignores are not counted."""
        with run.ledger.stage("train"):
            counted_NL = train.targets - train.targets.multiply(train.ignore)
            self.counts_L = np.asarray(counted_NL.sum(axis=0), np.float32).ravel()
        if not self.counts_L.any():
            raise XMCBenchError(f"{train.card.name}: no label has a training query, expected at least one")

    def predict(self, texts: data.Texts, k: int) -> Predictions:
        """The same K labels for every text; padded with -1 if fewer labels have a training query."""
        labels_L = np.where(self.counts_L > 0, np.arange(len(self.counts_L)), -1)
        scores_L = np.where(self.counts_L > 0, self.counts_L, -np.inf)
        best = evaluation.rank(labels_L[None].astype(np.int32), scores_L[None].astype(np.float32), k)
        return Predictions(*(np.repeat(row_1K, len(texts), axis=0) for row_1K in (best.indices, best.scores)))

    def save(self, directory: Path) -> None:
        np.save(directory / "counts.npy", self.counts_L)

    def load(self, directory: Path) -> None:
        self.counts_L = np.load(directory / "counts.npy", allow_pickle=False)


@hookimpl
def register_methods(register: Callable[[type[Method]], None]) -> None:
    register(Popular)
