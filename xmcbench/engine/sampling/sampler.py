"""What a sampler is: a random-access plan of batches, a pure function of (seed, epoch, index) and of what it was shown.

It is made of parts: an order of the queries, a draw of positives, and any number of sources of negatives. Random access
makes a resumed run equal to an unbroken one: only what the parts computed from embeddings has to be stored.

Legend: B queries of a batch, S labels of its pool, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from xmcbench.data.dataset import TrainingData
from xmcbench.engine.sampling.batch import Batch
from xmcbench.engine.sampling.embeddings import Embeddings
from xmcbench.engine.sampling.parts import Draw, Negatives, Order, Part, Shuffled
from xmcbench.engine.sampling.training_queries import TrainingQueries


class Sampler(TrainingQueries):
    """Batches of training queries with their label pools; queries without a label are never drawn.

    `order` (default: shuffled) says which queries meet in a batch, `positives` (default: one per query) which of their
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
        """How many batches an epoch has."""
        return -(-len(self.query_ids) // self.batch_size)

    def arranged(self, epoch: int) -> np.ndarray:
        """The training queries in the order in which this epoch visits them."""
        if self._arranged[0] != epoch:
            self._arranged = (epoch, self.order.arrange(epoch))
        return self._arranged[1]

    def batch(self, epoch: int, index: int) -> Batch:
        """The batch at `index` of `epoch`."""
        rng = self.rng("batch", epoch, index)
        query_ids = self.arranged(epoch)[index * self.batch_size : (index + 1) * self.batch_size]
        label_ids = self.pool(query_ids, rng)
        rows, columns = self.true_pairs(query_ids, label_ids)
        counts = np.bincount(rows, minlength=len(query_ids))
        drawn = np.cumsum(counts) - counts + (rng.random(len(query_ids)) * counts).astype(np.int64)
        return Batch.of(query_ids, label_ids, rows, columns, np.where(counts > 0, drawn, -1))

    def pool(self, query_ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """[S] the labels these queries are scored against: sorted, each once."""
        inside_L = np.zeros(self.num_labels, bool)
        inside_L[self.drawn.labels(query_ids, rng)] = True
        for part in self.negatives:
            inside_L[part.labels(query_ids, rng)] = True
        return np.flatnonzero(inside_L)

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
        """What the parts computed and a resumed run cannot compute again."""
        parts = enumerate(self.parts)
        return {f"{place}.{name}": tensor for place, part in parts for name, tensor in part.state().items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for place, part in enumerate(self.parts):
            start = f"{place}."
            part.load_state({n.removeprefix(start): tensor for n, tensor in state.items() if n.startswith(start)})
        self._arranged = (-1, self.query_ids)
