"""The contract of a method that ranks labels by inner products of vectors: its settings, its modules, its vectors.

Legend: L labels, S labels that this worker holds, N texts, D dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import Field

from xmcbench.data.dataset import TrainingData
from xmcbench.data.extent import Extent
from xmcbench.engine.device import default_device
from xmcbench.engine.encoders.settings import STATIC, EncoderConfig, Precision
from xmcbench.engine.model import Model
from xmcbench.engine.search.index import Backend
from xmcbench.trial.budget import Budget, Ledger
from xmcbench.trial.method import Method
from xmcbench.trial.run import Run
from xmcbench.trial.versions import ENGINE_VERSION

if TYPE_CHECKING:
    from torch import Tensor, nn

    from xmcbench.data.tokens import Tokens
    from xmcbench.engine.charging import Charging
    from xmcbench.engine.sampling.embeddings import Embeddings


class VectorMethod(Model, Method):
    """A method that scores a label for a query by the inner product of two vectors made from embeddings."""

    many_workers: ClassVar[bool] = True
    late_imports: ClassVar[tuple[str, ...]] = (
        "transformers.generation.utils",
        "transformers.masking_utils",
        "transformers.modeling_layers",
        "transformers.modeling_utils",
        "transformers.models.auto.modeling_auto",
        "xmcbench.engine.assembly",
    )
    encodes_labels: ClassVar[bool] = True
    """Whether label texts go through the encoder; without, the embeddings of S labels are [S, 0]."""

    class Config(Method.Config):
        """Settings every dual encoder has."""

        encoder: EncoderConfig = Field(
            EncoderConfig(), description="the text encoder: a name, or a mapping of the settings of encoders"
        )
        precision: Precision = Field(
            "float32",
            description="precision of matrix products in the encoder; bf16 is autocast; embeddings, scores and "
            "losses are float32",
        )
        max_query_length: int | None = Field(
            None, gt=1, description="tokens to which queries are truncated; null: the dataset card's `max_length`"
        )
        max_label_length: int | None = Field(
            None, gt=1, description="tokens to which labels are truncated; null: the card's `max_label_length`"
        )
        search: Backend = Field(
            "exact",
            description="search of predictions: exact, faiss-flat (same results), or faiss-hnsw (a graph) or faiss-ivf "
            "(clusters), which miss some labels",
        )
        micro_batch_tokens: int | None = Field(
            None,
            gt=0,
            description="padded tokens in one pass of the encoder; null: 2,048 on a CPU (bf16: 8,192), 65,536 on a GPU "
            "and for static",
        )

        def micro_batch_on(self, kind: str) -> int:
            """Padded tokens through the encoder at once on a device of that kind: `cpu`, or that of a GPU.

            A GPU needs large micro-batches to be busy. On a CPU small micro-batches waste the least on padding, but
            in bf16 each new shape of a product has a setup cost, so fewer and larger micro-batches are faster.
            """
            on_cpu = 8_192 if self.precision == "bf16" else 2_048
            large = kind != "cpu" or self.encoder.name == STATIC  # which pads nothing, and keeps a vector a text
            return self.micro_batch_tokens or (65_536 if large else on_cpu)

    config: VectorMethod.Config
    index_LD: Tensor
    query_length: int
    label_length: int
    # Set while the method is fitted.
    run: Run
    charging: Charging
    queries: Tokens  # of the training queries
    labels: Tokens

    @property
    def precision(self) -> Precision:  # type: ignore[override]
        """Of matrix products in the encoder."""
        return self.config.precision

    @cached_property
    def micro_batch_tokens(self) -> int:  # type: ignore[override]
        """Padded tokens through the encoder at once, on this process's device."""
        return self.config.micro_batch_on(default_device().type)

    @classmethod
    def versions(cls, config: Method.Config) -> dict[str, int]:
        return {**super().versions(config), "engine": ENGINE_VERSION}

    @classmethod
    def following(cls, given: Mapping[str, Any], data: Extent, budget: Budget) -> dict[str, Any]:
        """The lengths to which texts are cut follow the data where neither suite nor card says them."""
        limits = {"max_query_length": data.query_limit, "max_label_length": data.label_limit}
        stated = {name: limit for name, limit in limits.items() if limit is not None}
        return stated | super().following(given, data, budget)

    def charging_to(self, ledger: Ledger, budget: Budget | None = None) -> Charging:
        """The `Charging` that enters the costs of this model's encoder and scores into `ledger`, within `budget`."""
        from xmcbench.engine.charging import Charging
        from xmcbench.engine.workers import current_workers

        return Charging(ledger, self.encoder.flops, current_workers(), budget)

    def build_modules(self, train: TrainingData) -> nn.Module:  # noqa: ARG002
        """The method's own modules over embeddings, trained with the encoder. None by default."""
        from torch import nn

        return nn.Module()

    def load_modules(self, tensors: dict[str, Tensor]) -> nn.Module:
        """The modules that `build_modules` made, from their saved tensors. A method with modules overrides both."""
        from torch import nn

        if tensors:
            raise TypeError(f"{type(self).__name__} has modules of its own, so it has to define load_modules")
        return nn.Module()

    def query_vectors(self, embeddings_ND: Tensor) -> Tensor:
        """The vectors [N, V] that queries are scored with, from their embeddings [N, D], on one device."""
        return embeddings_ND

    def label_vectors(self, embeddings_SD: Tensor, label_ids: np.ndarray) -> Tensor:  # noqa: ARG002
        """The vectors [S, V] that labels are scored with, from their embeddings [S, D] and ids [S] (numpy, int)."""
        return embeddings_SD

    def mining_query_vectors(self, embeddings_ND: Tensor) -> Tensor:
        """The vectors [N, V] of queries that samplers search with: by default those for scoring."""
        return self.query_vectors(embeddings_ND)

    def mining_label_vectors(self, embeddings_SD: Tensor, label_ids: np.ndarray) -> Tensor:
        """The vectors [S, V] of the labels `label_ids` [S] among which samplers search."""
        return self.label_vectors(embeddings_SD, label_ids)

    def label_groups(self, train: TrainingData, embeddings: Embeddings) -> np.ndarray | None:  # noqa: ARG002
        """[L] group numbers: labels of one group are held by one worker. None puts each label into its own group.

        For a method whose labels share vectors; `shard.groups_L` has the groups afterwards. `embeddings` are those of
        the encoder before training. Every worker calls this; a resumed run reuses the groups of its first start.
        """
        return None
