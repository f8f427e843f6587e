"""The optimiser steps of a method: the sampler gives a batch, the gradient cache embeds it, the method's loss gives the
embeddings' gradients, the cache pushes them through the encoder, the update applies them at the schedule's rate.

Each worker embeds its share of the queries and the labels it holds, and gathers the queries of all workers.

Legend: N queries, L labels, B queries of a batch, S labels of the pool (of this worker), D dimensions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import psutil
import torch
from torch import Tensor

from xmcbench.data.dataset import TrainingData
from xmcbench.engine.device import default_device, seed_random, upload
from xmcbench.engine.dual_encoder import all_embeddings, plain_embeddings
from xmcbench.engine.encoders.encoder import autocast, evaluating
from xmcbench.engine.flops import counting
from xmcbench.engine.sampling.batch import Batch
from xmcbench.engine.sampling.sampler import Prefetch, Sampler
from xmcbench.engine.tables.touched_rows import TouchedRows
from xmcbench.engine.training.contract import TrainedMethod
from xmcbench.engine.training.gradient_cache import CachedEmbeddings, GradientCache, TextRows
from xmcbench.engine.training.update import Update
from xmcbench.engine.workers import Workers, from_worker_0
from xmcbench.errors import XMCBenchError
from xmcbench.trial.budget import Budget, Ledger, peak_memory
from xmcbench.trial.run import derive_seed

Metrics = dict[str, float]


def warmup_linear(fraction: float, warmup: float) -> float:
    """Factor in 0..1 at `fraction` of the budget: a linear rise over the first `warmup`, then a linear fall to 0.

    A shorter budget is a shorter schedule, not a cut one.
    """
    if fraction < warmup:
        return fraction / warmup
    return max(0.0, (1.0 - fraction) / (1.0 - warmup))


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
    device = default_device()
    peak = peak_memory() if device.type == "cpu" else torch.get_device_module(device).max_memory_allocated()
    ledger.check_memory(budget, workers.largest(float(peak)))


def note_memory(ledger: Ledger, workers: Workers) -> None:
    """Enter the peak resident bytes of each worker into the ledger."""
    own = torch.tensor([peak_memory()], device=default_device())
    ledger.worker_bytes = workers.gather(own).tolist()


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
            autocast=autocast(self.device, method.config.precision),
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


class NonFiniteLossError(XMCBenchError):
    """The loss or its gradient became infinite or not a number."""


class TrainingSteps:
    """Steps of an assembled `method` on the training data `train`."""

    def __init__(self, method: TrainedMethod, train: TrainingData) -> None:
        self.method = method
        self.workers = method.shard.workers
        self.sampler = method.sampler(train, derive_seed(method.run.seed, "sampler"))
        self.batches = Prefetch(self.sampler)
        self.epoch = self.index = 0  # of the next batch
        self.embedder = BatchEmbedder(method, self.sampler)
        words = (module for module in method.encoder.modules() if isinstance(module, TouchedRows))
        self.optimizers = Update(
            method.parameter_groups(), method.tables(), self.workers, method.config.clip_norm, words
        )

    def begin(self) -> None:
        """Give the method access to the encoder's embeddings before the first step. Computing them is charged."""
        with self.method.charging.counted_scoring("prepare"), torch.no_grad():
            self.method.begin(plain_embeddings(self.method))

    def spent(self) -> float:
        """The fraction of the budget that is spent, by the clock of worker 0."""
        return from_worker_0(self.method.run.ledger.fraction(self.method.run.budget), self.workers)

    def refresh(self) -> None:
        """Let the sampler look at the embeddings of everything before an epoch; computing them is charged."""
        method = self.method
        with method.charging.counted_scoring("mine"):
            vectors = method.mining_query_vectors, method.mining_label_vectors
            self.sampler.refresh(self.epoch, all_embeddings(method, *vectors, encode=method.encodes_labels))

    def step(self, before: float) -> Metrics:
        """Train on the next batch, `before` of the budget being spent; the cost is charged before the update."""
        method, run, number = self.method, self.method.run, self.method.run.ledger.steps
        place = f"step {number}, epoch {self.epoch}, batch {self.index}"
        method.encoder.train()
        method.modules.train()
        with run.ledger.between_checks(run.budget), run.ledger.stage("train"):
            with counting() as scored:
                batch = self.batches.batch(self.epoch, self.index)
                embedded = self.embedder.embed(batch, derive_seed(run.seed, "dropout", number))
                # Every worker draws alike: what all workers do to the queries must agree.
                seed_random(derive_seed(run.seed, "loss", number), embedded.queries_BD.device)
                loss = method.loss(embedded.queries_BD, embedded.labels_SD, embedded.share)
                loss.backward()  # type: ignore[no-untyped-call]
            embedded.backward()
            label_lengths_L = method.labels.lengths if method.encodes_labels else None
            lengths = method.queries.lengths, label_lengths_L
            method.charging.charge(method.charging.step_cost(embedded.whole, *lengths, scored.flops))
            self._advance()
            # The step's place on the schedule is its middle: neither the first nor the last step has rate 0.
            rate = warmup_linear((before + min(1.0, self.spent())) / 2, method.config.warmup)
            # All that the host asks the device in a step, at once: it waits until the gradients are there.
            whole = self.workers.sum(loss.detach().double())
            value, norm = torch.stack([whole, self.optimizers.gradient_norm()]).tolist()
            _check_finite(value, "loss", place)
            _check_finite(norm, "norm of the gradient", place)
            self.optimizers.apply(rate, norm)
            with torch.no_grad():
                if self.sampler.observes:
                    self.sampler.observe(embedded.whole, *self.embedder.mining_vectors(embedded))
                method.after_step(embedded.share, embedded.queries_BD.detach(), embedded.labels_SD.detach())
        return {"loss": value, "gradient": norm}

    def _advance(self) -> None:
        """Move on to the next batch, of the next epoch after the last one."""
        self.index += 1
        batches = self.sampler.num_batches(self.epoch)
        self.method.run.ledger.epochs = self.epoch + self.index / batches
        if self.index == batches:
            self.epoch, self.index = self.epoch + 1, 0


def _check_finite(value: float, what: str, place: str) -> None:
    if not math.isfinite(value):
        raise NonFiniteLossError(f"the {what} is {value} at {place}: lower learning_rate or raise temperature")
