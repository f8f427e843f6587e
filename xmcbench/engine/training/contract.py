"""Dual encoders that learn: they say what is their own, and the harness trains them.

Legend: B queries of a batch, S labels of its pool, D dimensions.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from pydantic import Field
from torch import Tensor

from xmcbench.data.dataset import TrainingData
from xmcbench.data.tokens import Tokens
from xmcbench.engine.dual_encoder import DualEncoder
from xmcbench.engine.sampling.batch import Batch
from xmcbench.engine.sampling.embeddings import Embeddings
from xmcbench.engine.sampling.sampler import Sampler


class TrainedMethod(DualEncoder):
    """A dual encoder trained on batches of a sampler by a loss over embeddings.

    A method supplies `sampler` and `loss`. One that has modules over the embeddings (projection heads, a classifier
    table) makes them in `build_modules`, and says in `query_vectors` and `label_vectors` what it multiplies.

    With several workers `loss` sees all queries of the batch and the labels that its worker holds, and returns its part
    of the loss; the losses of `xmcbench.losses` do so by themselves.
    """

    class Config(DualEncoder.Config):
        """Settings every trained dual encoder has."""

        batch_size: int = Field(1024, gt=0, description="queries a step")
        learning_rate: float = Field(3e-4, gt=0)
        weight_decay: float = Field(0.01, ge=0, description="not on biases and norms")
        warmup: float = Field(0.1, ge=0, lt=1, description="share of the budget in which the learning rate rises")
        clip_norm: float | None = Field(None, gt=0, description="largest norm of the gradient; null clips nothing")
        activation_gib: float = Field(4.0, ge=0, description="GiB of activations kept before a second pass is needed")

    config: TrainedMethod.Config

    def training_data(self, train: TrainingData) -> TrainingData:
        """What is trained on: `train`, unless the method adds to it. Labels stay as they are."""
        return train

    @abstractmethod
    def sampler(self, train: TrainingData, seed: int) -> Sampler:
        """Which queries make a batch, and which labels they are scored against."""

    @abstractmethod
    def loss(self, queries_BD: Tensor, labels_SD: Tensor, batch: Batch) -> Tensor:
        """Scalar loss of the embeddings of a batch's queries and pool. `batch.positives` is on their device."""

    def begin(self, embeddings: Embeddings) -> None:
        """Called before the first step with the encoder's embeddings of everything; what they cost is charged.

        Not when a run is resumed: what is made here goes into modules and tables, which checkpoints hold.
        """

    def after_step(self, batch: Batch, queries_BD: Tensor, labels_SD: Tensor) -> None:
        """Called after each step, for what a method keeps beside what is trained, with the step's embeddings, detached.

        Like those of `loss` they are of all queries, and of the labels that this worker holds.
        """

    def index(self, labels: Tokens) -> None:
        """Make what `predict` searches, with the weights as they are. `labels` are those that are trained on."""
        self.index_LD = self.all_label_vectors(labels)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Groups for AdamW: decay on matrices only, the learning rate in `lr`."""
        parameters = [p for m in (self.encoder, self.modules) for p in m.parameters() if p.requires_grad]
        rate, decay = self.config.learning_rate, self.config.weight_decay
        groups = [
            {"params": [p for p in parameters if p.ndim > 1], "lr": rate, "weight_decay": decay},
            {"params": [p for p in parameters if p.ndim <= 1], "lr": rate, "weight_decay": 0.0},
        ]
        return [group for group in groups if group["params"]]
