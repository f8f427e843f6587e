"""DEXA: NGAME's training with auxiliary vectors that clusters of labels share (Dahiya et al., KDD 2023).

Legend: B queries, S labels of the pool (of this worker), L labels, V auxiliary vectors, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from xmcbench import MethodInfo, data, hookimpl, sampling, tables
from xmcbench_plugins.ngame import ClusteredTriplets

if TYPE_CHECKING:
    from torch import Tensor, nn


class DEXA(ClusteredTriplets):
    """A label's vector is its text's embedding plus an auxiliary vector, which labels with similar texts share."""

    name = "dexa"
    info = MethodInfo(
        summary="dual encoder with auxiliary vectors of label clusters, triplet loss, batches of clustered queries",
        citation="Dahiya et al., Deep Encoders with Auxiliary Parameters for Extreme Classification, KDD 2023",
        needs=("label texts",),
    )

    counted: ClassVar = {"auxiliary_vectors": ("labels",), "head_labels": ("labels",)}

    class Config(ClusteredTriplets.Config):
        auxiliary_vectors: int = Field(
            65_536,
            gt=0,
            description="a power of two: this many clusters of labels, by balanced 2-means of their texts before "
            "training, share a vector each; at most as many labels have their own",
        )
        head_labels: int = Field(0, ge=0, description="labels with the most training queries, which get their own")

        @model_validator(mode="after")
        def _power_of_two(self) -> DEXA.Config:
            if self.auxiliary_vectors & (self.auxiliary_vectors - 1):
                raise ValueError(f"auxiliary_vectors must be a power of two, found {self.auxiliary_vectors}")
            return self

    config: DEXA.Config

    @property
    def first_passes(self) -> tuple[Literal["queries", "labels"], ...]:
        return ("labels",)

    def label_groups(self, train: data.TrainingData, embeddings: sampling.Embeddings) -> np.ndarray:
        """[L] the number of each label's auxiliary vector: those of clusters first, then those of head labels."""
        import torch

        counts_L = np.bincount(train.targets.indices, minlength=train.num_labels)
        by_count_L = np.argsort(-counts_L, kind="stable")
        head, tail = np.sort(by_count_L[: self.config.head_labels]), np.sort(by_count_L[self.config.head_labels :])
        groups_L = np.zeros(train.num_labels, np.int64)
        if len(tail):
            rng = np.random.default_rng(torch.initial_seed())
            tail_SD = embeddings.labels()[torch.from_numpy(tail)]
            groups_L[tail] = sampling.balanced_clusters(tail_SD, self.config.auxiliary_vectors, rng)
        groups_L[head] = (groups_L[tail].max() + 1 if len(tail) else 0) + np.arange(len(head))
        return groups_L

    def build_modules(self, train: data.TrainingData) -> nn.Module:  # noqa: ARG002
        from torch import nn

        shard, size = self.shard, self.encoder.dimension
        bound = (6 / (int(shard.groups_L.max()) + 1 + size)) ** 0.5  # Xavier's, of the whole bank
        bank = tables.LabelTable(
            np.unique(shard.groups_L[shard.label_ids]),
            size,
            tables.TableConfig(learning_rate=self.config.learning_rate),
        )
        bank.fill(lambda block_VD, rng: block_VD.uniform_(-bound, bound, generator=rng))
        return nn.ModuleDict({"auxiliary": bank})

    def load_modules(self, tensors: dict[str, Tensor]) -> nn.Module:  # noqa: ARG002 (the sums are the index)
        from torch import nn

        return nn.Module()

    def label_vectors(self, embeddings_SD: Tensor, label_ids: np.ndarray) -> Tensor:
        """[S, D] text embedding plus auxiliary vector, of length 1."""
        from torch.nn.functional import normalize

        bank = self.tables()["auxiliary"]
        return normalize(embeddings_SD + bank(bank.rows_of(self.shard.groups_L[label_ids])), dim=1)

    def mining_label_vectors(self, embeddings_SD: Tensor, label_ids: np.ndarray) -> Tensor:  # noqa: ARG002
        """[S, D] text embeddings: the sampler clusters queries only."""
        return embeddings_SD

    def loss(self, queries_BD: Tensor, labels_SD: Tensor, batch: sampling.Batch) -> Tensor:
        """NGAME's weighted triplet loss between queries and the sums."""
        return self.config.triplet(queries_BD, self.label_vectors(labels_SD, batch.label_ids), batch.positives)


@hookimpl
def register_methods(register: Callable[[type[Any]], None]) -> None:
    register(DEXA)
