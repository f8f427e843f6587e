"""NGAME: a dual encoder trained on batches of similar queries (Dahiya et al., WSDM 2023).

Legend: B queries of a batch, S labels of its pool, D dimensions.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from xmcbench import Budget, EmbeddingMethod, Method, MethodInfo, Run, data, hookimpl, losses, sampling

if TYPE_CHECKING:
    from torch import Tensor


FEWEST_POSITIVES = 5  # drawn of a query where one label dominates


class ClusteredTriplets(EmbeddingMethod):
    """What NGAME and DEXA share: batches of clustered queries, positives sampled uniformly, settings of AdamW."""

    class Config(sampling.ClusteredBatches, losses.TripletLoss, EmbeddingMethod.Config):
        batch_size: int = Field(1600, gt=0, description="queries per step")
        learning_rate: float = Field(2e-4, gt=0, description="peak of the schedule")
        adam_epsilon: float = Field(1e-6, gt=0, description="epsilon of AdamW")
        positives_per_query: int = Field(1, gt=0, description="positives of a query sampled into the pool, uniformly")

    config: ClusteredTriplets.Config

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of AdamW, with this method's epsilon."""
        return [{**group, "eps": self.config.adam_epsilon} for group in super().parameter_groups()]

    def sampler(self, train: data.TrainingData, seed: int) -> sampling.Sampler:
        settings = self.config
        order, drawn = settings.order(), sampling.Draw(settings.positives_per_query)
        return sampling.Sampler(train, batch_size=settings.batch_size, seed=seed, order=order, positives=drawn)


class NGAME(ClusteredTriplets):
    """Similar queries form a batch, so that the positives of each are hard negatives of the others."""

    name = "ngame"
    info = MethodInfo(
        summary="dual encoder, triplet loss, batches of clustered queries",
        citation="Dahiya et al., NGAME: Negative Mining-aware Mini-batching for Extreme Classification, WSDM 2023",
        needs=("label texts",),
        version=3,  # 2: AdamW's epsilon is 1e-6; 3: a query's positive is the label that was drawn for it
    )

    class Config(ClusteredTriplets.Config):
        first_hardest: int | None = Field(
            100,
            gt=0,
            description="`hardest` of the first step, from which it falls geometrically to `hardest`, so that no "
            "encoder collapses; null: no schedule, as in the paper",
        )
        hardest_share: float = Field(
            0.5, gt=0, le=1, description="share of the budget in which it falls; with `first_hardest`"
        )

        def unused(self) -> frozenset[str]:
            return super().unused() | ({"hardest_share"} if self.first_hardest is None else set())

    config: NGAME.Config
    # Larger batches are worth the steps: a query's negatives are the labels of its batch alone.
    least_steps = 200
    # The pool holds more true labels of a query than the one drawn for it, from which few epochs learn little.
    in_few_epochs: ClassVar = {"positives": "all"}

    @classmethod
    def following(cls, given: Mapping[str, Any], data: data.Extent, budget: Budget) -> dict[str, Any]:
        """Where one label dominates, it would be sampled too rarely as one of several: most labels are sampled."""
        drawn = max(FEWEST_POSITIVES, math.ceil(2 * data.labels_per_query))
        own = {"positives_per_query": drawn} if data.dominated else {}
        return super().following({**own, **given}, data, budget)

    @classmethod
    def search_space(cls, config: Method.Config) -> dict[str, Any]:
        assert isinstance(config, NGAME.Config)
        margin = config.margin
        return super().search_space(config) | {"margin": {"low": margin / 5, "high": 2 * margin, "log": True}}

    run: Run | None = None  # set while a trial trains; a plan has none

    def loss(self, queries_BD: Tensor, labels_SD: Tensor, batch: sampling.Batch) -> Tensor:
        """The weighted triplet loss over the `hardest` negatives of this step."""
        settings = self.config.model_copy(update={"hardest": self.hardest()})
        loss = settings.triplet(queries_BD, labels_SD, batch.positives)
        if self.run is not None and self.run.ledger.steps == 0:
            self._warn_of_collapse(settings, loss.detach(), queries_BD, labels_SD, batch)
        return loss

    def hardest(self) -> int:
        """Negatives per query in the loss of this step: from `first_hardest` to `hardest`, geometrically."""
        settings, run = self.config, self.run
        if settings.first_hardest is None:
            return settings.hardest
        if run is None:  # a plan: the most that a step has
            return max(settings.first_hardest, settings.hardest)
        # The fastest clock of all workers counts, so that all take the same number of negatives.
        fraction = self.shard.workers.largest(run.ledger.fraction(run.budget))
        place = min(1.0, fraction / settings.hardest_share)
        return round(settings.first_hardest ** (1 - place) * settings.hardest**place)

    def _warn_of_collapse(
        self, settings: NGAME.Config, loss: Tensor, queries_BD: Tensor, labels_SD: Tensor, batch: sampling.Batch
    ) -> None:
        """Warn if the first loss is above that of a collapsed encoder, which maps all texts to the same vector.

        Gradient descent can then lead to the collapse, and stays there.
        """
        import torch

        workers = self.shard.workers
        point = (torch.ones_like(each_ND) / each_ND.shape[1] ** 0.5 for each_ND in (queries_BD, labels_SD))
        collapsed = float(workers.sum(settings.triplet(*point, batch.positives).detach()))
        start = settings.margin * float(workers.sum(loss)) / collapsed if collapsed else 0.0
        if start > settings.margin and workers.rank == 0:
            problem = f"collapse possible: initial loss x hardest {start:.3g} > margin {settings.margin:g}"
            print(f"warning: {problem}; raise `hardest` or warm up (first_hardest)", file=sys.stderr, flush=True)


@hookimpl
def register_methods(register: Callable[[type[Any]], None]) -> None:
    register(NGAME)
