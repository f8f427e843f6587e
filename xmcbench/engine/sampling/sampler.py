"""The sampler: a random-access sequence of batches, a pure function of (seed, epoch, index) and of the parts' state.

A sampler consists of parts: an order of the queries, a draw of positives, and any number of sources of negatives.
Random access makes a resumed run equal to an unbroken one: a checkpoint only needs what the parts computed from
embeddings.

Legend: B queries of a batch, S labels of its pool, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from xmcbench.data.dataset import TrainingData
from xmcbench.engine.sampling.batch import Batch, TrainingQueries
from xmcbench.engine.sampling.parts import Draw, Negatives, Order, Part, Shuffled

if TYPE_CHECKING:
    from torch import Tensor

    from xmcbench.engine.sampling.embeddings import Embeddings


class Sampler(TrainingQueries):
    """Batches of training queries with their label pools; queries without a label are never drawn.

    `order` (default: shuffled) decides which queries share a batch, and `positives` (default: one per query) which of
    their true labels enter the pool. Each of `negatives` (default: none, so in-batch) adds labels to the pool. A pool
    contains each label once. Every true pair in it is a positive, from whatever source its label is.
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
        super().__init__(train, seed)
        self.batch_size = batch_size
        self.order = order or Shuffled()
        self.drawn = positives or Draw()
        self.negatives = tuple(negatives)
        for part in self.parts:
            part.attach(self)
        self._arranged: tuple[int, np.ndarray] = (-1, self.query_ids)

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.order, self.drawn, *self.negatives

    def num_batches(self, epoch: int) -> int:  # noqa: ARG002 (a curriculum may depend on it)
        """The number of batches in an epoch."""
        return -(-len(self.query_ids) // self.batch_size)

    def arranged(self, epoch: int) -> np.ndarray:
        """The ids of the training queries, in the order of this epoch."""
        if self._arranged[0] != epoch:
            self._arranged = (epoch, self.order.arrange(epoch))
        return self._arranged[1]

    def batch(self, epoch: int, index: int) -> Batch:
        """The batch at `index` of `epoch`."""
        rng = self.rng("batch", epoch, index)
        query_ids = self.arranged(epoch)[index * self.batch_size : (index + 1) * self.batch_size]
        drawn_rows, drawn_labels = self.drawn.pairs(query_ids, rng)
        inside_L = np.zeros(self.num_labels, bool)
        for labels in (drawn_labels, *(part.labels(query_ids, rng) for part in self.negatives)):
            inside_L[labels] = True
        label_ids = np.flatnonzero(inside_L)
        rows, columns = self.true_pairs(query_ids, label_ids)
        labels = label_ids[columns]
        chances_B = rng.random(len(query_ids))
        draws_L = np.bincount(drawn_labels, minlength=self.num_labels)
        chosen = {
            "drawn": np.isin(rows * self.num_labels + labels, drawn_rows * self.num_labels + drawn_labels),
            "one": _one_a_row(rows, np.ones_like(rows), chances_B),
            "one-by-draws": _one_a_row(rows, draws_L[labels], chances_B),
        }
        return Batch.of(query_ids, label_ids, rows, columns, chosen)

    # Parts that follow the model ----------------------------------------------------------------------------------

    def refresh(self, epoch: int, embeddings: Embeddings) -> None:
        """Called before each epoch, so that parts can follow the model through its embeddings."""
        embeddings = embeddings.once()
        self._arranged = (-1, self.query_ids)
        for part in self.parts:
            part.refresh(epoch, embeddings)

    @property
    def observes(self) -> bool:
        """Whether a part needs the vectors of each step."""
        return any(part.observes for part in self.parts)

    @property
    def extends_pool(self) -> bool:
        """Whether a part adds labels to a batch once its vectors are known."""
        return any(part.extends_pool for part in self.negatives)

    def extend_pool(self, batch: Batch, queries_BD: Tensor, labels_SD: Tensor) -> np.ndarray:
        """The pool [S'] of a batch with the labels that the parts add. Called before the loss if `extends_pool`."""
        more = [part.extend_pool(batch, queries_BD, labels_SD) for part in self.negatives if part.extends_pool]
        return np.union1d(batch.label_ids, np.concatenate(more))

    def observe(self, batch: Batch, queries_BD: Tensor, labels_SD: Tensor) -> None:
        """Called after each step if the sampler `observes`, with the detached vectors of the step."""
        for part in self.parts:
            if part.observes:
                part.observe(batch, queries_BD, labels_SD)

    def state(self) -> dict[str, Tensor]:
        """The state of the parts that a resumed run cannot recompute."""
        parts = enumerate(self.parts)
        return {f"{i}.{name}": tensor for i, part in parts for name, tensor in part.state().items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for i, part in enumerate(self.parts):
            prefix = f"{i}."
            part.load_state({n.removeprefix(prefix): tensor for n, tensor in state.items() if n.startswith(prefix)})
        self._arranged = (-1, self.query_ids)


def _one_a_row(rows_P: np.ndarray, weights_P: np.ndarray, chances_B: np.ndarray) -> np.ndarray:
    """bool [P], true for one pair of each row, drawn by these weights (int) with a number in 0..1 for each row."""
    totals_B = np.bincount(rows_P, weights_P, len(chances_B)).astype(np.int64)
    places_B = np.cumsum(totals_B) - totals_B + (chances_B * totals_B).astype(np.int64)
    chosen_P = np.zeros(len(rows_P), bool)
    chosen_P[np.searchsorted(np.cumsum(weights_P), places_B, side="right")] = True
    return chosen_P


class Prefetch:
    """A sampler's batches. The next batch of the same epoch is prepared ahead; another epoch may need a refresh first.

    This is safe because a batch is a pure function of seed, epoch and index.
    """

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sampler")
        self._next: tuple[tuple[int, int], Future[Batch]] | None = None

    def batch(self, epoch: int, index: int) -> Batch:
        """The batch at `index` of `epoch`."""
        ahead, self._next = self._next, None
        batch = ahead[1].result() if ahead and ahead[0] == (epoch, index) else self.sampler.batch(epoch, index)
        if index + 1 < self.sampler.num_batches(epoch):
            place = (epoch, index + 1)
            self._next = place, self._thread.submit(self.sampler.batch, *place)
        return batch
