"""A method to train in tests: a dual encoder whose sampler and loss are settings."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from xmcbench import losses, sampling
from xmcbench.data.dataset import TrainingData
from xmcbench.embedding_method import EmbeddingMethod
from xmcbench.method import MethodInfo


class Toy(EmbeddingMethod):
    """Softmax over a pool, through a module of its own that has dropout."""

    name = "toy"
    info = MethodInfo(summary="a method for tests")

    class Config(EmbeddingMethod.Config):
        negatives: Literal["in-batch", "hard", "all"] = "in-batch"
        head_dropout: float = 0.0
        blow_up_at: int = -1  # the call of `loss` that answers with NaN

    config: Toy.Config
    calls = 0

    def sampler(self, train: TrainingData, seed: int) -> sampling.Sampler:
        common: dict[str, Any] = {"batch_size": self.config.batch_size, "seed": seed}
        match self.config.negatives:
            case "all":
                return sampling.AllLabels(train, **common)
            case "in-batch":
                return sampling.InBatch(train, **common)
        return sampling.HardNegatives(train, **common, shortlist=8, start=1, every=1)

    def build_modules(self, train: TrainingData) -> nn.Module:  # noqa: ARG002
        size = self.encoder.dimension
        return nn.ModuleDict({"head": nn.Sequential(nn.Linear(size, size), nn.Dropout(self.config.head_dropout))})

    def query_vectors(self, embeddings_ND: Tensor) -> Tensor:
        return self.modules["head"](embeddings_ND)

    def loss(self, queries_BD: Tensor, labels_SD: Tensor, batch: sampling.Batch) -> Tensor:
        self.calls += 1
        if self.calls - 1 == self.config.blow_up_at:
            return queries_BD.sum() * torch.nan
        positives = batch.positives
        queries_BD = self.query_vectors(queries_BD)
        return losses.decoupled_softmax(queries_BD, labels_SD, positives, positives.one_sampled(), temperature=0.1)


def toy(encoder: str, **settings: Any) -> Toy:
    """A `Toy` with batches of 20 (three an epoch) and dropout in encoder and head, unless told otherwise."""
    encoders = {"name": encoder, "dropout": settings.pop("dropout", 0.1), "hidden_dropout": 0.1}
    return Toy(Toy.Config(**({"encoder": encoders, "batch_size": 20, "head_dropout": 0.1} | settings)))
