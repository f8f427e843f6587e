"""The training loop: the sampler gives a batch, the gradient cache embeds it, the method's loss gives the embeddings'
gradients, the cache pushes them through the encoder, the update steps at the rate the spent budget says.

Of several workers each embeds its share of the queries and the labels it holds, gathers the queries, and computes its
part of the loss. Sampler and ledger are alike on all workers; the clock is worker 0's.

Legend: B queries, S labels of the pool (of this worker), D dimensions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from xmcbench.data.dataset import TrainingData
from xmcbench.data.tokens import Tokens
from xmcbench.engine import checkpoint
from xmcbench.engine.dual_encoder import default_device
from xmcbench.engine.encoders.embedding import autocast, evaluating
from xmcbench.engine.flops import counting
from xmcbench.engine.sampling.batch import Batch
from xmcbench.engine.sampling.prefetch import Prefetch
from xmcbench.engine.training.contract import TrainedMethod
from xmcbench.engine.training.gradient_cache import CachedEmbeddings, GradientCache, TextRows
from xmcbench.engine.training.schedule import warmup_linear
from xmcbench.engine.training.update import Update
from xmcbench.errors import XMCBenchError
from xmcbench.trial.budget import peak_memory
from xmcbench.trial.run import Progress, Run, derive_seed

CHECKPOINT_SECONDS = 60.0  # what a kill can cost, at most, beside the step in flight
KEPT = 2  # checkpoints: the newest, and the one before
SELECTION_K = 100


@dataclass(frozen=True)
class _Embedded:
    """A batch, this worker's share of it, the embeddings of all queries and of the share's labels."""

    whole: Batch
    batch: Batch
    queries_BD: Tensor
    labels_SD: Tensor
    cached: tuple[CachedEmbeddings, ...]


class NonFiniteLossError(XMCBenchError):
    """The loss or its gradient became infinite or not a number."""


class Trainer:
    """Trains one method on one training split within one budget, resuming from `run.checkpoint` where it can."""

    def __init__(self, method: TrainedMethod, train: TrainingData, queries: Tokens, labels: Tokens, run: Run) -> None:
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
        if not self._restore():
            self._begin()
        ledger, budget = self.run.ledger, self.run.budget
        while (fraction := self._agreed(ledger.fraction(budget))) < 1:
            with ledger.step(budget):
                if self.index == 0:
                    self._refresh()
                with ledger.stage("train"):
                    figures = self._step(fraction)
            self.run.report(Progress("train", min(1.0, ledger.fraction(budget)), {**figures, "step": ledger.steps}))
            self._check_memory()
            self._look()
            if self._agreed(time.monotonic() - self.last_kept) > CHECKPOINT_SECONDS:
                self.keep()
        mine = torch.tensor([peak_memory()], device=self.device)
        ledger.worker_bytes = self.workers.gather(mine).tolist()
        self.keep()  # a kill while it indexes or predicts must not cost the last minute of training
        if self.best is not None:
            if self.run.exchange:
                self.workers.barrier()  # all have given
                self.run.exchange.download()
            saved, _ = checkpoint.load(self._best_directory())
            self._load_model(saved[0])
            self.update.load_tables(saved)

    def _agreed(self, clocked: float) -> float:
        """What worker 0 measured: workers must stop, and keep, at the same step."""
        mine = clocked if self.workers.rank == 0 else -math.inf
        return float(self.workers.max(torch.tensor(mine, dtype=torch.float64, device=self.device)))

    def _step(self, fraction: float) -> dict[str, float]:
        method, ledger = self.method, self.run.ledger
        method.encoder.train()
        method.modules.train()
        with counting() as scored:
            step = self._embedded(self.batches.batch(self.epoch, self.index))
            value = self._loss(step.queries_BD, step.labels_SD, step.batch)
        for cached in step.cached:
            cached.backward()
        self._charge(step.whole, scored.flops)
        # The step's place on the schedule is its middle: neither the first nor the last step has rate 0.
        middle = (fraction + min(1.0, self._agreed(ledger.fraction(self.run.budget)))) / 2
        norm = self.update.step(warmup_linear(middle, method.config.warmup))
        self._check(norm, "norm of the gradient")
        with torch.no_grad():
            if self.sampler.watches:
                self.sampler.observe(step.whole, *self._shown(step))
            method.after_step(step.batch, step.queries_BD.detach(), step.labels_SD.detach())
        return {"loss": value, "gradient": norm}

    def _embedded(self, whole: Batch) -> _Embedded:
        """The batch through the encoder; where the sampler then adds labels to it, these too."""
        batch = self.shard.share(whole)
        texts = [TextRows(self.queries, batch.query_ids[self.shard.queries(len(batch.query_ids))], "query")]
        if self.method.encodes_labels:
            texts.append(TextRows(self.labels, batch.label_ids, "label"))
        cached = self.cache.embed(texts, self._dropout_seed())
        # Split, not sliced: the gradient of a slice is as large as the whole.
        sizes = [len(texts[0].rows), len(cached.embeddings) - len(texts[0].rows)]
        mine_BD, labels_SD = torch.split(cached.embeddings, sizes)
        queries_BD = self.workers.gather(mine_BD)
        step = _Embedded(whole, batch, queries_BD, labels_SD, (cached,))
        if self.sampler.adds:
            with self.run.ledger.stage("mine"):
                pool = self.sampler.harder(whole, *self._shown(step))
            step = self._widened(step, pool)
        return replace(step, batch=replace(step.batch, positives=step.batch.positives.to(self.device)))

    def _widened(self, step: _Embedded, label_ids: np.ndarray) -> _Embedded:
        """The same with the larger pool `label_ids`, whose other labels are embedded."""
        whole = self.sampler.with_pool(step.whole, label_ids)
        batch = self.shard.share(whole)
        if not self.method.encodes_labels:
            return replace(step, whole=whole, batch=batch)
        more = np.setdiff1d(batch.label_ids, step.batch.label_ids)
        texts = [TextRows(self.labels, more, "label")]
        added = self.cache.embed(texts, self._dropout_seed(), step.cached[0].kept_bytes)
        by_id = np.argsort(np.concatenate((step.batch.label_ids, more)))
        labels_SD = torch.cat((step.labels_SD, added.embeddings))[torch.from_numpy(by_id).to(self.device)]
        return replace(step, whole=whole, batch=batch, labels_SD=labels_SD, cached=(*step.cached, added))

    def _dropout_seed(self) -> int:
        return derive_seed(self.run.seed, "dropout", self.run.ledger.steps)

    @torch.no_grad()
    def _shown(self, step: _Embedded) -> tuple[Tensor, Tensor]:
        """What the sampler sees of a step: the vectors of all queries and of all labels of the pool."""
        method, ids = self.method, step.batch.label_ids
        labels_SD = step.labels_SD.detach() if method.encodes_labels else step.labels_SD.new_empty(len(ids), 0)
        with evaluating(method.modules):
            queries_BD = method.mining_query_vectors(step.queries_BD.detach())
            labels_SD = method.mining_label_vectors(labels_SD, ids)
        by_worker = np.argsort(self.shard.owner_L[step.whole.label_ids], kind="stable")
        places = torch.from_numpy(np.argsort(by_worker)).to(self.device)
        return queries_BD, self.workers.gather(labels_SD)[places]

    def _loss(self, queries_BD: Tensor, labels_SD: Tensor, batch: Batch) -> float:
        """The loss over all workers, after its backward pass."""
        # Every worker draws alike: what they all do to the queries must agree.
        torch.manual_seed(derive_seed(self.run.seed, "loss", self.run.ledger.steps))
        part = self.method.loss(queries_BD, labels_SD, batch)
        value = float(self.workers.sum(part.detach().double()))
        self._check(value, "loss")
        part.backward()  # type: ignore[no-untyped-call]
        return value

    def _check(self, value: float, what: str) -> None:
        if not math.isfinite(value):
            where = f"step {self.run.ledger.steps}, epoch {self.epoch}, batch {self.index}"
            raise NonFiniteLossError(f"the {what} is {value} at {where}: lower learning_rate or raise temperature")

    def _check_memory(self) -> None:
        """End the trial where a worker took more memory than the budget allows one."""
        budget = self.run.budget
        if budget.peak_bytes is not None:
            peak = torch.cuda.max_memory_allocated() if self.device.type == "cuda" else peak_memory()
            mine = torch.tensor(float(peak), dtype=torch.float64, device=self.device)
            self.run.ledger.check_memory(budget, float(self.workers.max(mine)))

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
        ledger.pool_labels += len(whole.label_ids)
        ledger.steps += 1
        self.index += 1
        batches = self.sampler.num_batches(self.epoch)
        ledger.epochs = self.epoch + self.index / batches
        if self.index == batches:
            self.epoch, self.index = self.epoch + 1, 0

    def _begin(self) -> None:
        """Let the method look at the embeddings before training; what it asks for is charged."""
        embeddings = self.method.embeddings(self.queries, self.labels, self.run.ledger)
        with self._looking("prepare"), torch.no_grad():
            self.method.begin(embeddings)

    def _refresh(self) -> None:
        """Let the sampler look at the current vectors; what it asks for is charged."""
        embeddings = self.method.embeddings(self.queries, self.labels, self.run.ledger, mining=True)
        with self._looking("mine"):
            self.sampler.refresh(self.epoch, embeddings)

    @contextmanager
    def _looking(self, stage: str) -> Iterator[None]:
        ledger = self.run.ledger
        with ledger.stage(stage), counting() as scored:
            yield
        ledger.scoring_flops += int(self.workers.sum(torch.tensor(scored.flops, device=self.device)))

    def _look(self) -> None:
        """Evaluate on the selection split where an evaluation is due; keep the weights if they are the best."""
        run = self.run
        held_out = run.held_out
        if held_out is None:
            return
        fraction = self._agreed(run.ledger.fraction(run.budget))
        if fraction < (len(run.log.curve) + 1) / held_out.evaluations:
            return
        run.report(Progress("select", min(1.0, fraction)))
        with run.ledger.off_the_books():
            self.method.index(self.labels)
            k = min(SELECTION_K, len(self.method.index_LD))
            figures = held_out.score(self.method.predict(held_out.texts, k))
        run.log.add_point(fraction, figures)
        if self.best is None or figures[held_out.metric] > self.best:
            self.best, self.best_step = figures[held_out.metric], run.ledger.steps
            groups = {**self._model_tensors(), **self.update.table_tensors()}
            checkpoint.save(self._best_directory(), groups, {}, self.workers, shared=run.exchange is None)
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
                note |= self.run.log.state()
                exchange = self.run.exchange
                place = checkpoint.step_directory(root, ledger.steps)
                checkpoint.save(place, groups, note, self.workers, shared=exchange is None)
                if self.workers.rank == 0 or exchange:
                    checkpoint.prune(root, KEPT)
                    checkpoint.prune(root / "best", 1)
                if exchange:
                    exchange.upload()
            self.kept_step = ledger.steps
        self.last_kept = time.monotonic()

    def _restore(self) -> bool:
        """Go on from the newest checkpoint; False where there is none."""
        place = checkpoint.newest(self.run.checkpoint)
        if place is None:
            return False
        saved, note = checkpoint.load(place)
        self._load_model(saved[0])
        self.update.load(saved)
        self.sampler.load_state(saved[0].get("sampler", {}))
        for name in ("epoch", "index", "best", "best_step"):
            setattr(self, name, note[name])
        self.run.log.restore(note)
        self.kept_step = self.run.ledger.steps
        return True

    def _model_tensors(self) -> checkpoint.Groups:
        return {"encoder": self.method.encoder.state_dict(), "modules": self.method.module_tensors()}

    def _load_model(self, groups: checkpoint.Groups) -> None:
        self.method.encoder.load_state_dict(groups["encoder"])
        self.method.modules.load_state_dict({**self.method.modules.state_dict(), **groups.get("modules", {})})
