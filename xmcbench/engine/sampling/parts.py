"""The parts of a sampler: what puts queries in order, draws their positives, and brings negatives.

Legend: B queries of a batch, K labels of a shortlist, N training queries, L labels, P true pairs, D dimensions.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from xmcbench.engine.sampling.batch import Batch
from xmcbench.engine.sampling.embeddings import Embeddings
from xmcbench.engine.sampling.training_queries import TrainingQueries, gather_rows
from xmcbench.evaluation.propensity import inverse_propensity


class Part:
    """What parts have in common: they know their one sampler, and may follow the model. By default they do not."""

    sampler: TrainingQueries

    @property
    def watches(self) -> bool:
        """Whether `observe` is to be called."""
        return False

    def attach(self, sampler: TrainingQueries) -> None:
        """Called once, when the sampler is made. Raises ValueError where the part serves another already."""
        if hasattr(self, "sampler"):
            raise ValueError(f"this {type(self).__name__} is part of a sampler already: make another")
        self.sampler = sampler

    def refresh(self, epoch: int, embeddings: Embeddings) -> None:
        """Called before each epoch, with the embeddings of everything."""

    def observe(self, batch: Batch, queries_BD: Tensor, labels_SD: Tensor) -> None:
        """Called after each step with the vectors that were trained on, detached."""

    def state(self) -> dict[str, Tensor]:
        """What was made of embeddings and a resumed run cannot make again."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` gave."""


class Order(Part):
    """In which order an epoch visits the queries; consecutive ones make a batch."""

    @abstractmethod
    def arrange(self, epoch: int) -> np.ndarray:
        """The sampler's `query_ids`, arranged: a function of seed, epoch and what `refresh` saw."""


class Shuffled(Order):
    """Another random order each epoch."""

    def arrange(self, epoch: int) -> np.ndarray:
        return self.sampler.rng("order", epoch).permutation(self.sampler.query_ids)


class Draw(Part):
    """Up to `count` true labels of each query (None: all), without replacement.

    They are drawn uniformly, or one after another with probability proportional to their inverse propensity among the
    query's that are left (PRIME), so that rare labels come up more often.
    """

    def __init__(self, count: int | None = 1, by: Literal["uniform", "propensity"] = "uniform") -> None:
        self.count = count
        self.by = by
        self.weights_L: np.ndarray | None = None

    def attach(self, sampler: TrainingQueries) -> None:
        super().attach(sampler)
        if self.by == "propensity":
            card = sampler.train.card
            self.weights_L = inverse_propensity(sampler.train.targets, card.propensity_a, card.propensity_b)

    def labels(self, query_ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The labels drawn, of one query after another."""
        labels, counts = gather_rows(self.sampler.train.targets, query_ids)
        if self.count is None:
            return labels
        rows = np.repeat(np.arange(len(query_ids)), counts)
        # The first to come of exponential waiting times, whose rates are the weights, are such a draw.
        waits_P = rng.exponential(size=len(labels))
        if self.weights_L is not None:
            waits_P /= self.weights_L[labels]
        by_wait = np.lexsort((waits_P, rows))
        place_in_row = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
        drawn: np.ndarray = labels[by_wait][place_in_row < self.count]
        return drawn


class Negatives(Part):
    """A source of labels for the pool beside the positives that are drawn."""

    @property
    def adds(self) -> bool:
        """Whether `harder` is to be called."""
        return False

    @abstractmethod
    def labels(self, query_ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Labels for the pool, in any order, repeats allowed. All randomness is that of `rng`."""

    def harder(self, batch: Batch, queries_BD: Tensor, labels_SD: Tensor) -> np.ndarray:  # noqa: ARG002
        """Labels to add to a batch before its loss, from its vectors."""
        return np.empty(0, np.int64)


class Everything(Negatives):
    """Every label of the dataset (DEXML's full loss)."""

    def labels(self, query_ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:  # noqa: ARG002
        return np.arange(self.sampler.num_labels)


class Nearest(Negatives):
    """`per_query` of each query's nearest labels that are not true (ANCE; DEXML Section 5.4).

    The shortlist holds the `shortlist` nearest labels under the model as it was at the last refresh: before epoch
    `start`, and `every` epochs from there. Before the first there is none and nothing is added.
    """

    def __init__(self, per_query: int = 1, shortlist: int = 100, start: int = 5, every: int = 5) -> None:
        self.per_query = per_query
        self.shortlist = shortlist
        self.start = start
        self.every = every
        self.nearest_NK: np.ndarray | None = None  # int32 label ids, -1 where a query has fewer

    def labels(self, query_ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if self.nearest_NK is None:
            return np.empty(0, np.int32)
        nearest_BK = self.nearest_NK[query_ids]
        # Keys below 1 for real entries, above for padding: the smallest are a sample without replacement.
        keys_BK = rng.random(nearest_BK.shape) + (nearest_BK < 0)
        width = min(self.per_query, nearest_BK.shape[1])
        chosen_BW = np.argpartition(keys_BK, width - 1, axis=1)[:, :width]
        found = np.take_along_axis(nearest_BK, chosen_BW, axis=1).ravel()
        return found[found >= 0]

    def refresh(self, epoch: int, embeddings: Embeddings) -> None:
        if epoch < self.start or (epoch - self.start) % self.every:
            return
        train = self.sampler.train
        known = (train.targets + train.ignore).tocsr()
        self.nearest_NK = embeddings.nearest(min(self.shortlist, train.num_labels), known)

    def state(self) -> dict[str, Tensor]:
        return {} if self.nearest_NK is None else {"nearest": torch.from_numpy(self.nearest_NK)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.nearest_NK = state["nearest"].numpy() if "nearest" in state else None
