"""A batch of training: queries, the labels they are scored against, and the true pairs among them; and the training
queries that a sampler and its parts draw from.

Legend: B queries of a batch, S labels of its pool, P true pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy

from xmcbench.data.dataset import TrainingData
from xmcbench.errors import XMCBenchError
from xmcbench.trial.run import derive_seed

if TYPE_CHECKING:
    from xmcbench.engine.losses.positives import Positives


@dataclass(frozen=True)
class Batch:
    """The ids of B queries and S labels of the pool (numpy, int; labels ascending, each once), and the true pairs."""

    query_ids: np.ndarray
    label_ids: np.ndarray
    positives: Positives

    @classmethod
    def of(
        cls,
        query_ids: np.ndarray,
        label_ids: np.ndarray,
        rows_P: np.ndarray,
        columns_P: np.ndarray,
        chosen: Mapping[str, np.ndarray],
    ) -> Batch:
        """A batch whose pairs are numpy arrays of any integer type; the weights of `Positives.chosen` of any type."""
        import torch

        from xmcbench.engine.losses.positives import Positives

        rows, columns = (torch.from_numpy(ids.astype(np.int64)) for ids in (rows_P, columns_P))
        weights = {which: torch.from_numpy(weights_P.astype(np.float32)) for which, weights_P in chosen.items()}
        return cls(query_ids, label_ids, Positives(rows, columns, len(query_ids), len(label_ids), weights))


class TrainingQueries:
    """Training data, the ids of the queries that have a label, and seeded random generators.

    Raises XMCBenchError if no query has a label.
    """

    def __init__(self, train: TrainingData, seed: int) -> None:
        self.train = train
        self.num_labels = train.num_labels
        self.seed = seed
        self.query_ids = np.flatnonzero(np.diff(train.targets.indptr))
        if not len(self.query_ids):
            raise XMCBenchError(f"{train.card.name}: no training query has a label, expected at least one")

    def rng(self, *purpose: str | int) -> np.random.Generator:
        """A random generator for one purpose: a function of the seed."""
        return np.random.default_rng(derive_seed(self.seed, *purpose))

    def true_pairs(self, query_ids: np.ndarray, label_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rows [P] and columns [P] of all true pairs of these queries and labels. `label_ids` must be sorted."""
        labels, counts = gather_rows(self.train.targets, query_ids)
        rows = np.repeat(np.arange(len(query_ids)), counts)
        columns = np.minimum(np.searchsorted(label_ids, labels), len(label_ids) - 1)
        inside = label_ids[columns] == labels
        return rows[inside], columns[inside]

    def with_pool(self, batch: Batch, label_ids: np.ndarray) -> Batch:
        """The batch with the larger pool `label_ids`, a superset of its own. The chosen pairs stay the same."""
        rows, columns = self.true_pairs(batch.query_ids, label_ids)
        # Both batches have their pairs in one order, in which those of the labels of before are the pairs of before.
        before_P = np.isin(label_ids, batch.label_ids, assume_unique=True)[columns]
        chosen = {which: np.zeros(len(rows)) for which in batch.positives.chosen}
        for which, weights_P in chosen.items():
            weights_P[before_P] = batch.positives.chosen[which].numpy()
        return Batch.of(batch.query_ids, label_ids, rows, columns, chosen)


def gather_rows(matrix: scipy.sparse.csr_array, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The column ids of the given rows, row by row, and their number per row."""
    counts = matrix.indptr[rows + 1] - matrix.indptr[rows]
    starts = np.repeat(matrix.indptr[rows] - np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
    return matrix.indices[starts + np.arange(counts.sum())], counts
