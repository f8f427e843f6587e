"""NGAME: a dual encoder, batches that bring their own hard negatives (Dahiya et al., WSDM 2023)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import Field
from torch import Tensor

from xmcbench import EmbeddingMethod, MethodInfo, TrainingData, hookimpl, losses, sampling


class NGAME(EmbeddingMethod):
    """Queries that lie close to each other meet in a batch, so that each other's positives are hard negatives."""

    name = "ngame"
    info = MethodInfo(
        summary="dual encoder, triplet loss, batches of clustered queries",
        citation="Dahiya et al., NGAME: Negative Mining-aware Mini-batching for Extreme Classification, WSDM 2023",
        needs=("label texts",),
    )

    class Config(sampling.ClusteredBatches, losses.TripletLoss, EmbeddingMethod.Config):
        batch_size: int = Field(1600, gt=0, description="queries a step")
        learning_rate: float = Field(2e-4, gt=0)
        adam_epsilon: float = Field(1e-6, gt=0, description="epsilon of AdamW")
        positives_per_query: int = Field(1, gt=0, description="positives of a query drawn into the pool")

    config: NGAME.Config

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Groups for AdamW, with this method's epsilon."""
        return [{**group, "eps": self.config.adam_epsilon} for group in super().parameter_groups()]

    def sampler(self, train: TrainingData, seed: int) -> sampling.Sampler:
        settings = self.config
        order, drawn = settings.order(), sampling.Draw(settings.positives_per_query)
        return sampling.Sampler(train, batch_size=settings.batch_size, seed=seed, order=order, positives=drawn)

    def loss(self, queries_BD: Tensor, labels_SD: Tensor, batch: sampling.Batch) -> Tensor:
        return self.config.triplet(queries_BD, labels_SD, batch.positives)


@hookimpl
def register_methods(register: Callable[[type[Any]], None]) -> None:
    register(NGAME)
