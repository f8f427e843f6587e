"""The training loop: the sampler gives a batch, the gradient cache embeds it, the method's loss gives the embeddings'
gradients, the cache pushes them through the encoder, the update steps at the rate the spent budget says.

Of several workers each embeds its share of the queries and the labels it holds, gathers the queries, and computes its
part of the loss. Sampler and ledger are alike on all workers; the clock is worker 0's.

Legend: B queries, S labels of the pool (of this worker), D dimensions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from xmcbench.budget import peak_memory
from xmcbench.data.dataset import TrainingData
from xmcbench.data.tokens import Tokens
from xmcbench.dual_encoder import default_device
from xmcbench.embedding_method import EmbeddingMethod
from xmcbench.errors import XMCBenchError
from xmcbench.flops import counting
from xmcbench.method import Progress, Run, derive_seed
from xmcbench.models.embedding import autocast
from xmcbench.sampling.prefetch import Prefetch
from xmcbench.sampling.sampler import Batch, Embeddings
from xmcbench.training import checkpoint
from xmcbench.training.gradient_cache import GradientCache, TextRows
from xmcbench.training.schedule import warmup_linear
from xmcbench.training.update import Update

CHECKPOINT_SECONDS = 60.0  # what a kill can cost, at most, beside the step in flight
KEPT = 2  # checkpoints: the newest, and the one before
SELECTION_K = 100


class NonFiniteLossError(XMCBenchError):
    """The loss or its gradient became infinite or not a number."""


class Trainer:
    """Trains one method on one training split within one budget, resuming from `run.checkpoint` where it can."""

    def __init__(self, method: EmbeddingMethod, train: TrainingData, queries: Tokens, labels: Tokens, run: Run) -> None:
        self.method = method
        self.queries = queries
        self.labels = labels
        self.run = run
        self.device = default_device()
        self.shard = method.shard
        self.workers = method.shard.workers
        settings = method.config
        self.sampler = method.sampler(train, derive_seed(run.seed, "sampler"))
        self.batches = Prefetch(self.sampler)
        self.cache = GradientCache(
            method.encoder,
            device=self.device,
            micro_batch_tokens=settings.micro_batch_size,
            activation_bytes=int(settings.activation_gib * 2**30),
            autocast=autocast(self.device, settings.precision),
        )
        self.update = Update(method.parameter_groups(), method.tables(), self.workers, settings.clip_norm)
        self.epoch = 0
        self.index = 0  # of the next batch in the epoch
        self.best: float | None = None
        self.best_step = 0
        self.kept_step = -1
        self.last_kept = time.monotonic()

    def train(self) -> None:
        """Spend the budget; leave the method with the chosen weights."""
        self._restore()
        ledger, budget = self.run.ledger, self.run.budget
        while (fraction := self._agreed(ledger.fraction(budget))) < 1:
            before = {name: ledger.spent(name) for name in budget.limits()}
            if self.index == 0:
                self._refresh()
            with ledger.stage("train"):
                figures = self._step(fraction)
            self._note_step(before)
            self.run.report(Progress("train", min(1.0, ledger.fraction(budget)), {**figures, "step": ledger.steps}))
            self._look()
            if self._agreed(time.monotonic() - self.last_kept) > CHECKPOINT_SECONDS:
                self.keep()
        mine = torch.tensor([peak_memory()], device=self.device)
        ledger.worker_bytes = self.workers.gather(mine).tolist()
        self.keep()  # a kill while it indexes or predicts must not cost the last minute of training
        if self.best is not None:
            saved, _ = checkpoint.load(self._best_directory())
            self._load_model(saved[0])
            self.update.load_tables(saved)

    def _agreed(self, clocked: float) -> float:
        """What worker 0 measured: workers must stop, and keep, at the same step."""
        mine = clocked if self.workers.rank == 0 else -math.inf
        return float(self.workers.max(torch.tensor(mine, dtype=torch.float64, device=self.device)))

    def _step(self, fraction: float) -> dict[str, float]:
        method, ledger = self.method, self.run.ledger
        whole = self.batches.batch(self.epoch, self.index)
        batch = self.shard.share(whole)
        batch = replace(batch, positives=batch.positives.to(self.device))
        method.encoder.train()
        method.modules.train()
        mine = [TextRows(self.queries, batch.query_ids[self.shard.queries(len(batch.query_ids))])]
        if method.encodes_labels:
            mine.append(TextRows(self.labels, batch.label_ids))
        cached = self.cache.embed(mine, derive_seed(self.run.seed, "dropout", ledger.steps, self.workers.rank))
        with counting() as scored:
            value = self._loss(cached.embeddings, len(mine[0].rows), batch)
        cached.backward()
        self._charge(whole, scored.flops)
        # The step's place on the schedule is its middle: neither the first nor the last step has rate 0.
        middle = (fraction + min(1.0, self._agreed(ledger.fraction(self.run.budget)))) / 2
        norm = self.update.step(warmup_linear(middle, method.config.warmup))
        self._check(norm, "norm of the gradient")
        with torch.no_grad():
            method.after_step(batch)
        return {"loss": value, "gradient": norm}

    def _loss(self, embeddings: Tensor, queries: int, batch: Batch) -> float:
        """The loss over all workers, after its backward pass."""
        # Every worker draws alike: what they all do to the queries must agree.
        torch.manual_seed(derive_seed(self.run.seed, "loss", self.run.ledger.steps))
        queries_BD = self.workers.gather(embeddings[:queries])
        part = self.method.loss(queries_BD, embeddings[queries:], batch)
        value = float(self.workers.sum(part.detach().double()))
        self._check(value, "loss")
        part.backward()  # type: ignore[no-untyped-call]
        return value

    def _check(self, value: float, what: str) -> None:
        if not math.isfinite(value):
            where = f"step {self.run.ledger.steps}, epoch {self.epoch}, batch {self.index}"
            raise NonFiniteLossError(f"the {what} is {value} at {where}: lower learning_rate or raise temperature")

    def _charge(self, whole: Batch, scored: int) -> None:
        """Enter what a step took, over all workers: a pass forward, and a backward one that counts as two."""
        ledger, encoder = self.run.ledger, self.method.encoder
        lengths = [self.queries.lengths[whole.query_ids]]
        if self.method.encodes_labels:
            lengths.append(self.labels.lengths[whole.label_ids])
        lengths_N = np.concatenate(lengths)
        ledger.encoder_tokens += int(lengths_N.sum())
        ledger.encoder_flops += 3 * encoder.flops(lengths_N)
        ledger.scoring_flops += int(self.workers.sum(torch.tensor(scored, device=self.device)))
        ledger.queries += len(whole.query_ids)
        ledger.steps += 1
        self.index += 1
        batches = self.sampler.num_batches(self.epoch)
        ledger.epochs = self.epoch + self.index / batches
        if self.index == batches:
            self.epoch, self.index = self.epoch + 1, 0

    def _refresh(self) -> None:
        """Let the sampler look at the current embeddings; what it asks for is charged."""
        ledger, method = self.run.ledger, self.method

        def charged(vectors: Callable[[Tokens], Tensor], tokens: Tokens, encodes: bool) -> Tensor:
            if encodes:
                ledger.encoder_tokens += int(tokens.lengths.sum())
                ledger.encoder_flops += method.encoder.flops(tokens.lengths)
            return vectors(tokens)

        embeddings = Embeddings(
            queries=partial(charged, method.all_query_vectors, self.queries, True),
            labels=partial(charged, method.all_label_vectors, self.labels, method.encodes_labels),
            workers=self.workers,
        )
        with ledger.stage("mine"), counting() as scored:
            self.sampler.refresh(self.epoch, embeddings)
        ledger.scoring_flops += int(self.workers.sum(torch.tensor(scored.flops, device=self.device)))

    def _note_step(self, before: dict[str, float]) -> None:
        ledger = self.run.ledger
        for name, spent in before.items():
            taken = ledger.spent(name) - spent
            ledger.largest_step[name] = max(taken, ledger.largest_step.get(name, 0.0))

    def _look(self) -> None:
        """Evaluate on the selection split where an evaluation is due; keep the weights if they are the best."""
        run, curve = self.run, self.run.curve
        if run.select is None or run.selection_texts is None:
            return
        fraction = self._agreed(run.ledger.fraction(run.budget))
        if fraction < (len(curve) + 1) / run.selection_evaluations:
            return
        run.report(Progress("select", min(1.0, fraction)))
        with run.ledger.off_the_books():
            self.method.index_LD = self.method.all_label_vectors(self.labels)
            k = min(SELECTION_K, len(self.labels))
            figures = run.select(self.method.predict(run.selection_texts, k))
        ledger = run.ledger
        spent = {"steps": ledger.steps, "encoder_tokens": ledger.encoder_tokens, "flops": ledger.flops}
        curve.append({"fraction": fraction, **spent, "device_seconds": ledger.device_seconds, **figures})
        if self.best is None or figures[run.selection_metric] > self.best:
            self.best, self.best_step = figures[run.selection_metric], ledger.steps
            groups = {**self._model_tensors(), **self.update.table_tensors()}
            checkpoint.save(self._best_directory(), groups, {}, self.workers)
        self.keep()

    def _best_directory(self) -> Path:
        return checkpoint.step_directory(self.run.checkpoint / "best", self.best_step)

    def keep(self) -> None:
        """Write a checkpoint from which training goes on as if it had not stopped."""
        root, ledger = self.run.checkpoint, self.run.ledger
        if self.kept_step != ledger.steps:
            with ledger.off_the_books():
                groups = {**self.update.tensors()}
                if self.workers.rank == 0:
                    groups |= {**self._model_tensors(), "sampler": self.sampler.state()}
                names = ("epoch", "index", "best", "best_step")
                note = {name: getattr(self, name) for name in names}
                note |= {"curve": self.run.curve, "ledger": ledger.state()}
                checkpoint.save(checkpoint.step_directory(root, ledger.steps), groups, note, self.workers)
                if self.workers.rank == 0:
                    checkpoint.prune(root, KEPT)
                    checkpoint.prune(root / "best", 1)
            self.kept_step = ledger.steps
        self.last_kept = time.monotonic()

    def _restore(self) -> None:
        place = checkpoint.newest(self.run.checkpoint)
        if place is None:
            return
        saved, note = checkpoint.load(place)
        self._load_model(saved[0])
        self.update.load(saved)
        self.sampler.load_state(saved[0].get("sampler", {}))
        for name in ("epoch", "index", "best", "best_step"):
            setattr(self, name, note[name])
        self.run.curve[:] = note["curve"]
        for name, value in note["ledger"].items():
            setattr(self.run.ledger, name, value)
        self.kept_step = self.run.ledger.steps

    def _model_tensors(self) -> checkpoint.Groups:
        return {"encoder": self.method.encoder.state_dict(), "modules": self.method.module_tensors()}

    def _load_model(self, groups: checkpoint.Groups) -> None:
        self.method.encoder.load_state_dict(groups["encoder"])
        self.method.modules.load_state_dict({**self.method.modules.state_dict(), **groups.get("modules", {})})
