"""Clustered batches (NGAME): similar queries form a batch; the positives of each are hard negatives of others.

Legend: N training queries, B queries of a batch, Q queries with a label, D dimensions.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from xmcbench.engine.device import upload
from xmcbench.engine.sampling.batch import Batch
from xmcbench.engine.sampling.clustering import balanced_clusters, clustering_bytes
from xmcbench.engine.sampling.embeddings import Embeddings
from xmcbench.engine.sampling.parts import Order
from xmcbench.engine.sampling.training_queries import TrainingQueries


class Clusters(Order):
    """Clusters of at most `size` queries, in random order, concatenated and cut into batches.

    The larger the clusters, the more similar the queries of a batch. Queries are clustered before epoch `start` and
    every `every` epochs from then on; the size doubles at the first clustering in or after each epoch of `growth`. The
    number of clusters is a power of two. Before the first clustering the order is random.

    `vectors` says which vectors are clustered: `bank`, those of each query's last training step, which cost no encoder
    pass; or `fresh`, those of the current model, which are charged to the stage `cluster`. The bank holds every query
    after the first epoch, in float16, which halves its memory: the vectors are only compared.
    """

    def __init__(
        self,
        size: int = 4,
        start: int = 10,
        every: int = 5,
        growth: tuple[int, ...] = (),
        vectors: Literal["bank", "fresh"] = "bank",
    ) -> None:
        if vectors == "bank" and start < 1:
            raise ValueError("the bank is empty before the first epoch: start at 1 or later, or cluster fresh vectors")
        self.size = size
        self.start = start
        self.every = every
        self.growth = growth
        self.vectors = vectors
        self.clusters_Q: np.ndarray | None = None
        self.bank_ND: Tensor | None = None

    @property
    def watches(self) -> bool:
        return self.vectors == "bank"

    def attach(self, sampler: TrainingQueries) -> None:
        super().attach(sampler)
        self._unclustered_Q = np.arange(len(sampler.query_ids))

    def num_clusters(self, epoch: int) -> int:
        """The smallest power of two that keeps clusters within this epoch's size."""
        size = self.size * 2 ** sum(grown <= epoch for grown in self.growth)
        return 1 << max(0, math.ceil(math.log2(len(self.sampler.query_ids) / size)))

    def arrange(self, epoch: int) -> np.ndarray:
        clusters_Q = self._unclustered_Q if self.clusters_Q is None else self.clusters_Q
        rng = self.sampler.rng("order", epoch)
        place = rng.permutation(clusters_Q.max() + 1)
        # Members are shuffled too: a cluster that spans two batches is not always cut at the same place.
        return self.sampler.query_ids[np.lexsort((rng.random(len(clusters_Q)), place[clusters_Q]))]

    def refresh(self, epoch: int, embeddings: Embeddings) -> None:
        if epoch < self.start or (epoch - self.start) % self.every:
            return
        with embeddings.stage("cluster"):
            vectors_ND = embeddings.queries() if self.bank_ND is None else self.bank_ND
            workers = embeddings.workers
            # One worker clusters for all: with different rounding the workers would get different orders.
            clusters_Q = torch.empty(0, dtype=torch.int64, device=vectors_ND.device)
            if workers.rank == 0:
                rng = self.sampler.rng("clusters", epoch)
                computed_Q = balanced_clusters(vectors_ND, self.num_clusters(epoch), rng, self.sampler.query_ids)
                clusters_Q = torch.from_numpy(computed_Q).to(vectors_ND.device)
            self.clusters_Q = workers.gather(clusters_Q).cpu().numpy()

    def refresh_bytes(self, num_queries: int, num_labels: int, dimension: int) -> float:  # noqa: ARG002
        given = 4 * num_queries * dimension * (self.vectors == "fresh")  # a bank is there anyway
        return given + clustering_bytes(num_queries, dimension)

    def observe(self, batch: Batch, queries_BD: Tensor, labels_SD: Tensor) -> None:  # noqa: ARG002
        if self.bank_ND is None:
            shape = self.sampler.train.targets.shape[0], queries_BD.shape[1]
            self.bank_ND = torch.zeros(shape, dtype=torch.float16, device=queries_BD.device)
        self.bank_ND = self.bank_ND.to(queries_BD.device)  # after loading it is on the CPU
        self.bank_ND[upload(batch.query_ids, queries_BD.device)] = queries_BD.to(torch.float16)

    def state(self) -> dict[str, Tensor]:
        clusters = None if self.clusters_Q is None else torch.from_numpy(self.clusters_Q)
        tensors = {"clusters": clusters, "bank": self.bank_ND}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.clusters_Q = state["clusters"].numpy() if "clusters" in state else None
        self.bank_ND = state.get("bank")
