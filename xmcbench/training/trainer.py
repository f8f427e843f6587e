"""The training loop every embedding method shares.

A step: the sampler names queries and their label pool, the gradient cache embeds both, the method's loss gives the
embeddings' gradients, the cache pushes them through the encoder, AdamW steps at the rate the spent budget says.

Legend: B queries, S labels of the pool, D dimensions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from xmcbench.data.dataset import TrainingData
from xmcbench.data.tokens import Tokens
from xmcbench.dual_encoder import default_device
from xmcbench.embedding_method import EmbeddingMethod
from xmcbench.errors import XMCBenchError
from xmcbench.method import Progress, Run, derive_seed
from xmcbench.models.embedding import autocast
from xmcbench.sampling.sampler import Batch, Embeddings
from xmcbench.training import checkpoint
from xmcbench.training.gradient_cache import GradientCache, TextRows
from xmcbench.training.schedule import warmup_linear

CHECKPOINT_SECONDS = 60.0  # what a kill can cost, at most, beside the step in flight
SELECTION_K = 100


class NonFiniteLossError(XMCBenchError):
    """The loss became infinite or not a number."""


class Trainer:
    """Trains one method on one training split within one budget, resuming from `run.checkpoint` where it can."""

    def __init__(self, method: EmbeddingMethod, train: TrainingData, queries: Tokens, labels: Tokens, run: Run) -> None:
        self.method = method
        self.queries = queries
        self.labels = labels
        self.run = run
        self.device = default_device()
        settings = method.config
        self.sampler = method.sampler(train, derive_seed(run.seed, "sampler"))
        self.cache = GradientCache(
            method.encoder,
            device=self.device,
            pad_id=method.encoder.tokenizer.pad_id,
            micro_batch_tokens=settings.micro_batch_size,
            graph_tokens=int(settings.activation_gib * 2**30 / method.encoder.activation_bytes_per_token),
            autocast=autocast(self.device, settings.precision),
        )
        self.optimizer = torch.optim.AdamW(method.parameter_groups(), fused=True)
        self.base_rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.epoch = 0
        self.index = 0  # of the next batch in the epoch
        self.best: float | None = None
        self.last_kept = time.monotonic()

    def train(self) -> None:
        """Spend the budget; leave the method with the chosen weights."""
        self._restore()
        ledger, budget = self.run.ledger, self.run.budget
        while (fraction := ledger.fraction(budget)) < 1:
            before = {name: ledger.spent(name) for name in budget.limits()}
            if self.index == 0:
                self._refresh()
            with ledger.stage("train"):
                loss = self._step(fraction)
            self._note_step(before)
            self.run.report(Progress("train", min(1.0, ledger.fraction(budget)), {"loss": loss, "step": ledger.steps}))
            self._look()
            if time.monotonic() - self.last_kept > CHECKPOINT_SECONDS:
                self.keep()
        self.keep()  # a kill while it indexes or predicts must not cost the last minute of training
        if self.best is not None:
            self._load_model(checkpoint.load(self.run.checkpoint / "best.safetensors")[0])

    def _step(self, fraction: float) -> float:
        method, ledger = self.method, self.run.ledger
        batch = self.sampler.batch(self.epoch, self.index)
        seed = derive_seed(self.run.seed, "dropout", ledger.steps)
        method.encoder.train()
        method.modules.train()
        cached = self.cache.embed(
            [TextRows(self.queries, batch.query_ids), TextRows(self.labels, batch.label_ids)], seed
        )
        loss = self._loss(cached.embeddings, batch, seed)
        loss.backward()  # type: ignore[no-untyped-call]
        cached.backward()
        ledger.encoder_tokens += cached.tokens
        ledger.queries += len(batch.query_ids)
        ledger.steps += 1
        self.index += 1
        ledger.epochs = self.epoch + self.index / self.sampler.num_batches(self.epoch)
        if self.index == self.sampler.num_batches(self.epoch):
            self.epoch, self.index = self.epoch + 1, 0
        # The step's place on the schedule is its middle: neither the first nor the last step has rate 0.
        middle = (fraction + min(1.0, ledger.fraction(self.run.budget))) / 2
        for group, rate in zip(self.optimizer.param_groups, self.base_rates, strict=True):
            group["lr"] = rate * warmup_linear(middle, method.config.warmup)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()

    def _loss(self, embeddings: Tensor, batch: Batch, seed: int) -> Tensor:
        torch.manual_seed(derive_seed(seed, "loss"))
        batch = replace(batch, positives=batch.positives.to(self.device))
        queries_BD, labels_SD = embeddings[: len(batch.query_ids)], embeddings[len(batch.query_ids) :]
        loss = self.method.loss(queries_BD, labels_SD, batch)
        value = loss.item()
        if not math.isfinite(value):
            where = f"step {self.run.ledger.steps}, epoch {self.epoch}, batch {self.index}"
            raise NonFiniteLossError(f"the loss is {value} at {where}: lower learning_rate or raise temperature")
        return loss

    def _refresh(self) -> None:
        """Let the sampler look at the current embeddings; what it asks for is charged."""
        ledger, method = self.run.ledger, self.method

        def charged(vectors: Callable[[Tokens], Tensor], tokens: Tokens) -> Tensor:
            ledger.encoder_tokens += int(tokens.lengths.sum())
            return vectors(tokens)

        embeddings = Embeddings(
            queries=partial(charged, method.all_query_vectors, self.queries),
            labels=partial(charged, method.all_label_vectors, self.labels),
        )
        with ledger.stage("mine"):
            self.sampler.refresh(self.epoch, embeddings)

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
        fraction = run.ledger.fraction(run.budget)
        if fraction < (len(curve) + 1) / run.selection_evaluations:
            return
        run.report(Progress("select", min(1.0, fraction)))
        with run.ledger.off_the_books():
            self.method.index_LD = self.method.all_label_vectors(self.labels)
            k = min(SELECTION_K, len(self.labels))
            figures = run.select(self.method.predict(run.selection_texts, k))
        spent = {"steps": run.ledger.steps, "encoder_tokens": run.ledger.encoder_tokens}
        curve.append({"fraction": fraction, **spent, "device_seconds": run.ledger.device_seconds, **figures})
        if self.best is None or figures[run.selection_metric] > self.best:
            self.best = figures[run.selection_metric]
            checkpoint.save(run.checkpoint / "best.safetensors", self._model_tensors(), {})
        self.keep()

    def keep(self) -> None:
        """Write a checkpoint from which training goes on as if it had not stopped."""
        with self.run.ledger.off_the_books():
            groups = {
                **self._model_tensors(),
                "optimizer": checkpoint.optimizer_tensors(self.optimizer),
                "sampler": self.sampler.state(),
            }
            note = {
                "epoch": self.epoch,
                "index": self.index,
                "best": self.best,
                "curve": self.run.curve,
                "ledger": self.run.ledger.state(),
            }
            checkpoint.save(self.run.checkpoint / "state.safetensors", groups, note)
        self.last_kept = time.monotonic()

    def _restore(self) -> None:
        path = self.run.checkpoint / "state.safetensors"
        if not path.exists():
            return
        groups, note = checkpoint.load(path)
        self._load_model(groups)
        checkpoint.load_optimizer(self.optimizer, groups.get("optimizer", {}))
        self.sampler.load_state(groups.get("sampler", {}))
        self.epoch, self.index, self.best = note["epoch"], note["index"], note["best"]
        self.run.curve[:] = note["curve"]
        for name, value in note["ledger"].items():
            setattr(self.run.ledger, name, value)

    def _model_tensors(self) -> dict[str, dict[str, Tensor]]:
        return {"encoder": self.method.encoder.state_dict(), "modules": self.method.modules.state_dict()}

    def _load_model(self, groups: dict[str, dict[str, Tensor]]) -> None:
        self.method.encoder.load_state_dict(groups["encoder"])
        self.method.modules.load_state_dict(groups.get("modules", {}))
