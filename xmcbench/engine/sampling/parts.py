"""The parts of a sampler: the order of the queries, the draw of their positives, the sources of negatives.

Legend: B queries of a batch, K labels of a shortlist, N training queries, L labels, P true pairs, D dimensions.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Literal

import numpy as np

from xmcbench.engine.sampling.batch import TrainingQueries, gather_rows
from xmcbench.evaluation.metrics import inverse_propensity

if TYPE_CHECKING:
    from torch import Tensor

    from xmcbench.engine.sampling.batch import Batch
    from xmcbench.engine.sampling.embeddings import Embeddings


class Part:
    """Base of all parts. A part belongs to one sampler; it may use the model's embeddings; by default it does not."""

    sampler: TrainingQueries

    @property
    def observes(self) -> bool:
        """Whether `observe` is called after each step."""
        return False

    def attach(self, sampler: TrainingQueries) -> None:
        """Called once, when the sampler is made. Raises ValueError if the part already belongs to a sampler."""
        if hasattr(self, "sampler"):
            raise ValueError(f"this {type(self).__name__} already belongs to a sampler: make another one")
        self.sampler = sampler

    def refresh_bytes(self, num_queries: int, num_labels: int, dimension: int) -> float:  # noqa: ARG002
        """Peak memory of a refresh that looks at embeddings, with these embeddings (float32) but without the state."""
        return 0.0

    def refresh(self, epoch: int, embeddings: Embeddings) -> None:
        """Called before each epoch, with access to the embeddings of all queries and labels."""

    def observe(self, batch: Batch, queries_BD: Tensor, labels_SD: Tensor) -> None:
        """Called after each step, with the detached vectors [B, D] and [S, D] of its queries and labels."""

    def state(self) -> dict[str, Tensor]:
        """The state that depends on embeddings, which a resumed run cannot recompute."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""


class Order(Part):
    """The order in which an epoch visits the queries; consecutive queries form a batch."""

    @abstractmethod
    def arrange(self, epoch: int) -> np.ndarray:
        """The `query_ids` [N] in the order of this epoch: a function of seed, epoch and the last `refresh`."""


class Shuffled(Order):
    """A new random order each epoch."""

    def arrange(self, epoch: int) -> np.ndarray:
        return self.sampler.rng("order", epoch).permutation(self.sampler.query_ids)


class Draw(Part):
    """Up to `count` true labels of each query (None: all), without replacement.

    They are drawn uniformly, or one after another with probability proportional to inverse propensity among the query's
    remaining labels (PRIME), so that rare labels are drawn more often.
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

    def pairs(self, query_ids: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """The drawn pairs, query by query: places in `query_ids` and labels (numpy, int, [P] each)."""
        labels, counts = gather_rows(self.sampler.train.targets, query_ids)
        rows = np.repeat(np.arange(len(query_ids)), counts)
        if self.count is None:
            return rows, labels
        # The smallest of exponential waiting times with the weights as rates are a weighted draw without replacement.
        waits_P = rng.exponential(size=len(labels))
        if self.weights_L is not None:
            waits_P /= self.weights_L[labels]
        by_wait = np.lexsort((waits_P, rows))
        place_in_row = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
        drawn = by_wait[place_in_row < self.count]
        return rows[drawn], labels[drawn]


class Negatives(Part):
    """A source of labels for the pool besides the drawn positives."""

    @property
    def extends_pool(self) -> bool:
        """Whether `extend_pool` is called before each loss."""
        return False

    @abstractmethod
    def labels(self, query_ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Labels for the pool (numpy, int, any length), in any order, repeats allowed. All draws come from `rng`."""

    def extend_pool(self, batch: Batch, queries_BD: Tensor, labels_SD: Tensor) -> np.ndarray:  # noqa: ARG002
        """Labels (numpy, int) to add to the pool before the loss is computed, chosen by the batch's vectors (torch)."""
        return np.empty(0, np.int64)


class AllLabels(Negatives):
    """Every label of the dataset (DEXML's full loss)."""

    def labels(self, query_ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:  # noqa: ARG002
        return np.arange(self.sampler.num_labels)


class Nearest(Negatives):
    """`per_query` labels per query, drawn from its nearest labels that are not true (ANCE; DEXML Section 5.4).

    A query's shortlist holds its `shortlist` nearest labels under the model of the last refresh. The shortlists are
    refreshed before epoch `start` and every `every` epochs from then on; before that nothing is added.
    """

    def __init__(self, per_query: int = 1, shortlist: int = 100, start: int = 5, every: int = 5) -> None:
        self.per_query = per_query
        self.shortlist = shortlist
        self.start = start
        self.every = every
        self.nearest_NK: np.ndarray | None = None  # int32 label ids; -1 pads

    def labels(self, query_ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if self.nearest_NK is None:
            return np.empty(0, np.int32)
        nearest_BK = self.nearest_NK[query_ids]
        # Keys are below 1 for labels and above 1 for padding: the smallest keys are a sample without replacement.
        keys_BK = rng.random(nearest_BK.shape) + (nearest_BK < 0)
        width = min(self.per_query, nearest_BK.shape[1])
        chosen_BW = np.argpartition(keys_BK, width - 1, axis=1)[:, :width]
        label_ids = np.take_along_axis(nearest_BK, chosen_BW, axis=1).ravel()
        return label_ids[label_ids >= 0]

    def refresh(self, epoch: int, embeddings: Embeddings) -> None:
        if epoch < self.start or (epoch - self.start) % self.every:
            return
        train = self.sampler.train
        known = (train.targets + train.ignore).tocsr() if train.ignore.nnz else train.targets
        self.nearest_NK = embeddings.nearest(min(self.shortlist, train.num_labels), known)

    def refresh_bytes(self, num_queries: int, num_labels: int, dimension: int) -> float:
        return 4.0 * dimension * (num_queries + 2 * num_labels)  # an index has a copy of the labels

    def state(self) -> dict[str, Tensor]:
        import torch

        return {} if self.nearest_NK is None else {"nearest": torch.from_numpy(self.nearest_NK)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.nearest_NK = state["nearest"].numpy() if "nearest" in state else None
