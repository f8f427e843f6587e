"""Hard negatives from a cache of label embeddings (DEXML Section C.3, after Lindgren et al., 2021).

Legend: B queries of a batch, S labels of its pool, L labels, M labels that this worker scores, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from xmcbench.engine.device import upload
from xmcbench.engine.losses.softmax_losses import decoupled_softmax
from xmcbench.engine.sampling.batch import Batch
from xmcbench.engine.sampling.embeddings import Embeddings
from xmcbench.engine.sampling.sampler import Negatives, Sampler
from xmcbench.engine.sampling.sharding import Shard
from xmcbench.engine.workers import current_workers
from xmcbench.errors import XMCBenchError

Loss = Callable[[Tensor, Tensor, Batch], Tensor]


class Cached(Negatives):
    """The `count` labels outside the pool whose cached embeddings get the largest gradients.

    1. Before the first epoch all labels are embedded into the cache, which is charged.
    2. When a batch is embedded, its labels' embeddings replace those in the cache.
    3. The loss of the batch's queries over the whole cache gives each label a gradient. The `count` labels outside the
       pool with the largest gradients join the pool and are embedded. If one is true for a query of the batch, it
       becomes a positive.
    4. After the step the cache takes their embeddings too.

    `loss(queries_BD, labels_SD, batch)` gets the vectors that samplers see and is written with `xmcbench.losses`; None
    is the decoupled softmax at temperature 0.05. Each worker holds the whole cache and scores its own labels. The cache
    is float16, which halves its memory: its vectors only choose labels.
    """

    observes = extends_pool = True

    def __init__(self, count: int, loss: Loss | None = None) -> None:
        self.count = count
        self.loss = loss or _decoupled
        self.cache_LD: Tensor | None = None

    def attach(self, sampler: Sampler) -> None:
        super().attach(sampler)
        self.shard = Shard(sampler.num_labels, current_workers())

    def labels(self, query_ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:  # noqa: ARG002
        return np.empty(0, np.int64)

    def refresh(self, epoch: int, embeddings: Embeddings) -> None:  # noqa: ARG002
        if self.cache_LD is None:
            self.cache_LD = embeddings.labels().to(torch.float16, copy=True)

    def refresh_bytes(self, num_queries: int, num_labels: int, dimension: int) -> float:  # noqa: ARG002
        return 4.0 * num_labels * dimension

    def observe(self, batch: Batch, queries_BD: Tensor, labels_SD: Tensor) -> None:  # noqa: ARG002
        if self.cache_LD is None:
            raise XMCBenchError("the label cache is empty: refresh the sampler before the first batch")
        self.cache_LD = self.cache_LD.to(labels_SD.device)  # after loading it is on the CPU
        self.cache_LD[upload(batch.label_ids, labels_SD.device)] = labels_SD.to(torch.float16)

    def extend_pool(self, batch: Batch, queries_BD: Tensor, labels_SD: Tensor) -> np.ndarray:
        self.observe(batch, queries_BD, labels_SD)
        norm_L = self._gradient_norms(batch, queries_BD)
        norm_L[batch.label_ids] = -1
        count = min(self.count, len(norm_L) - len(batch.label_ids))
        return np.argsort(-norm_L, kind="stable")[:count]

    def _gradient_norms(self, batch: Batch, queries_BD: Tensor) -> np.ndarray:
        """[L] the norm of the gradient that each cached vector gets from the loss over all labels."""
        assert self.cache_LD is not None  # `observe` raises otherwise
        mine = self.shard.share(self.sampler.with_pool(batch, np.arange(self.sampler.num_labels)))
        mine = replace(mine, positives=mine.positives.to(queries_BD.device))
        with torch.enable_grad():
            labels_MD = self.cache_LD[upload(self.shard.label_ids, queries_BD.device)].float().requires_grad_()
            (gradient_MD,) = torch.autograd.grad(self.loss(queries_BD.detach(), labels_MD, mine), labels_MD)
        norms = self.shard.workers.gather(gradient_MD.norm(dim=1)).cpu().numpy()
        norm_L = np.empty_like(norms)
        norm_L[self.shard.everyone()] = norms
        return norm_L

    def state(self) -> dict[str, Tensor]:
        return {} if self.cache_LD is None else {"cache": self.cache_LD}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.cache_LD = state.get("cache")


def _decoupled(queries_BD: Tensor, labels_SD: Tensor, batch: Batch) -> Tensor:
    return decoupled_softmax(queries_BD, labels_SD, batch.positives, batch.positives.every(), temperature=0.05)
