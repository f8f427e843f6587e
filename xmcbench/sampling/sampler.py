"""What a sampler is: a random-access plan of batches, a pure function of (seed, epoch, index).

Random access is what makes a resumed run equal an unbroken one: nothing but the shortlists has to be stored.
Legend: B queries of a batch, S labels of its pool, N training queries, L labels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from xmcbench.data.dataset import TrainingData
from xmcbench.errors import XMCBenchError
from xmcbench.losses.positives import Positives
from xmcbench.method import derive_seed
from xmcbench.search.exact import top_k
from xmcbench.workers import ALONE, Workers


@dataclass(frozen=True)
class Batch:
    """`query_ids` [B] and `label_ids` [S] (sorted, each once), and which of the B x S pairs are true."""

    query_ids: np.ndarray
    label_ids: np.ndarray
    positives: Positives


@dataclass(frozen=True)
class Embeddings:
    """The current vectors of training queries [N, D] and labels [L, D], computed when asked for.

    Computing them is charged to the budget, and shared by the workers, each of which gets them all.
    """

    queries: Callable[[], Tensor]
    labels: Callable[[], Tensor]
    workers: Workers = ALONE

    def nearest(self, k: int, exclude: sp.csr_array) -> np.ndarray:
        """[N, k] each query's nearest labels without the pairs `exclude` [N, L]; -1 where there are fewer."""
        queries_ND, labels_LD = self.queries(), self.labels()
        size, rank, total = self.workers.size, self.workers.rank, queries_ND.shape[0]
        mine = slice(total * rank // size, total * (rank + 1) // size)
        found = top_k(queries_ND[mine], labels_LD, k, exclude=exclude[mine])
        return self.workers.gather(torch.from_numpy(found.indices).to(labels_LD.device)).cpu().numpy()


def gather_rows(matrix: sp.csr_array, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Column ids of the given rows, one row after another, and how many each row has."""
    counts = matrix.indptr[rows + 1] - matrix.indptr[rows]
    starts = np.repeat(matrix.indptr[rows] - np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
    return matrix.indices[starts + np.arange(counts.sum())], counts


class Sampler(ABC):
    """Yields batches of training queries with their label pools; queries without a label are never drawn."""

    name: ClassVar[str]

    def __init__(self, train: TrainingData, *, batch_size: int, seed: int) -> None:
        self.targets = train.targets
        self.ignore = train.ignore
        self.num_labels = train.num_labels
        self.batch_size = batch_size
        self.seed = seed
        self.query_ids = np.flatnonzero(np.diff(train.targets.indptr))
        if not len(self.query_ids):
            raise XMCBenchError(f"{train.card.name}: no training query has a label, expected some to learn from")
        self._order: tuple[int, np.ndarray] = (-1, self.query_ids)

    def rng(self, *purpose: str | int) -> np.random.Generator:
        return np.random.default_rng(derive_seed(self.seed, self.name, *purpose))

    def num_batches(self, epoch: int) -> int:  # noqa: ARG002 (a curriculum may depend on it)
        return -(-len(self.query_ids) // self.batch_size)

    def order(self, epoch: int) -> np.ndarray:
        """The training queries in the order this epoch visits them."""
        if self._order[0] != epoch:
            self._order = (epoch, self.rng("order", epoch).permutation(self.query_ids))
        return self._order[1]

    def batch(self, epoch: int, index: int) -> Batch:
        """The batch at `index` of `epoch`."""
        rng = self.rng("batch", epoch, index)
        query_ids = self.order(epoch)[index * self.batch_size : (index + 1) * self.batch_size]
        label_ids = self.pool(query_ids, rng)
        return Batch(query_ids, label_ids, self.positives(query_ids, label_ids, rng))

    @abstractmethod
    def pool(self, query_ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """[S] the labels these queries are scored against: sorted, each once."""

    def positives(self, query_ids: np.ndarray, label_ids: np.ndarray, rng: np.random.Generator) -> Positives:
        """Every pair of the pool that is true, wherever the label came from, the last label of the pool included."""
        columns, counts = gather_rows(self.targets, query_ids)
        rows = np.repeat(np.arange(len(query_ids)), counts)
        places = np.minimum(np.searchsorted(label_ids, columns), len(label_ids) - 1)
        inside = label_ids[places] == columns
        rows, places = rows[inside], places[inside]
        counts = np.bincount(rows, minlength=len(query_ids))
        starts = np.cumsum(counts) - counts
        drawn = starts + (rng.random(len(query_ids)) * counts).astype(np.int64)
        sampled = np.where(counts > 0, drawn, -1)
        return Positives(
            torch.from_numpy(rows.astype(np.int64)),
            torch.from_numpy(places.astype(np.int64)),
            torch.from_numpy(sampled.astype(np.int64)),
            len(label_ids),
        )

    def refresh(self, epoch: int, embeddings: Embeddings) -> None:  # noqa: B027 (most samplers do not follow the model)
        """Called before each epoch: a sampler that follows the model looks at its embeddings here."""

    def state(self) -> dict[str, Tensor]:
        """What `refresh` made and a resumed run cannot make again."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:  # noqa: B027
        """Take back what `state` gave."""
