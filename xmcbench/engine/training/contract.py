"""The contract of a trained method: its sampler, its loss, and its hooks around training.

Legend: B queries of a batch, S labels of its pool, D dimensions.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from xmcbench.data.dataset import TrainingData
from xmcbench.data.extent import Extent
from xmcbench.engine.dual_encoder import DualEncoder
from xmcbench.engine.sampling.settings import OF_CLUSTERS
from xmcbench.engine.training.defaults import epochs_of, follow
from xmcbench.trial.budget import Budget
from xmcbench.trial.method import Method

if TYPE_CHECKING:
    from torch import Tensor

    from xmcbench.data.tokens import Tokens
    from xmcbench.engine.sampling.batch import Batch
    from xmcbench.engine.sampling.embeddings import Embeddings
    from xmcbench.engine.sampling.sampler import Sampler

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


class TrainedMethod(DualEncoder):
    """The hooks that the training loop calls; `EmbeddingMethod` adds the loop itself."""

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

        refresh_beyond_budget: Literal["end", "skip"] = Field(
            "end",
            description="if mining or clustering does not fit into the rest of the budget: end training, or skip "
            "it and keep the old shortlists and clusters",
        )

    config: TrainedMethod.Config

    @classmethod
    def following(cls, given: Mapping[str, Any], data: Extent, budget: Budget) -> dict[str, Any]:
        """Batch, rate and schedules of mining follow data and budget (`xmcbench.engine.training.defaults`)."""
        given = super().following(given, data, budget)
        config = cls.Config.model_validate(given)
        labels = None if cls.not_planned else partial(cls.labels_of_step, config, data.labels)
        own = config.model_dump(exclude=set(config.unused()))
        return follow(own, given, cls.in_few_epochs, cls.least_steps, data, budget, labels) | given

    @classmethod
    def labels_of_step(cls, config: TrainedMethod.Config, num_labels: int, batch_size: int) -> float:
        """About how many label texts a step encodes: those drawn for its queries, unless a method says otherwise."""
        drawn = sum(getattr(config, name, 0) for name in LABELS_OF_QUERY if name not in config.unused())
        return min(num_labels, batch_size * max(1, drawn)) * cls.encodes_labels

    @classmethod
    def search_space(cls, config: Method.Config) -> dict[str, Any]:
        """Rate and batch decide most: five times as much and as little, twice and half.

        What follows `in_few_epochs` is tried beside the method's own.
        """
        assert isinstance(config, TrainedMethod.Config)
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
        epochs = epochs_of(budget, data, size, self.labels_of_step(self.config, data.labels, size))
        return {"epochs": epochs, "steps": epochs * data.queries / size, **first}

    def idle_parts(self, spent: Mapping[str, Any]) -> dict[str, frozenset[str]]:
        own, epochs = self.config.model_dump(exclude=set(self.config.unused())), spent.get("epochs", math.inf)
        return {
            f"{part} ({start} {own[start]}, {epochs:.3g} epochs)": settings
            for part, (start, settings) in SCHEDULED.items()
            if own.get(start, 0) >= epochs
        }

    @property
    def first_passes(self) -> tuple[Literal["queries", "labels"], ...]:
        """The texts whose embeddings `label_groups` and `begin` ask for, before the first step."""
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

    def index(self, labels: Tokens) -> None:
        """Compute what `predict` searches, with the current weights. `labels` are those that are trained on."""
        self.index_LD = self.all_label_vectors(labels)

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
                "params": [p for p, own in rates.items() if own == rate and (p.ndim > 1) == matrix],
                "lr": rate,
                "weight_decay": self.config.weight_decay * matrix,
            }
            for matrix in (True, False)
            for rate in dict.fromkeys(rates.values())
        ]
        return [group for group in groups if group["params"]]
