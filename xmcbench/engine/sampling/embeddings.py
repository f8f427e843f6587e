"""The current vectors of all training queries and labels, for samplers and methods.

Legend: N training queries, L labels, D dimensions; M queries that this worker searches for, B of a block.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Protocol

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from xmcbench.engine import flops
from xmcbench.engine.passes import may_stop, stop_point
from xmcbench.engine.search.index import backend_for, build_index, measured_recall, search_flops
from xmcbench.engine.search.kinds import Backend
from xmcbench.engine.workers import ALONE, Workers

if TYPE_CHECKING:
    from xmcbench.data.dataset import TrainingData
    from xmcbench.engine.losses.own_scores import Score

BLOCK, SHORT_BLOCK = 1 << 16, 1 << 10  # queries searched in one call, whose scores are dropped; between stops


class Require(Protocol):
    """Raises PassTooLargeError where computing these vectors, and scores, does not fit into the rest of the budget."""

    def __call__(self, *, needs_queries: bool, needs_labels: bool, scoring_flops: int = 0) -> None: ...


@dataclass(frozen=True)
class Embeddings:
    """The vectors of all training queries [N, D] and of all labels [L, D], computed on request.

    Computing them is charged to the budget. Workers divide the computation, and each receives all vectors. The time of
    a sampler's part is charged to the stage `mine`, or to another stage within a block of `stage`. Requesting
    vectors that do not fit into the rest of the budget raises PassTooLargeError and computes nothing.
    """

    queries: Callable[[], Tensor]
    labels: Callable[[], Tensor]
    workers: Workers = ALONE
    stage: Callable[[str], AbstractContextManager[object]] = nullcontext
    timed: Callable[[int], AbstractContextManager[object]] = lambda _: nullcontext()  # of a search's operations
    require: Require = lambda **_: None  # there is no budget
    note_recall: Callable[[float], None] = lambda _: None
    train: TrainingData | None = None  # whose vectors these are
    spent: Callable[[], float] = lambda: 0.0  # share of the budget, alike on all workers
    score: Score | None = None  # of a method that defines its own
    search_flops: Callable[[int, int, int], int] = search_flops  # of a search, by queries, labels and dimensions
    progress: Callable[[float], None] = lambda _: None  # gets the finished share of a search for neighbours

    def once(self) -> Embeddings:
        """The same vectors, computed at most once."""
        queries, labels = cache(self.queries), cache(self.labels)

        def require(*, needs_queries: bool, needs_labels: bool, scoring_flops: int = 0) -> None:
            self.require(
                needs_queries=needs_queries and not queries.cache_info().currsize,
                needs_labels=needs_labels and not labels.cache_info().currsize,
                scoring_flops=scoring_flops,
            )

        return replace(self, queries=queries, labels=labels, require=require)

    def nearest(self, k: int, exclude: sp.csr_array) -> np.ndarray:
        """[N, k] the nearest labels of each query without the pairs in `exclude` [N, L]; -1 pads short rows.

        The nearest are those of the highest scores. Unless the method defines its own score, the search among more than
        a trillion pairs is approximate (`search.index`); its recall is measured and passed to `note_recall`. Raises
        PassTooLargeError, before anything is computed, unless both passes fit into the rest of the budget.
        """
        self.require(needs_queries=True, needs_labels=True)
        self.progress(0.0)  # the passes below are no training either
        queries_ND, labels_LD = self.queries(), self.labels()
        size, rank, total = self.workers.size, self.workers.rank, queries_ND.shape[0]
        operations = self.search_flops(total, *labels_LD.shape)
        self.require(needs_queries=False, needs_labels=False, scoring_flops=operations)
        backend: Backend = "exact" if self.score else backend_for(total, len(labels_LD))
        index = build_index(labels_LD, backend, self.score)
        if backend != "exact":  # which counts its operations itself
            flops.current().flops += operations if rank == 0 else 0
            self.note_recall(measured_recall(index, queries_ND, labels_LD, k, exclude))
        first, end = total * rank // size, total * (rank + 1) // size
        mine_MK = np.empty((end - first, k), np.int32)
        block = SHORT_BLOCK if may_stop() else BLOCK
        with self.timed(operations // size):
            for start in range(0, len(mine_MK), block):
                stop_point()
                self.progress(start / len(mine_MK))
                block_BK = mine_MK[start : start + block]
                rows = slice(first + start, first + start + len(block_BK))
                block_BK[:] = index.top_k(queries_ND[rows], k, exclude=exclude[rows]).indices
        return self.workers.gather(torch.from_numpy(mine_MK).to(labels_LD.device)).cpu().numpy()
