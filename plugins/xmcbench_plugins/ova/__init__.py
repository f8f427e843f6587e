"""One-vs-all classification: one vector per label, binary cross-entropy over all labels (DEXML Eq. 2; Renee).

Legend: B queries, S labels (all that this worker holds), L labels, N queries, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy
from pydantic import Field

from xmcbench import Budget, EmbeddingMethod, Method, MethodInfo, data, encoders, hookimpl, losses, sampling, tables

if TYPE_CHECKING:
    from torch import Tensor, nn


ROW_RATE = 0.3  # of the rows, where a suite does not say: the best of 0.01, 0.1 and 0.3 on held-out queries
SPREAD = 0.02  # standard deviation of random rows (Renee)


class RawEncoderConfig(encoders.EncoderConfig):
    """An encoder without normalisation by default, so that logits are not bounded by 1."""

    normalize: bool = Field(default=False, description="scale embeddings to length 1")


class OvA(EmbeddingMethod):
    """A linear classifier per label on one text encoder. Label texts are not encoded."""

    name = "ova"
    info = MethodInfo(
        summary="one-vs-all classifier over all labels, binary cross-entropy",
        citation="Gupta et al., Dual-Encoders for Extreme Multi-Label Classification, ICLR 2024 (DistilBERT OvA); "
        "Jain et al., Renee: End-to-end Training of Extreme Classification Models, MLSys 2023",
        charges={"flops": 2},  # 2: rows in e4m3, whose scores are computed twice, and what their norm takes
    )
    encodes_labels = False
    # All rows learn in each step, and an epoch takes the same operations in batches of any size.
    least_steps = 2000

    class Config(EmbeddingMethod.Config):
        encoder: RawEncoderConfig = Field(
            RawEncoderConfig(), description="as for every dual encoder, but `normalize` is false unless it is set"
        )
        table: tables.TableConfig = Field(
            tables.TableConfig(), description="optimiser and storage of the rows: a label table"
        )
        rows: Literal["random", "label-embeddings"] = Field(
            "random",
            description="initial rows: normal with standard deviation 0.02, or the embeddings of the label texts "
            "before the first step (charged), scaled to length 1",
        )
        reduction: Literal["mean", "sum"] = Field(
            "mean",
            description="of the loss over the queries of a batch; sum is Renee's; over labels it is always a sum",
        )
        label_texts_as_queries: bool = Field(
            False, description="label texts are training queries too, each with its own label"
        )

    config: OvA.Config

    @classmethod
    def following(cls, given: Mapping[str, Any], data: data.Extent, budget: Budget) -> dict[str, Any]:
        """The rows begin at random, and have to learn much faster than the encoder."""
        return {"table": {"learning_rate": ROW_RATE}} | super().following(given, data, budget)

    @classmethod
    def search_space(cls, config: Method.Config) -> dict[str, Any]:
        rows = [{"learning_rate": rate} for rate in (0.01, 0.03, 0.1, 0.3)]
        return super().search_space(config) | {"table": rows}

    @classmethod
    def charge_versions(cls, config: Method.Config, limits: Collection[str]) -> dict[str, int]:
        """Those of `info`, where the rows are in e4m3."""
        assert isinstance(config, OvA.Config)
        return super().charge_versions(config, limits) if config.table.dtype == "e4m3" else {}

    @property
    def classifier(self) -> tables.LabelTable:
        return self.tables()["classifier"]

    def training_data(self, train: data.TrainingData) -> data.TrainingData:
        """With `label_texts_as_queries`, N + L queries. The last L are the label texts, each with its own label."""
        if not self.config.label_texts_as_queries:
            return train
        identity = scipy.sparse.eye_array(train.num_labels, dtype=np.float32, format="csr")
        nothing = scipy.sparse.csr_array(identity.shape, dtype=np.float32)
        return replace(
            train,
            texts=[*train.texts, *train.label_texts],
            targets=scipy.sparse.vstack([train.targets, identity], format="csr"),
            ignore=scipy.sparse.vstack([train.ignore, nothing], format="csr"),
        )

    def build_modules(self, train: data.TrainingData) -> nn.Module:  # noqa: ARG002
        from torch import nn

        table = tables.LabelTable(self.shard.label_ids, self.encoder.dimension, self.config.table)
        table.fill(lambda block_ND, generator: block_ND.normal_(0, SPREAD, generator=generator))
        return nn.ModuleDict({"classifier": table})

    def load_modules(self, tensors: dict[str, Tensor]) -> nn.Module:  # noqa: ARG002 (the rows are the index)
        from torch import nn

        return nn.Module()

    @property
    def first_passes(self) -> tuple[Literal["queries", "labels"], ...]:
        return ("labels",) if self.config.rows == "label-embeddings" else ()

    def begin(self, embeddings: sampling.Embeddings) -> None:
        from torch.nn.functional import normalize

        if self.config.rows == "label-embeddings":
            labels_LD = normalize(embeddings.labels(), dim=1)
            self.classifier.weight.copy_(labels_LD[self.classifier.row_ids])

    def label_vectors(self, embeddings_SD: Tensor, label_ids: np.ndarray) -> Tensor:  # noqa: ARG002
        return self.classifier.forward(self.classifier.rows_of(label_ids))

    def sampler(self, train: data.TrainingData, seed: int) -> sampling.Sampler:
        size = self.config.batch_size
        return sampling.Sampler(train, batch_size=size, seed=seed, negatives=(sampling.AllLabels(),))

    def loss(self, queries_BD: Tensor, labels_SD: Tensor, batch: sampling.Batch) -> Tensor:  # noqa: ARG002
        # The pool contains every label, so the worker's whole table is scored, without a copy.
        if self.config.table.dtype == "e4m3":  # which makes no gradient of all rows, either
            mean = losses.cross_entropy_of_rows(queries_BD, self.classifier, batch.positives)
        else:
            mean = losses.binary_cross_entropy(queries_BD, self.classifier(), batch.positives, temperature=1.0)
        return mean * len(batch.query_ids) if self.config.reduction == "sum" else mean


@hookimpl
def register_methods(register: Callable[[type[Any]], None]) -> None:
    register(OvA)
