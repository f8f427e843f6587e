"""The division of labels and batches among workers.

Labels are assigned round-robin, so that pools are spread evenly whatever the order of the label ids. The worker that
holds a label holds its vectors (classifier rows, centroids) and their optimiser state.

Legend: B queries of a batch, S labels of its pool, L labels.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from xmcbench.engine.losses.positives import Positives
from xmcbench.engine.sampling.batch import Batch
from xmcbench.engine.workers import Workers


class Shard:
    """The labels that one of `workers` holds. Groups `groups_L` stay together; by default each label is a group."""

    def __init__(self, num_labels: int, workers: Workers, groups_L: np.ndarray | None = None) -> None:
        self.workers = workers
        self.groups_L = np.arange(num_labels) if groups_L is None else groups_L
        self.owner_L = self.groups_L % workers.size
        self.mine_L = self.owner_L == workers.rank
        self.label_ids = np.flatnonzero(self.mine_L)

    def everyone(self) -> np.ndarray:
        """[L] the labels of worker 0, then those of worker 1, and so on."""
        return np.argsort(self.owner_L, kind="stable")

    def queries(self, count: int) -> slice:
        """The slice of the `count` queries of a batch that this worker embeds."""
        size, rank = self.workers.size, self.workers.rank
        return slice(count * rank // size, count * (rank + 1) // size)

    def share(self, batch: Batch) -> Batch:
        """The batch with all its queries, the labels of its pool that this worker holds, and their true pairs."""
        if self.workers.size == 1:
            return batch
        mine_S, pairs = self.mine_L[batch.label_ids], batch.positives
        column_S, kept_P = torch.from_numpy(np.cumsum(mine_S) - 1), torch.from_numpy(mine_S)[pairs.columns_P]
        rows_P, columns_P = pairs.rows_P[kept_P], column_S[pairs.columns_P[kept_P]]
        chosen = {which: weights_P[kept_P] for which, weights_P in pairs.chosen.items()}
        positives = Positives(
            rows_P, columns_P, pairs.num_queries, int(mine_S.sum()), chosen, self.workers, score=pairs.score
        )
        return replace(batch, label_ids=batch.label_ids[mine_S], positives=positives)
