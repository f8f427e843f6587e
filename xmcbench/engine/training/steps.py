"""The optimiser steps of a method: the sampler gives a batch, the gradient cache embeds it, the method's loss gives the
embeddings' gradients, the cache pushes them through the encoder, the update applies them at the schedule's rate.

Legend: N queries, L labels, B queries of a batch, S labels of the pool (of this worker), D dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from xmcbench.data.dataset import TrainingData
from xmcbench.engine.assembly import plain_embeddings
from xmcbench.engine.device import seed_random
from xmcbench.engine.flops import counting
from xmcbench.engine.sampling.embeddings import Embeddings
from xmcbench.engine.sampling.sampler import Prefetch
from xmcbench.engine.tables.touched_rows import TouchedRows
from xmcbench.engine.training.batch_embedder import BatchEmbedder
from xmcbench.engine.training.contract import TrainedMethod
from xmcbench.engine.training.loop import Charge, Metrics, Position
from xmcbench.engine.training.schedule import warmup_linear
from xmcbench.engine.training.update import Update
from xmcbench.errors import XMCBenchError
from xmcbench.trial.run import Progress, derive_seed


class NonFiniteLossError(XMCBenchError):
    """The loss or its gradient became infinite or not a number."""


class TrainingSteps:
    """Steps of an assembled `method` on the training data `train`."""

    def __init__(self, method: TrainedMethod, train: TrainingData) -> None:
        self.method = method
        self.workers = method.shard.workers
        self.sampler = method.sampler(train, derive_seed(method.run.seed, "sampler"))
        self.batches = Prefetch(self.sampler)
        self.embedder = BatchEmbedder(method, self.sampler)
        words = (module for module in method.encoder.modules() if isinstance(module, TouchedRows))
        self.optimizers = Update(
            method.parameter_groups(), method.tables(), self.workers, method.config.clip_norm, words
        )

    def begin(self) -> None:
        """Give the method access to the encoder's embeddings before the first step. Computing them is charged."""
        with self.method.charging.counted_scoring("prepare"), torch.no_grad():
            self.method.begin(plain_embeddings(self.method))

    def num_batches(self, epoch: int) -> int:
        return self.sampler.num_batches(epoch)

    def refresh(self, epoch: int) -> None:
        with self.method.charging.counted_scoring("mine"):
            self.sampler.refresh(epoch, self._mining_embeddings())

    def step(self, position: Position, charge: Charge) -> Metrics:
        method, seed, number = self.method, self.method.run.seed, self.method.run.ledger.steps
        place = f"step {number}, epoch {position.epoch}, batch {position.index}"
        method.encoder.train()
        method.modules.train()
        with counting() as scored:
            batch = self.batches.batch(position.epoch, position.index)
            embedded = self.embedder.embed(batch, derive_seed(seed, "dropout", number))
            # Every worker draws alike: what all workers do to the queries must agree.
            seed_random(derive_seed(seed, "loss", number), embedded.queries_BD.device)
            loss = method.loss(embedded.queries_BD, embedded.labels_SD, embedded.share)
            loss.backward()  # type: ignore[no-untyped-call]
        embedded.backward()
        label_lengths_L = method.labels.lengths if method.encodes_labels else None
        cost = method.charging.step_cost(embedded.whole, method.queries.lengths, label_lengths_L, scored.flops)
        rate = warmup_linear(charge(cost), method.config.warmup)
        # All that the host asks the device in a step, at once: it waits until the gradients are there.
        whole = self.workers.sum(loss.detach().double())
        value, norm = torch.stack([whole, self.optimizers.gradient_norm()]).tolist()
        _check_finite(value, "loss", place)
        _check_finite(norm, "norm of the gradient", place)
        self.optimizers.apply(rate, norm)
        with torch.no_grad():
            if self.sampler.watches:
                self.sampler.observe(embedded.whole, *self.embedder.mining_vectors(embedded))
            method.after_step(embedded.share, embedded.queries_BD.detach(), embedded.labels_SD.detach())
        return {"loss": value, "gradient": norm}

    def _mining_embeddings(self) -> Embeddings:
        """The vectors of everything in which samplers look for neighbours, charged when asked for."""
        method, charging = self.method, self.method.charging

        def queries() -> Tensor:
            return method.embed_queries(method.queries, method.mining_query_vectors)

        def labels() -> Tensor:
            return method.embed_labels(method.labels, method.mining_label_vectors, encode=method.encodes_labels)

        return Embeddings(
            charging.on_demand(queries, method.queries.lengths),
            charging.on_demand(labels, method.labels.lengths) if method.encodes_labels else labels,
            workers=self.workers,
            stage=self._stage,
            require=charging.requirement(
                method.queries.lengths, method.labels.lengths if method.encodes_labels else method.labels.lengths[:0]
            ),
            note_recall=charging.ledger.note_recall,
            progress=lambda share: method.run.report(Progress("mine", share)),
        )

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        """Report that a stage begins, and charge its seconds."""
        self.method.run.report(Progress(name, 0.0))
        with self.method.charging.ledger.stage(name):
            yield


def _check_finite(value: float, what: str, place: str) -> None:
    if not math.isfinite(value):
        raise NonFiniteLossError(f"the {what} is {value} at {place}: lower learning_rate or raise temperature")
