"""Dual encoders that the engine trains: the hooks of a method around training, and the loop that calls them.

Legend: B queries of a batch, S labels of its pool, D dimensions.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from operator import not_
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from xmcbench.data.dataset import TrainingData
from xmcbench.data.extent import Extent
from xmcbench.engine.device import default_device, device_peak_memory, seed_random, tensor_float32
from xmcbench.engine.dual_encoder import DualEncoder, all_embeddings
from xmcbench.engine.flops import by_formula, counting
from xmcbench.engine.sampling.settings import OF_CLUSTERS
from xmcbench.engine.training import defaults
from xmcbench.errors import XMCBenchError
from xmcbench.plugins.registry import registry
from xmcbench.trial.budget import Budget, PassTooLargeError, peak_memory
from xmcbench.trial.facts import Ended
from xmcbench.trial.method import Method
from xmcbench.trial.run import Progress, Run, derive_seed

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from xmcbench.engine.sampling.batch import Batch
    from xmcbench.engine.sampling.embeddings import Embeddings
    from xmcbench.engine.sampling.sampler import Sampler
    from xmcbench.engine.training.steps import EmbeddedBatch

COUNTED = {"epochs", "steps", "encoder_tokens"}  # limits that tell how many epochs a training has
# Parts that begin with an epoch: the setting that says with which, and the settings that have no effect before it.
SCHEDULED = {
    "shortlists": (
        "refresh_start",
        frozenset({"refresh_start", "refresh_every", "shortlist", "negatives_per_query"}),
    ),
    "clusters": ("cluster_start", OF_CLUSTERS),
}
LABELS_OF_QUERY = ("positives_per_query", "negatives_per_query")  # settings that say how many are drawn for a query


class EmbeddingMethod(DualEncoder):
    """A dual encoder trained on batches of a sampler by a loss over embeddings.

    A method supplies `loss`, and a `sampler` unless the default one suits it. One that has modules over the embeddings
    (projection heads, a classifier table) makes them in `build_modules`, and computes in `query_vectors` and
    `label_vectors` what is scored.
    """

    not_planned: ClassVar[str] = ""  # why a plan cannot count the method's costs; empty: it can
    in_few_epochs: ClassVar[Mapping[str, Any]] = {}  # settings where a budget allows fewer than a paper's data need
    least_steps: ClassVar[int | None] = None  # that a batch which follows leaves; None: by the encoder's kind

    class Config(DualEncoder.Config):
        """Settings every trained dual encoder has."""

        batch_size: int = Field(1024, gt=0, description="queries per step")
        learning_rate: float = Field(3e-4, gt=0, description="peak of the schedule")
        weight_decay: float = Field(0.01, ge=0, description="of AdamW, on matrices; not on biases and norms")
        warmup: float = Field(
            0.1,
            ge=0,
            lt=1,
            description="share of the budget in which the learning rate rises; it falls to 0 over the rest",
        )
        clip_norm: float | None = Field(None, gt=0, description="largest norm of the whole gradient; null: no clipping")
        activation_gib: float = Field(
            4.0,
            ge=0,
            description="most GiB of activations kept for the backward pass, fewer where memory is short; the others "
            "are recomputed",
        )

        sampler: str = Field(
            "",
            exclude_if=not_,  # keys are those of settings that do not know it
            description="name of a registered sampler, in the place of the method's own; empty: its own",
        )
        refresh_beyond_budget: Literal["end", "skip"] = Field(
            "end",
            description="if mining or clustering does not fit into the rest of the budget: end training, or skip "
            "it and keep the old shortlists and clusters",
        )

    config: EmbeddingMethod.Config

    @classmethod
    def following(cls, given: Mapping[str, Any], data: Extent, budget: Budget) -> dict[str, Any]:
        """Derive batch, rate and schedules of mining from data and budget (`xmcbench.engine.training.defaults`)."""
        given = super().following(given, data, budget)
        config = cls.Config.model_validate(given)
        settings = config.model_dump(exclude=set(config.unused()))
        encoder, size, more = config.encoder.name, config.batch_size, {}
        if not cls.not_planned:
            labels_of_step = partial(cls.labels_of_step, config, data.labels)
            if "batch_size" not in given:
                least = defaults.STEPS[defaults.kind(encoder)] if cls.least_steps is None else cls.least_steps
                size = defaults.batch_size(size, least, data, budget, labels_of_step)
            epochs = defaults.epochs_of(budget, data, size, labels_of_step(size))
            more = defaults.schedules(settings, epochs, size, pays="encoder_tokens" in budget.spending())
            more |= cls.in_few_epochs if epochs < defaults.LONG else {}
        derived = {"batch_size": size, "learning_rate": defaults.learning_rate(encoder, size)} | more
        return {name: value for name, value in derived.items() if name in settings.keys() - given.keys()} | given

    @classmethod
    def needs_annotations(cls, config: Method.Config) -> bool:  # noqa: ARG003
        """Training draws batches from the training pairs, unless a method makes pairs of its own."""
        return True

    @classmethod
    def labels_of_step(cls, config: EmbeddingMethod.Config, num_labels: int, batch_size: int) -> float:
        """About how many label texts a step encodes: those drawn for its queries, unless a method says otherwise."""
        drawn = sum(getattr(config, name, 0) for name in LABELS_OF_QUERY if name not in config.unused())
        return min(num_labels, batch_size * max(1, drawn)) * cls.encodes_labels

    @classmethod
    def search_space(cls, config: Method.Config) -> dict[str, Any]:
        """Learning rates from a fifth to five times, and half and twice the batch: these settings matter most.

        What follows `in_few_epochs` is tried beside the method's own.
        """
        assert isinstance(config, EmbeddingMethod.Config)
        rate, size = config.learning_rate, config.batch_size
        fields = cls.Config.model_fields
        return {name: [fields[name].default, value] for name, value in cls.in_few_epochs.items()} | {
            "learning_rate": {"low": rate / 5, "high": 5 * rate, "log": True},
            "batch_size": sorted({max(2, size // 2), size, 2 * size}),
        }

    def foreseen(self, data: Extent, budget: Budget) -> dict[str, float]:
        if self.not_planned:
            return {}
        tokens = {"queries": data.queries * data.query_tokens, "labels": data.labels * data.label_tokens}
        first = {"first_tokens": sum(tokens[texts] for texts in self.first_passes)}
        if not COUNTED & budget.spending().keys():
            return first
        size = self.config.batch_size
        epochs = defaults.epochs_of(budget, data, size, self.labels_of_step(self.config, data.labels, size))
        return {"epochs": epochs, "steps": epochs * data.queries / size, **first}

    def idle_parts(self, spent: Mapping[str, Any]) -> dict[str, frozenset[str]]:
        values, epochs = self.config.model_dump(exclude=set(self.config.unused())), spent.get("epochs", math.inf)
        return {
            f"{part} ({start} is {values[start]}, in a training of {epochs:.3g} epochs)": settings
            for part, (start, settings) in SCHEDULED.items()
            if start in values and values[start] >= epochs
        }

    @property
    def first_passes(self) -> tuple[Literal["queries", "labels"], ...]:
        """The texts whose embeddings `label_groups` and `begin` ask for, before the first step."""
        return ()

    @property
    def last_passes(self) -> tuple[Literal["queries", "labels"], ...]:
        """The texts whose embeddings `end` asks for, after the last step: training leaves room for them in the budget.

        A budget without that room is an error before the first step.
        """
        return ()

    @property
    def skips_refreshes(self) -> bool:
        """Whether training continues with old shortlists and clusters where new ones do not fit into the budget."""
        return self.config.refresh_beyond_budget == "skip"

    def training_data(self, train: TrainingData) -> TrainingData:
        """The data to train on: `train`, unless the method adds to it or replaces it."""
        return train

    def sampler(self, train: TrainingData, seed: int) -> Sampler:
        """The plan of batches: which queries meet in a batch, and which labels they are scored against.

        Unless a method says otherwise, queries are shuffled, and one true label of each is drawn into the pool.
        """
        from xmcbench.engine.sampling.sampler import Sampler

        return Sampler(train, batch_size=self.config.batch_size, seed=seed)

    @classmethod
    def named_sampler(cls, config: Method.Config) -> str:
        """The registered sampler that takes the place of the method's own; empty where none does.

        A method whose settings have a `sampler` of their own says itself what that means.
        """
        known, own = (kind.model_fields["sampler"].description for kind in (EmbeddingMethod.Config, cls.Config))
        return str(getattr(config, "sampler", "")) if own == known else ""

    @classmethod
    def versions(cls, config: Method.Config) -> dict[str, int]:
        name = cls.named_sampler(config)
        return super().versions(config) | ({f"sampler {name}": registry().version("sampler", name)} if name else {})

    def training_sampler(self, train: TrainingData, seed: int) -> Sampler:
        """The sampler that `sampler` makes, or the registered one that the settings name."""
        own_sampler, name = self.sampler(train, seed), self.named_sampler(self.config)
        if not name:
            return own_sampler
        made: Sampler = registry().thing("sampler", name)(train, batch_size=self.config.batch_size, seed=seed)
        return made

    @abstractmethod
    def loss(self, queries_BD: Tensor, labels_SD: Tensor, batch: Batch) -> Tensor:
        """The scalar loss of the embeddings of a batch's queries [B, D] and of its label pool [S, D].

        Both are torch tensors in float32, on the device of `batch.positives`, with a gradient to the encoder.

        With several workers the arguments are all queries of the batch and the labels that this worker holds, and the
        result is this worker's part of the loss; the losses of `xmcbench.losses` do so by themselves.
        """

    def begin(self, embeddings: Embeddings) -> None:
        """Called before the first step with the encoder's embeddings of everything, which are charged when asked for.

        A resumed run does not call it: what is computed here goes into modules and tables, which checkpoints hold.
        """

    def after_step(self, batch: Batch, queries_BD: Tensor, labels_SD: Tensor) -> None:
        """Called after each step with the embeddings of `loss`, detached: for state that no gradient trains."""

    def end(self, embeddings: Embeddings) -> None:
        """Called after the last step, before `index`, with the embeddings of the chosen weights, where there are
        `last_passes`. They are charged when asked for.
        """

    @property
    def module_rate(self) -> float:
        """The peak learning rate of the method's own modules: the encoder's, unless a setting says otherwise."""
        return self.config.learning_rate

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Groups for AdamW: weight decay on matrices only, the learning rate in `lr`."""
        parts = (self.encoder, self.config.learning_rate), (self.modules, self.module_rate)
        rates = {p: rate for part, rate in parts for p in part.parameters() if p.requires_grad}
        groups = [
            {
                "params": [p for p, own_rate in rates.items() if own_rate == rate and (p.ndim > 1) == matrix],
                "lr": rate,
                "weight_decay": self.config.weight_decay * matrix,
            }
            for matrix in (True, False)
            for rate in dict.fromkeys(rates.values())
        ]
        return [group for group in groups if group["params"]]

    def fit(self, train: TrainingData, run: Run) -> None:
        from xmcbench.engine.training import checkpoints, steps  # noqa: F401 (no stage is charged for imports)

        with run.ledger.stage("prepare"):
            train = self.training_data(train)
            self.prepare(train, run)
            loop = Training(self, train)
        with by_formula():  # but for what the loop counts as the method's own
            loop.train()
        run.report(Progress("index", 0.0))
        with run.ledger.stage("index"):
            self.index(self.labels)


