"""The parts of MACLR's sampler: clusters that get smaller, and random labels as negatives. Its import costs torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from xmcbench import sampling

LEVELS = 5  # of clusters


class FinerClusters(sampling.Clusters):
    """Documents in random order; their clusters halve in size at each fifth of the share `clustered` of training.

    From then on each document is by itself. `spent` gives the share of training that is over.
    """

    def __init__(self, size: int, every: int, clustered: float, spent: Callable[[], float]) -> None:
        super().__init__(size=size, start=0, every=every, vectors="fresh")
        self.clustered, self.spent, self.level = clustered, spent, 0

    def num_clusters(self, epoch: int) -> int:  # noqa: ARG002
        """The smallest power of two that keeps clusters within the size of this level."""
        return 1 << ((len(self.sampler.query_ids) - 1) // max(1, self.size >> self.level)).bit_length()

    def arrange(self, epoch: int) -> np.ndarray:
        return self.sampler.rng("order", epoch).permutation(self.sampler.query_ids)

    def refresh(self, epoch: int, embeddings: sampling.Embeddings) -> None:
        self.level = int(LEVELS * self.spent() / self.clustered)  # all workers ask together
        if self.level < LEVELS:
            super().refresh(epoch, embeddings)
        else:
            self.clusters_Q = np.arange(len(self.sampler.query_ids))


class RandomLabels(sampling.Negatives):
    """Labels of the dataset, whose ids begin at `first`, drawn uniformly: `per_query` for each query of a batch."""

    def __init__(self, first: int, per_query: float) -> None:
        self.first, self.per_query = first, per_query

    def labels(self, query_ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        total = self.sampler.num_labels - self.first
        return self.first + rng.choice(total, min(total, round(self.per_query * len(query_ids))), replace=False)
