"""A method to train in tests: a dual encoder whose sampler and loss are settings."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from xmcbench import encoders, losses, sampling
from xmcbench.data.dataset import TrainingData
from xmcbench.engine.embedding_method import EmbeddingMethod
from xmcbench.engine.tables.label_table import LabelTable
from xmcbench.engine.tables.settings import TableConfig
from xmcbench.trial.method import MethodInfo


class Toy(EmbeddingMethod):
    """Softmax over a pool, through a module of its own that has dropout."""

    name = "toy"
    info = MethodInfo(summary="a method for tests")

    class Config(EmbeddingMethod.Config):
        negatives: Literal["in-batch", "hard", "all", "clustered", "fresh", "cached"] = "in-batch"
        head_dropout: float = 0.0
        blow_up_at: int = -1  # the call of `loss` that answers with NaN
        classifier: bool = False  # a row a label beside the label's text

    config: Toy.Config
    calls = 0

    def sampler(self, train: TrainingData, seed: int) -> sampling.Sampler:
        parts: dict[str, dict[str, Any]] = {
            "in-batch": {},
            "hard": {"negatives": [sampling.Nearest(shortlist=8, start=1, every=1)]},
            "all": {"negatives": [sampling.AllLabels()]},
            "clustered": {"order": sampling.Clusters(size=4, start=1, every=1, growth=(2,))},
            "fresh": {"order": sampling.Clusters(size=4, start=1, every=1, vectors="fresh")},
            "cached": {"negatives": [sampling.Cached(5)]},
        }
        common = {"batch_size": self.config.batch_size, "seed": seed}
        return sampling.Sampler(train, **common, **parts[self.config.negatives])

    def build_modules(self, train: TrainingData) -> nn.Module:  # noqa: ARG002
        size = self.encoder.dimension
        modules = {"head": nn.Sequential(nn.Linear(size, size), nn.Dropout(self.config.head_dropout))}
        if self.config.classifier:
            rows = torch.from_numpy(self.shard.label_ids)
            modules["classifier"] = LabelTable(rows, size, TableConfig(learning_rate=0.01, weight_decay=0.1), seed=5)
            modules["classifier"].fill(lambda block, generator: block.normal_(0, 0.1, generator=generator))
        return nn.ModuleDict(modules)

    def query_vectors(self, embeddings_ND: Tensor) -> Tensor:
        return self.modules["head"](embeddings_ND)

    def label_vectors(self, embeddings_SD: Tensor, label_ids: np.ndarray) -> Tensor:
        if not self.config.classifier:
            return embeddings_SD
        table = self.modules["classifier"]
        return embeddings_SD + table(table.rows_of(torch.from_numpy(label_ids)))

    def loss(self, queries_BD: Tensor, labels_SD: Tensor, batch: sampling.Batch) -> Tensor:
        self.calls += 1
        positives = batch.positives
        own, seed = self.shard.queries(len(queries_BD)), int(torch.randint(2**62, ()))
        with encoders.row_dropout(seed, "query", batch.query_ids[own]):
            queries_BD = self.shard.workers.gather(self.query_vectors(queries_BD[own]))
        loss = losses.decoupled_softmax(queries_BD, labels_SD, positives, positives.weights("one"), temperature=0.1)
        if self.config.classifier:
            table = self.modules["classifier"]
            rows_SD = table(table.rows_of(torch.from_numpy(batch.label_ids)))
            loss = loss + losses.binary_cross_entropy(queries_BD, rows_SD, positives, temperature=0.5)
        return loss * torch.nan if self.calls - 1 == self.config.blow_up_at else loss


OF_STATIC = {"words": "random", "dimension": 24, "word_weights": True, "linear": 32}
STATIC = "static"  # in place of a transformer's folder: words without context, all parts of which learn


def toy(encoder: str, **settings: Any) -> Toy:
    """A `Toy` with batches of 20 (three an epoch) and dropout in encoder and head, unless told otherwise."""
    encoders: dict[str, Any] = {"name": encoder, "dropout": settings.pop("dropout", 0.1)}
    encoders |= OF_STATIC if encoder == STATIC else {"hidden_dropout": 0.1}
    return Toy(Toy.Config(**({"encoder": encoders, "batch_size": 20, "head_dropout": 0.1} | settings)))
