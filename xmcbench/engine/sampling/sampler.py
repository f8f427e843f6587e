"""What a sampler is: a random-access plan of batches, a pure function of (seed, epoch, index) and of what it was shown.

It is made of parts: an order of the queries, a draw of positives, and any number of sources of negatives. Random access
is what makes a resumed run equal an unbroken one: nothing has to be stored but what the parts made of embeddings.

Legend: B queries of a batch, S labels of its pool, P true pairs of it, D dimensions, N training queries, L labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from xmcbench.data.dataset import TrainingData
from xmcbench.engine.losses.positives import Positives
from xmcbench.engine.sampling.parts import Draw, Negatives, Order, Part, Shuffled, gather_rows
from xmcbench.engine.search.exact import top_k
from xmcbench.engine.workers import ALONE, Workers
from xmcbench.errors import XMCBenchError
from xmcbench.trial.run import derive_seed


@dataclass(frozen=True)
class Batch:
    """`query_ids` [B] and `label_ids` [S] (sorted, each once), and which of the B x S pairs are true."""

    query_ids: np.ndarray
    label_ids: np.ndarray
    positives: Positives


@dataclass(frozen=True)
class Embeddings:
    """The current vectors of training queries [N, D] and labels [L, D], as they are scored, computed when asked for.

    Computing them is charged to the budget, and shared by the workers, each of which gets them all. What a part does
    with them is charged to the stage `mine`, or to another in a block of `stage`.
    """

    queries: Callable[[], Tensor]
    labels: Callable[[], Tensor]
    workers: Workers = ALONE
    stage: Callable[[str], AbstractContextManager[object]] = nullcontext

    def once(self) -> Embeddings:
        """The same, computed once however often they are asked for."""
        return replace(self, queries=cache(self.queries), labels=cache(self.labels))

    def nearest(self, k: int, exclude: sp.csr_array) -> np.ndarray:
        """[N, k] each query's nearest labels without the pairs `exclude` [N, L]; -1 where there are fewer."""
        queries_ND, labels_LD = self.queries(), self.labels()
        size, rank, total = self.workers.size, self.workers.rank, queries_ND.shape[0]
        mine = slice(total * rank // size, total * (rank + 1) // size)
        found = top_k(queries_ND[mine], labels_LD, k, exclude=exclude[mine])
        return self.workers.gather(torch.from_numpy(found.indices).to(labels_LD.device)).cpu().numpy()


class Sampler:
    """Batches of training queries with their label pools; queries without a label are never drawn.

    `order` (default: shuffled) says which queries meet in a batch, `positives` (default: one a query) which of their
    true labels come into the pool, and each of `negatives` (default: none, in-batch) adds labels to it. A pool holds
    each label once, and every pair of it that is true is a positive, wherever the label came from.
    """

    def __init__(
        self,
        train: TrainingData,
        *,
        batch_size: int,
        seed: int,
        order: Order | None = None,
        positives: Draw | None = None,
        negatives: Sequence[Negatives] = (),
    ) -> None:
        self.train = train
        self.num_labels = train.num_labels
        self.batch_size = batch_size
        self.seed = seed
        self.query_ids = np.flatnonzero(np.diff(train.targets.indptr))
        if not len(self.query_ids):
            raise XMCBenchError(f"{train.card.name}: no training query has a label, expected some to learn from")
        self.order = order or Shuffled()
        self.drawn = positives or Draw()
        self.negatives = tuple(negatives)
        for part in self.parts:
            part.attach(self)
        self._arranged: tuple[int, np.ndarray] = (-1, self.query_ids)

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.order, self.drawn, *self.negatives

    def rng(self, *purpose: str | int) -> np.random.Generator:
        return np.random.default_rng(derive_seed(self.seed, *purpose))

    def num_batches(self, epoch: int) -> int:  # noqa: ARG002 (a curriculum may depend on it)
        return -(-len(self.query_ids) // self.batch_size)

    def arranged(self, epoch: int) -> np.ndarray:
        """The training queries in the order this epoch visits them."""
        if self._arranged[0] != epoch:
            self._arranged = (epoch, self.order.arrange(epoch))
        return self._arranged[1]

    def batch(self, epoch: int, index: int) -> Batch:
        """The batch at `index` of `epoch`."""
        rng = self.rng("batch", epoch, index)
        query_ids = self.arranged(epoch)[index * self.batch_size : (index + 1) * self.batch_size]
        label_ids = self.pool(query_ids, rng)
        rows, columns = self._true_pairs(query_ids, label_ids)
        counts = np.bincount(rows, minlength=len(query_ids))
        drawn = np.cumsum(counts) - counts + (rng.random(len(query_ids)) * counts).astype(np.int64)
        return _batch(query_ids, label_ids, rows, columns, np.where(counts > 0, drawn, -1))

    def pool(self, query_ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """[S] the labels these queries are scored against: sorted, each once."""
        inside_L = np.zeros(self.num_labels, bool)
        inside_L[self.drawn.labels(query_ids, rng)] = True
        for part in self.negatives:
            inside_L[part.labels(query_ids, rng)] = True
        return np.flatnonzero(inside_L)

    def _true_pairs(self, query_ids: np.ndarray, label_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Row and column of every pair of the pool that is true, the last label of the pool included."""
        labels, counts = gather_rows(self.train.targets, query_ids)
        rows = np.repeat(np.arange(len(query_ids)), counts)
        columns = np.minimum(np.searchsorted(label_ids, labels), len(label_ids) - 1)
        inside = label_ids[columns] == labels
        return rows[inside], columns[inside]

    def widened(self, batch: Batch, label_ids: np.ndarray) -> Batch:
        """The batch with the pool `label_ids`, which holds its own; each query's sampled pair stays what it was."""
        rows, columns = self._true_pairs(batch.query_ids, label_ids)
        before = batch.positives
        pairs = before.sampled_B.numpy()
        label_B = np.where(pairs < 0, -1, batch.label_ids[before.columns_P.numpy()[pairs]])
        sampled = np.full(len(batch.query_ids), -1)
        same = np.flatnonzero(label_ids[columns] == label_B[rows])
        sampled[rows[same]] = same
        return _batch(batch.query_ids, label_ids, rows, columns, sampled)

    # What follows the model ---------------------------------------------------------------------------------------

    def refresh(self, epoch: int, embeddings: Embeddings) -> None:
        """Called before each epoch: parts that follow the model look at its embeddings here."""
        embeddings = embeddings.once()
        for part in self.parts:
            part.refresh(epoch, embeddings)
        self._arranged = (-1, self.query_ids)

    @property
    def watches(self) -> bool:
        """Whether a part wants to see the vectors of each step."""
        return any(part.watches for part in self.parts)

    @property
    def adds(self) -> bool:
        """Whether a part adds labels to a batch once its vectors are known."""
        return any(part.adds for part in self.negatives)

    def harder(self, batch: Batch, queries_BD: Tensor, labels_SD: Tensor) -> np.ndarray:
        """The pool [S'] of a batch with the labels that its vectors ask for; called before the loss where `adds`."""
        more = [part.harder(batch, queries_BD, labels_SD) for part in self.negatives if part.adds]
        return np.union1d(batch.label_ids, np.concatenate(more))

    def observe(self, batch: Batch, queries_BD: Tensor, labels_SD: Tensor) -> None:
        """Called after each step where the sampler `watches`, with the step's vectors, detached."""
        for part in self.parts:
            if part.watches:
                part.observe(batch, queries_BD, labels_SD)

    def state(self) -> dict[str, Tensor]:
        """What the parts made and a resumed run cannot make again."""
        parts = enumerate(self.parts)
        return {f"{place}.{name}": tensor for place, part in parts for name, tensor in part.state().items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` gave."""
        for place, part in enumerate(self.parts):
            start = f"{place}."
            part.load_state({n.removeprefix(start): tensor for n, tensor in state.items() if n.startswith(start)})
        self._arranged = (-1, self.query_ids)


def _batch(
    query_ids: np.ndarray, label_ids: np.ndarray, rows: np.ndarray, columns: np.ndarray, sampled: np.ndarray
) -> Batch:
    rows_P, columns_P, sampled_B = (torch.from_numpy(ids.astype(np.int64)) for ids in (rows, columns, sampled))
    return Batch(query_ids, label_ids, Positives(rows_P, columns_P, sampled_B, len(label_ids)))
