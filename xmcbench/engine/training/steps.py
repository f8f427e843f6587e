"""The batch of a step as a worker sees it: its share of the queries and the labels it holds are embedded here, the
queries of all workers gathered; and the memory that steps may take.

Legend: N queries, L labels, B queries of a batch, S labels of the pool (of this worker), D dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import psutil
import torch
from torch import Tensor

from xmcbench.engine.device import default_device, device_peak_memory, upload
from xmcbench.engine.dual_encoder import DualEncoder
from xmcbench.engine.encoders.encoder import autocast, evaluating
from xmcbench.engine.flops import by_formula
from xmcbench.engine.sampling.batch import Batch
from xmcbench.engine.sampling.sampler import Sampler
from xmcbench.engine.training.gradient_cache import CachedEmbeddings, GradientCache, TextRows
from xmcbench.engine.workers import Workers
from xmcbench.trial.budget import Budget, Ledger, peak_memory


def kept_bytes(most_gib: float, room: float) -> int:
    """Bytes of activations that a worker keeps: `most_gib`, or half of its `room` if that is less.

    The other half is for what comes with the first step: gradients, moments, scores. Activations that are not kept are
    computed again, to equal values.
    """
    return int(min(most_gib * 2**30, max(0.0, room) / 2))


def room_now(budget: Budget, workers: Workers) -> float:
    """Bytes that this worker can still take: of its device, of which workers on processors have equal shares, and of
    the budget.
    """
    if (device := default_device()).type != "cpu":
        gpu = torch.get_device_module(device)
        free, taken = float(gpu.mem_get_info()[0]), gpu.memory_allocated()
    else:
        free, taken = psutil.virtual_memory().available / workers.size, psutil.Process().memory_info().rss
    return free if budget.peak_bytes is None else min(free, budget.peak_bytes - taken)


def check_memory(ledger: Ledger, budget: Budget, workers: Workers) -> None:
    """Raise `TooLargeError` on all workers where one has taken more memory than the budget allows a worker."""
    if budget.peak_bytes is None:
        return
    on_device = device_peak_memory()
    ledger.check_memory(budget, workers.largest(float(peak_memory() if on_device is None else on_device)))


@dataclass(frozen=True)
class EmbeddedBatch:
    """A batch, this worker's share of it, the embeddings of all its queries and of the share's labels."""

    whole: Batch
    share: Batch
    queries_BD: Tensor
    labels_SD: Tensor
    cached: tuple[CachedEmbeddings, ...]


class BatchEmbedder:
    """Embeds the batches of `sampler` with the encoder of `method`."""

    def __init__(self, method: DualEncoder, sampler: Sampler, activation_gib: float) -> None:
        self.method, self.sampler, self.device = method, sampler, default_device()
        kept = kept_bytes(activation_gib, room_now(method.run.budget, method.shard.workers))
        cast = autocast(self.device, method.config.precision)
        self.cache = GradientCache(method.encoder, self.device, method.micro_batch_tokens, kept, cast)

    def embed(self, whole: Batch, dropout_seed: int) -> EmbeddedBatch:
        """The batch's embeddings; where the sampler then adds labels to its pool, theirs too."""
        method, shard = self.method, self.method.shard
        whole = whole.scored_by(method.own_score)
        share = shard.share(whole)
        texts = [TextRows(method.queries, share.query_ids[shard.queries(len(share.query_ids))], "query")]
        if method.encodes_labels:
            texts.append(TextRows(method.labels, share.label_ids, "label"))
        with by_formula():
            cached = self.cache.embed(texts, dropout_seed)
            # Split, not sliced: the gradient of a slice is as large as the whole.
            sizes = [len(texts[0].rows), len(cached.embeddings) - len(texts[0].rows)]
            own_BD, labels_SD = torch.split(cached.embeddings, sizes)
            embedded = EmbeddedBatch(whole, share, shard.workers.gather(own_BD), labels_SD, (cached,))
        if self.sampler.extends_pool:
            with method.run.ledger.stage("mine"):
                pool = self.sampler.extend_pool(whole, *self.mining_vectors(embedded))
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
        with by_formula():
            added = self.cache.embed(texts, dropout_seed, embedded.cached[0].kept_bytes)
        by_id = np.argsort(np.concatenate((embedded.share.label_ids, more)))
        labels_SD = torch.cat((embedded.labels_SD, added.embeddings))[upload(by_id, self.device)]
        cached = (*embedded.cached, added)
        return replace(embedded, whole=whole, share=share, labels_SD=labels_SD, cached=cached)

    @torch.no_grad()
    def mining_vectors(self, embedded: EmbeddedBatch) -> tuple[Tensor, Tensor]:
        """The vectors that the sampler sees: of all queries, and of all labels of the pool by ascending id."""
        method, shard, ids = self.method, self.method.shard, embedded.share.label_ids
        rows = shard.queries(len(embedded.queries_BD))
        labels_SD = embedded.labels_SD.detach() if method.encodes_labels else embedded.labels_SD.new_empty(len(ids), 0)
        with evaluating(method.modules):
            queries_BD = shard.workers.gather(method.mining_query_vectors(embedded.queries_BD.detach()[rows]))
            labels_SD = method.mining_label_vectors(labels_SD, ids)
        by_worker = np.argsort(shard.owner_L[embedded.whole.label_ids], kind="stable")
        return queries_BD, shard.workers.gather(labels_SD)[upload(np.argsort(by_worker), self.device)]
