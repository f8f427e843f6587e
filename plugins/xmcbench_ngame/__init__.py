"""NGAME: a dual encoder, batches that bring their own hard negatives (Dahiya et al., WSDM 2023)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field
from torch import Tensor

from xmcbench import EmbeddingMethod, MethodInfo, TrainingData, hookimpl, losses, sampling

GROWTH = [10, 20, 25, 50, 75, 100, 125, 150, 200]
OF_CLUSTERS = frozenset({"cluster_size", "cluster_start", "cluster_every", "cluster_growth", "cluster_vectors"})


class NGAME(EmbeddingMethod):
    """Queries that lie close to each other meet in a batch, so that each other's positives are hard negatives."""

    name = "ngame"
    info = MethodInfo(
        summary="dual encoder, triplet loss, batches of clustered queries",
        citation="Dahiya et al., NGAME: Negative Mining-aware Mini-batching for Extreme Classification, WSDM 2023",
        needs=("label texts",),
    )

    class Config(EmbeddingMethod.Config):
        batch_size: int = Field(1600, gt=0, description="queries a step")
        learning_rate: float = Field(2e-4, gt=0)
        margin: float = Field(0.3, ge=0, description="by which a positive's score is to exceed a negative's")
        hardest: int = Field(10, gt=0, description="negatives of a query in the loss")
        weight_temperature: float | None = Field(0.1, gt=0, description="of the softmax that weighs negatives; or null")
        bystanders: Literal["zero logit", "excluded"] = Field(
            "zero logit", description="what negatives that keep the margin are in that softmax"
        )
        positives_per_query: int = Field(1, gt=0, description="positives of a query drawn into the pool")
        batches: Literal["clusters", "shuffled"] = "clusters"
        cluster_size: int = Field(1, gt=0, description="most queries of a cluster, before it grows")
        cluster_start: int = Field(10, ge=0, description="first epoch with clusters")
        cluster_every: int = Field(5, gt=0, description="epochs that clusters serve")
        cluster_growth: list[int] = Field(GROWTH, description="epochs from which clusters are twice as large")
        cluster_vectors: Literal["bank", "fresh"] = Field("bank", description="from training steps, or embedded anew")

        def unused(self) -> frozenset[str]:
            of_batches = OF_CLUSTERS if self.batches == "shuffled" else frozenset()
            return of_batches | ({"bystanders"} if self.weight_temperature is None else set())

    config: NGAME.Config

    def sampler(self, train: TrainingData, seed: int) -> sampling.Sampler:
        settings = self.config
        order = None
        if settings.batches == "clusters":
            order = sampling.Clusters(
                settings.cluster_size,
                settings.cluster_start,
                settings.cluster_every,
                tuple(settings.cluster_growth),
                settings.cluster_vectors,
            )
        drawn = sampling.Draw(settings.positives_per_query)
        return sampling.Sampler(train, batch_size=settings.batch_size, seed=seed, order=order, positives=drawn)

    def loss(self, queries_BD: Tensor, labels_SD: Tensor, batch: sampling.Batch) -> Tensor:
        settings = self.config
        return losses.triplet(
            queries_BD,
            labels_SD,
            batch.positives,
            margin=settings.margin,
            hardest=settings.hardest,
            weight_temperature=settings.weight_temperature,
            bystanders=settings.bystanders,
            over_negatives="mean",
        )


@hookimpl
def register_methods(register: Callable[[type[Any]], None]) -> None:
    register(NGAME)