class NonFiniteLossError(XMCBenchError):
    """The loss or its gradient became infinite or not a number."""


def warmup_linear(fraction: float, warmup: float) -> float:
    """Factor in 0..1 at `fraction` of the budget: a linear rise over the first `warmup`, then a linear fall to 0.

    A shorter budget is a shorter schedule, not a cut one.
    """
    if fraction < warmup:
        return fraction / warmup
    return max(0.0, (1.0 - fraction) / (1.0 - warmup))


class Training:
    """One training of the prepared `method` on `train`, from its start or last checkpoint to the end of its budget."""

    def __init__(self, method: EmbeddingMethod, train: TrainingData) -> None:
        from xmcbench.engine.sampling.sampler import Prefetch
        from xmcbench.engine.training.checkpoints import Checkpoints
        from xmcbench.engine.training.steps import BatchEmbedder
        from xmcbench.engine.training.update import Update

        self.method, self.run, self.workers = method, method.run, method.shard.workers
        self.sampler = method.training_sampler(train, derive_seed(self.run.seed, "sampler"))
        self.batches = Prefetch(self.sampler)
        self.embedder = BatchEmbedder(method, self.sampler, method.config.activation_gib)
        groups, words = method.parameter_groups(), method.encoder.modules()
        self.update = Update(groups, method.tables(), self.workers, method.config.clip_norm, words)
        self.checkpoints = Checkpoints(method, self.update, self.sampler)
        self.epoch = self.index = 0  # of the next batch
        self.backward_multiplies = True  # also where the forward pass did not, until one has shown that it does not

    def train(self) -> None:
        """Spend the budget, or what of it the held-out queries ask for; leave the method with the chosen weights."""
        import torch

        from xmcbench.engine.training.steps import check_memory

        run, kept, charging = self.run, self.checkpoints, self.method.charging
        last = self._last_passes()
        if position := kept.restore():
            self.epoch, self.index = position
        else:
            with charging.counted("prepare"), torch.no_grad():
                self.method.begin(all_embeddings(self.method))
            if last:
                charging.require(*last)
        charging.reserve(*last)
        if not run.ledger.steps and self.spent() >= 1:
            raise PassTooLargeError(f"no step was taken: {self._spent_first()}")
        # Only a step may exceed the budget, or a part of a pass.
        while (before := self.spent()) < 1 and not kept.is_flat():
            if self.index == 0 and not self._refreshed():
                break
            metrics = self.step(before)
            fraction = min(1.0, run.ledger.fraction(self.budget))
            run.report(Progress("train", fraction, {**metrics, "step": run.ledger.steps}))
            check_memory(run.ledger, run.budget, self.workers)
            kept.save_if_due(self.epoch, self.index, evaluated=kept.evaluate_if_due(self.spent()))
        if self.spent() < 1:
            run.log.ended = Ended.FLAT if kept.is_flat() else None
            if not run.log.ended:  # a pass over the data did not fit: these are the weights of the whole budget
                kept.evaluate_if_due(1.0)
        with run.ledger.stage("index"):  # after the last check of the budget nothing is charged to it
            self._finish()
        if last:
            charging.release()
            with charging.counted("mine"), torch.no_grad():
                self.method.end(all_embeddings(self.method))

    def _last_passes(self) -> list[np.ndarray]:
        """The lengths of the texts of the method's last passes."""
        lengths = {"queries": self.method.queries.lengths, "labels": self.method.labels.lengths}
        return [lengths[texts] for texts in self.method.last_passes]

    @property
    def budget(self) -> Budget:
        """What the steps may spend: the budget of the trial without the room for last passes."""
        return self.method.charging.budget or self.run.budget

    def _spent_first(self) -> str:
        """Which limit preparing and first passes used up."""
        ledger, limits = self.run.ledger, self.run.budget.spending()
        name = max(limits, key=lambda name: ledger.spent(name) / limits[name])
        spent = ledger.spent(name)
        what = f"{spent:,.{'0f' if spent >= 1000 else '4g'}} {name.replace('_', ' ')}"
        return f"preparing and first passes took {what} of {limits[name]:,.10g}"

    def _finish(self) -> None:
        """Note the memory, keep the last weights for a resumed trial, and go on with the chosen ones."""
        import torch

        run, kept = self.run, self.checkpoints
        for name, peak in (("worker_bytes", peak_memory()), ("worker_device_bytes", device_peak_memory())):
            if peak is not None:
                bytes_here = torch.tensor([peak], device=default_device())
                setattr(run.ledger, name, self.workers.gather(bytes_here).tolist())
        kept.save(self.epoch, self.index)  # a kill while it indexes or predicts must not cost the last minute
        kept.restore_best()

    def spent(self) -> float:
        """The fraction of the budget that is spent, by the clock of worker 0."""
        return self.workers.of_worker_0(self.run.ledger.fraction(self.budget))

    def _refreshed(self) -> bool:
        """Let the sampler look at the embeddings of everything, which is charged; whether training continues."""
        method = self.method

        def refresh() -> None:
            with method.charging.counted("mine"):
                self.sampler.refresh(self.epoch, all_embeddings(method, mining=True))

        goes_on = method.charging.refreshed(refresh, skips=method.skips_refreshes)
        return goes_on and (self.spent() < 1 or not self.run.ledger.steps)

    def step(self, before: float) -> dict[str, float]:
        """Train on the next batch, `before` of the budget being spent; the cost is charged before the update.

        The sampler gives a batch, the gradient cache embeds it, the loss gives the embeddings' gradients, the cache
        pushes them through the encoder, the update applies them at the schedule's rate.
        """
        import torch

        method, run, ledger = self.method, self.run, self.run.ledger
        where = f"step {ledger.steps}, epoch {self.epoch}, batch {self.index}"
        method.encoder.train()
        method.modules.train()
        coarse = tensor_float32(method.config.precision == "bf16")
        with ledger.between_checks(run.budget), ledger.stage("train"), coarse:
            with counting() as counted:
                batch = self.batches.batch(self.epoch, self.index)
                embedded = self.embedder.embed(batch, derive_seed(run.seed, "dropout", ledger.steps))
                # Every worker draws alike: what all workers do to the queries must agree.
                seed_random(derive_seed(run.seed, "loss", ledger.steps), embedded.queries_BD.device)
                loss = method.loss(embedded.queries_BD, embedded.labels_SD, embedded.share)
                forward = counted.module_flops
                # Kernels that multiply nothing are not worth watching.
                with nullcontext() if forward or self.backward_multiplies else by_formula():
                    loss.backward()  # type: ignore[no-untyped-call]
            if self.backward_multiplies and not forward:
                self.backward_multiplies = counted.module_flops > 0
            for cached in embedded.cached:
                cached.backward()
            lengths = method.queries.lengths, method.labels.lengths if method.encodes_labels else None
            method.charging.charge(method.charging.step_cost(embedded.whole, *lengths, counted))
            self._advance()
            # The step's place on the schedule is its middle: neither the first nor the last step has rate 0.
            rate = warmup_linear((before + min(1.0, self.spent())) / 2, method.config.warmup)
            # All that the host asks the device in a step, at once: it waits until the gradients are there.
            whole = self.workers.sum(loss.detach().double())
            value, norm = torch.stack([whole, self.update.gradient_norm()]).tolist()
            for what, number in (("loss", value), ("norm of the gradient", norm)):
                if not math.isfinite(number):
                    hint = "lower learning_rate or raise temperature"
                    raise NonFiniteLossError(f"the {what} is {number} at {where}: {hint}")
            self.update.apply(rate, norm)
            self._after_step(embedded)
        return {"loss": value, "gradient": norm}

    def _after_step(self, embedded: EmbeddedBatch) -> None:
        """Show the step's vectors to a sampler that observes, and to a method that asks for them; this is charged."""
        import torch

        method, observes = self.method, self.sampler.observes
        if not observes and type(method).after_step is EmbeddingMethod.after_step:
            return
        with torch.no_grad(), counting() as counted:
            if observes:
                self.sampler.observe(embedded.whole, *self.embedder.mining_vectors(embedded))
            method.after_step(embedded.share, embedded.queries_BD.detach(), embedded.labels_SD.detach())
        method.charging.counts(counted)

    def _advance(self) -> None:
        """Move on to the next batch, of the next epoch after the last one."""
        self.index += 1
        batches = self.sampler.num_batches(self.epoch)
        self.run.ledger.epochs = self.epoch + self.index / batches
        if self.index == batches:
            self.epoch, self.index = self.epoch + 1, 0
