"""Settings of losses, for methods that share them. Importing them costs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from xmcbench.trial.method import Settings

if TYPE_CHECKING:
    from torch import Tensor

    from xmcbench.engine.losses.positives import Positives


TrainedPositives = Annotated[
    Literal["drawn", "one", "one-by-draws", "all"],
    Field(
        description="positives in the loss of a query; drawn: those sampled for it, summed; one: one of its labels "
        "in the pool, sampled uniformly, also of those that are there for another query; one-by-draws: the same, with "
        "probability proportional to the number of queries that drew the label; all: its labels in the pool, summed"
    ),
]
"""The setting `positives` of a method; the default is the method's. `Positives.weights` has what it names."""


class TripletLoss(Settings):
    """Settings of the triplet loss of NGAME and LMTX: a base of a `Config`, besides `EmbeddingMethod.Config`."""

    positives: TrainedPositives = "drawn"
    margin: float = Field(0.3, ge=0, description="by which a positive's score should exceed a negative's")
    hardest: int = Field(10, gt=0, description="negatives of a query in the loss, the highest-scored of the pool")
    weight_temperature: float | None = Field(
        0.1, gt=0, description="of the softmax over scores that weighs the hinges of negatives; null weighs all alike"
    )
    bystanders: Literal["zero logit", "excluded"] = Field(
        "zero logit",
        description="negatives that keep the margin in that softmax: a zero logit, as in NGAME's public code, "
        "or excluded",
    )

    def triplet(self, queries_BD: Tensor, labels_SD: Tensor | None, positives: Positives) -> Tensor:
        """`losses.triplet` with these settings."""
        from xmcbench.engine.losses.triplet_loss import triplet

        settings = self.model_dump(include={"margin", "hardest", "weight_temperature", "bystanders"})
        weights_P = positives.weights(self.positives)
        return triplet(queries_BD, labels_SD, positives, weights_P, over_negatives="mean", **settings)

    def unused(self) -> frozenset[str]:
        return super().unused() | ({"bystanders"} if self.weight_temperature is None else set())
