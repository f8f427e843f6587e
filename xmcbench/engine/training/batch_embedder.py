"""A batch through the encoder, over all workers, with the labels that the sampler adds once it sees the vectors.

Each worker embeds its share of the queries and the labels it holds, and gathers the queries of all workers.

Legend: B queries, S labels of the pool (of this worker), D dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from xmcbench.engine.device import default_device, upload
from xmcbench.engine.encoders.encoder import autocast, evaluating
from xmcbench.engine.sampling.batch import Batch
from xmcbench.engine.sampling.sampler import Sampler
from xmcbench.engine.training.contract import TrainedMethod
from xmcbench.engine.training.gradient_cache import CachedEmbeddings, GradientCache, TextRows
from xmcbench.engine.training.memory import kept_bytes, room_now


@dataclass(frozen=True)
class EmbeddedBatch:
    """A batch, this worker's share of it, the embeddings of all its queries and of the share's labels."""

    whole: Batch
    share: Batch
    queries_BD: Tensor
    labels_SD: Tensor
    cached: tuple[CachedEmbeddings, ...]

    def backward(self) -> None:
        """Push the gradients of the embeddings through the encoder."""
        for cached in self.cached:
            cached.backward()


class BatchEmbedder:
    """Embeds the batches of `sampler` with the encoder of `method`."""

    def __init__(self, method: TrainedMethod, sampler: Sampler) -> None:
        self.method, self.sampler = method, sampler
        self.device = default_device()
        self.cache = GradientCache(
            method.encoder,
            device=self.device,
            micro_batch_tokens=method.micro_batch_tokens,
            activation_bytes=kept_bytes(
                method.config.activation_gib, room_now(method.run.budget, method.shard.workers)
            ),
            autocast=autocast(self.device, method.precision),
        )

    def embed(self, whole: Batch, dropout_seed: int) -> EmbeddedBatch:
        """The batch's embeddings; where the sampler then adds labels to its pool, theirs too."""
        method, shard = self.method, self.method.shard
        share = shard.share(whole)
        texts = [TextRows(method.queries, share.query_ids[shard.queries(len(share.query_ids))], "query")]
        if method.encodes_labels:
            texts.append(TextRows(method.labels, share.label_ids, "label"))
        cached = self.cache.embed(texts, dropout_seed)
        # Split, not sliced: the gradient of a slice is as large as the whole.
        sizes = [len(texts[0].rows), len(cached.embeddings) - len(texts[0].rows)]
        own_BD, labels_SD = torch.split(cached.embeddings, sizes)
        embedded = EmbeddedBatch(whole, share, shard.workers.gather(own_BD), labels_SD, (cached,))
        if self.sampler.adds:
            with method.run.ledger.stage("mine"):
                pool = self.sampler.harder(whole, *self.mining_vectors(embedded))
            embedded = self._with_pool(embedded, pool, dropout_seed)
        on_device = embedded.share.positives.to(self.device)
        return replace(embedded, share=replace(embedded.share, positives=on_device))

    def _with_pool(self, embedded: EmbeddedBatch, label_ids: np.ndarray, dropout_seed: int) -> EmbeddedBatch:
        """The same batch with the larger pool `label_ids`, whose additional labels are embedded."""
        whole = self.sampler.with_pool(embedded.whole, label_ids)
        share = self.method.shard.share(whole)
        if not self.method.encodes_labels:
            return replace(embedded, whole=whole, share=share)
        more = np.setdiff1d(share.label_ids, embedded.share.label_ids)
        texts = [TextRows(self.method.labels, more, "label")]
        added = self.cache.embed(texts, dropout_seed, embedded.cached[0].kept_bytes)
        by_id = np.argsort(np.concatenate((embedded.share.label_ids, more)))
        labels_SD = torch.cat((embedded.labels_SD, added.embeddings))[upload(by_id, self.device)]
        cached = (*embedded.cached, added)
        return replace(embedded, whole=whole, share=share, labels_SD=labels_SD, cached=cached)

    @torch.no_grad()
    def mining_vectors(self, embedded: EmbeddedBatch) -> tuple[Tensor, Tensor]:
        """The vectors that the sampler sees: of all queries, and of all labels of the pool by ascending id."""
        method, shard, ids = self.method, self.method.shard, embedded.share.label_ids
        labels_SD = embedded.labels_SD.detach() if method.encodes_labels else embedded.labels_SD.new_empty(len(ids), 0)
        with evaluating(method.modules):
            queries_BD = method.mining_query_vectors(embedded.queries_BD.detach())
            labels_SD = method.mining_label_vectors(labels_SD, ids)
        by_worker = np.argsort(shard.owner_L[embedded.whole.label_ids], kind="stable")
        return queries_BD, shard.workers.gather(labels_SD)[upload(np.argsort(by_worker), self.device)]
