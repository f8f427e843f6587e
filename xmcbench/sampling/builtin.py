"""The samplers that need no clustering: in-batch, nearest-neighbour hard negatives, the whole label set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xmcbench.data.dataset import TrainingData
from xmcbench.hookspecs import hookimpl
from xmcbench.sampling.sampler import Embeddings, Sampler, gather_rows


class InBatch(Sampler):
    """The pool is the union of `positives_per_query` sampled positives of each query (DPR)."""

    name = "in-batch"

    def __init__(self, train: TrainingData, *, batch_size: int, seed: int, positives_per_query: int = 1) -> None:
        super().__init__(train, batch_size=batch_size, seed=seed)
        self.positives_per_query = positives_per_query

    def drawn_positives(self, query_ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Label ids: up to `positives_per_query` of each query's, uniformly, without replacement."""
        columns, counts = gather_rows(self.targets, query_ids)
        rows = np.repeat(np.arange(len(query_ids)), counts)
        # A random key within each row; the first few in key order are the sample.
        by_key = np.lexsort((rng.random(len(columns)), rows))
        rank_in_row = np.arange(len(columns)) - np.repeat(np.cumsum(counts) - counts, counts)
        drawn: np.ndarray = columns[by_key][rank_in_row < self.positives_per_query]
        return drawn

    def pool(self, query_ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return np.unique(self.drawn_positives(query_ids, rng))


class HardNegatives(InBatch):
    """In-batch, plus `negatives_per_query` of each query's nearest labels that are not true (ANCE; DEXML Section 5.4).

    The shortlist holds the `shortlist` nearest labels under the model as it was at the last refresh. Before epoch
    `start` there is none and the pool is in-batch.
    """

    name = "hard"

    def __init__(
        self,
        train: TrainingData,
        *,
        batch_size: int,
        seed: int,
        positives_per_query: int = 1,
        negatives_per_query: int = 1,
        shortlist: int = 100,
        start: int = 5,
        every: int = 5,
    ) -> None:
        super().__init__(train, batch_size=batch_size, seed=seed, positives_per_query=positives_per_query)
        self.negatives_per_query = negatives_per_query
        self.shortlist = shortlist
        self.start = start
        self.every = every
        self.nearest_NK: np.ndarray | None = None  # int32 label ids, -1 where a query has fewer

    def pool(self, query_ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        drawn = self.drawn_positives(query_ids, rng)
        if self.nearest_NK is None:
            return np.unique(drawn)
        nearest_BK = self.nearest_NK[query_ids]
        # Keys below 1 for real entries, above for padding: the smallest are a sample without replacement.
        keys_BK = rng.random(nearest_BK.shape) + (nearest_BK < 0)
        width = min(self.negatives_per_query, nearest_BK.shape[1])
        chosen_BW = np.argpartition(keys_BK, width - 1, axis=1)[:, :width]
        negatives = np.take_along_axis(nearest_BK, chosen_BW, axis=1).ravel()
        return np.unique(np.concatenate((drawn, negatives[negatives >= 0])))

    def refresh(self, epoch: int, embeddings: Embeddings) -> None:
        if epoch < self.start or (epoch - self.start) % self.every:
            return
        known = (self.targets + self.ignore).tocsr()
        self.nearest_NK = embeddings.nearest(min(self.shortlist, self.num_labels), known)

    def state(self) -> dict[str, Tensor]:
        return {} if self.nearest_NK is None else {"nearest": torch.from_numpy(self.nearest_NK)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.nearest_NK = state["nearest"].numpy() if "nearest" in state else None


class AllLabels(Sampler):
    """The pool is every label of the dataset (DEXML's full loss)."""

    name = "all"

    def pool(self, query_ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:  # noqa: ARG002
        return np.arange(self.num_labels)


@hookimpl
def register_samplers(register: Callable[[type[Any]], None]) -> None:
    for sampler in (InBatch, HardNegatives, AllLabels):
        register(sampler)
