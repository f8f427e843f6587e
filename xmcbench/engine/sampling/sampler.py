"""The sampler: a random-access sequence of batches, a pure function of (seed, epoch, index) and of the parts' state.

A sampler consists of parts: an order of the queries, a draw of positives, and any number of sources of negatives.
Random access makes a resumed run equal to an unbroken one: a checkpoint only needs what the parts computed from
embeddings.

Legend: B queries of a batch, S labels of its pool, K labels of a shortlist, N training queries, L labels, P true pairs,
D dimensions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from xmcbench.data.dataset import TrainingData
from xmcbench.engine.sampling.batch import Batch, gather_rows
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.metrics import inverse_propensity
from xmcbench.trial.run import derive_seed

if TYPE_CHECKING:
    from concurrent.futures import Future

    from torch import Tensor

    from xmcbench.engine.sampling.embeddings import Embeddings


class Sampler:
    """Batches of training queries with their label pools; queries without a label are never drawn.

    `order` (default: shuffled) decides which queries share a batch, and `positives` (default: one per query) which of
    their true labels enter the pool. Each of `negatives` (default: none, so in-batch) adds labels to the pool. A pool
    contains each label once. Every true pair in it is a positive, from whatever source its label is.

    Raises XMCBenchError if no query has a label.
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
        self.seed = seed
        self.query_ids = np.flatnonzero(np.diff(train.targets.indptr))
        if not len(self.query_ids):
            raise XMCBenchError(f"{train.card.name}: no training query has a label, expected at least one")
        self.batch_size = batch_size
        self.order = order or Shuffled()
        self.drawn = positives or Draw()
        self.negatives = tuple(negatives)
        for part in self.parts:
            part.attach(self)
        self._arranged: tuple[int, np.ndarray] = (-1, self.query_ids)

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
        chosen = {}
        for which, weights_P in batch.positives.chosen.items():
            chosen[which] = np.zeros(len(rows))
            chosen[which][before_P] = weights_P.numpy()
        return Batch.of(batch.query_ids, label_ids, rows, columns, chosen).scored_by(batch.positives.score)

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
        import torch

        parts = enumerate(self.parts)
        return {f"{i}.{name}": torch.as_tensor(value) for i, part in parts for name, value in part.state().items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for i, part in enumerate(self.parts):
            names = {name: name.removeprefix(f"{i}.") for name in state if name.startswith(f"{i}.")}
            part.load_state({own: state[name] for name, own in names.items()})
        self._arranged = (-1, self.query_ids)


def _one_a_row(rows_P: np.ndarray, weights_P: np.ndarray, chances_B: np.ndarray) -> np.ndarray:
    """bool [P], true for one pair of each row, drawn by these weights (int) with a number in 0..1 for each row."""
    totals_B = np.bincount(rows_P, weights_P, len(chances_B)).astype(np.int64)
    places_B = np.cumsum(totals_B) - totals_B + (chances_B * totals_B).astype(np.int64)
    chosen_P = np.zeros(len(rows_P), bool)
    chosen_P[np.searchsorted(np.cumsum(weights_P), places_B, side="right")] = True
    return chosen_P


class Part:
    """Base of all parts. A part belongs to one sampler; it may use the model's embeddings; by default it does not."""

    sampler: Sampler
    observes: bool = False  # whether `observe` is called after each step

    def attach(self, sampler: Sampler) -> None:
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

    def state(self) -> Mapping[str, Tensor | np.ndarray | float]:
        """The state that depends on embeddings, which a resumed run cannot recompute: tensors, arrays and numbers."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned, as tensors."""


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
        self.count, self.by = count, by
        self.weights_L: np.ndarray | None = None

    def attach(self, sampler: Sampler) -> None:
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

    extends_pool: bool = False  # whether `extend_pool` is called before each loss

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
        self.per_query, self.shortlist = per_query, shortlist
        self.start, self.every = start, every
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


class Prefetch:
    """A sampler's batches. The next batch of the same epoch is prepared ahead; another epoch may need a refresh first.

    This is safe because a batch is a pure function of seed, epoch and index.
    """

    def __init__(self, sampler: Sampler) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self.sampler = sampler
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sampler")
        self._next: tuple[tuple[int, int], Future[Batch]] | None = None

    def batch(self, epoch: int, index: int) -> Batch:
        """The batch at `index` of `epoch`."""
        ahead, self._next = self._next, None
        batch = ahead[1].result() if ahead and ahead[0] == (epoch, index) else self.sampler.batch(epoch, index)
        if index + 1 < self.sampler.num_batches(epoch):
            following = (epoch, index + 1)
            self._next = following, self._thread.submit(self.sampler.batch, *following)
        return batch
