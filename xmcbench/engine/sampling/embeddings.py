"""The current vectors of all training queries and labels, for samplers and methods.

Legend: N training queries, L labels, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from xmcbench.engine.search.exact import top_k
from xmcbench.engine.workers import ALONE, Workers


@dataclass(frozen=True)
class Embeddings:
    """The vectors of all training queries [N, D] and of all labels [L, D], computed on request.

    Computing them is charged to the budget. Workers divide the computation, and each receives all vectors. The time of
    a sampler's part is charged to the stage `mine`, or to another stage within a block of `stage`.
    """

    queries: Callable[[], Tensor]
    labels: Callable[[], Tensor]
    workers: Workers = ALONE
    stage: Callable[[str], AbstractContextManager[object]] = nullcontext

    def once(self) -> Embeddings:
        """The same vectors, computed at most once."""
        return replace(self, queries=cache(self.queries), labels=cache(self.labels))

    def nearest(self, k: int, exclude: sp.csr_array) -> np.ndarray:
        """[N, k] the nearest labels of each query without the pairs in `exclude` [N, L]; -1 pads short rows."""
        queries_ND, labels_LD = self.queries(), self.labels()
        size, rank, total = self.workers.size, self.workers.rank, queries_ND.shape[0]
        mine = slice(total * rank // size, total * (rank + 1) // size)
        nearest = top_k(queries_ND[mine], labels_LD, k, exclude=exclude[mine])
        return self.workers.gather(torch.from_numpy(nearest.indices).to(labels_LD.device)).cpu().numpy()
