"""DEXML: dual encoders for extreme multi-label classification (Gupta et al., ICLR 2024).

Legend: B queries of a batch, S labels of its pool, L labels, D dimensions, P true pairs, R pairs of related queries,
X labels and queries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import not_
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from xmcbench import Budget, EmbeddingMethod, Method, MethodInfo, data, hookimpl, losses, sampling, upload

if TYPE_CHECKING:
    from torch import Tensor

BLUNT = 0.1  # temperature where one label dominates and negatives are few
FEW_NEGATIVES = ("in-batch", "hard")
# Settings that apply only with one value of another setting.
ONLY_WITH = {
    "negatives_per_query": ("negatives", "hard"),
    "shortlist": ("negatives", "hard"),
    "refresh_start": ("negatives", "hard"),
    "refresh_every": ("negatives", "hard"),
    "cached_negatives": ("negatives", "embedding-cache"),
    "k": ("loss", "soft-top-k"),
    "alpha": ("loss", "soft-top-k"),
    "query_negatives": ("loss", "decoupled-softmax"),
}


class DEXML(EmbeddingMethod):
    """One encoder, negatives from in-batch to all labels, losses that treat each positive separately."""

    name = "dexml"
    info = MethodInfo(
        summary="dual encoder, decoupled softmax, in-batch / hard / embedding-cache / all negatives",
        citation="Gupta et al., Dual-Encoders for Extreme Multi-Label Classification, ICLR 2024",
        needs=("label texts",),
    )

    counted: ClassVar = dict.fromkeys(("negatives_per_query", "shortlist", "cached_negatives"), ("labels",))

    class Config(EmbeddingMethod.Config):
        negatives: Literal["in-batch", "hard", "embedding-cache", "all"] = Field(
            "hard",
            description="label pool; in-batch: the positives sampled for the batch; hard: also labels from "
            "shortlists of nearest labels; embedding-cache: also the labels with the largest "
            "gradients in a cache of all label embeddings; all: every label",
        )
        loss: Literal["decoupled-softmax", "softmax", "bce", "soft-top-k"] = Field(
            "decoupled-softmax", description="decoupled-softmax is Eq. 5, soft-top-k Eq. 6 and 7, bce Eq. 2"
        )
        positives: losses.TrainedPositives = "all"  # Eq. 5
        temperature: float = Field(0.05, gt=0, description="divides the inner products")
        positives_per_query: int = Field(
            1, gt=0, description="positives per query sampled into the pool; not with `all` negatives"
        )
        negatives_per_query: int = Field(1, gt=0, description="labels sampled from a query's shortlist; with `hard`")
        shortlist: int = Field(
            100, gt=0, description="nearest labels that are not true, mined for each training query; with `hard`"
        )
        refresh_start: int = Field(
            5, ge=0, description="first epoch, from 0, with a shortlist; before it the pool is in-batch; with `hard`"
        )
        refresh_every: int = Field(5, gt=0, description="epochs between shortlists; with `hard`")
        cached_negatives: int = Field(
            1024, gt=0, description="labels added from the cache per step; with `embedding-cache`"
        )
        k: int = Field(5, gt=0, description="k of the soft top-k loss")
        alpha: float = Field(2.0, gt=0, description="steepness of the soft top-k operator")
        query_negatives: bool = Field(
            default=False,
            exclude_if=not_,  # so that keys of trials without it stay
            description="queries of the batch without a common label are negatives of one another too (RAE-XMC); with "
            "`decoupled-softmax`",
        )

        def unused(self) -> frozenset[str]:
            unused = {setting for setting, (other, value) in ONLY_WITH.items() if getattr(self, other) != value}
            if self.negatives == "all":
                unused.add("positives_per_query")
            if self.loss == "bce":
                unused.add("positives")
            return frozenset(unused)

    config: DEXML.Config

    @classmethod
    def following(cls, given: Mapping[str, Any], data: data.Extent, budget: Budget) -> dict[str, Any]:
        """Where one label dominates, few negatives need a higher temperature (docs/measurements.md)."""
        negatives = given.get("negatives", cls.Config.model_fields["negatives"].default)
        blunt = data.dominated and negatives in FEW_NEGATIVES
        return ({"temperature": BLUNT} if blunt else {}) | super().following(given, data, budget)

    @classmethod
    def search_space(cls, config: Method.Config) -> dict[str, Any]:
        assert isinstance(config, DEXML.Config)
        own = config.temperature
        return super().search_space(config) | {"temperature": {"low": own / 5, "high": 2 * own, "log": True}}

    @classmethod
    def labels_of_step(cls, config: EmbeddingMethod.Config, num_labels: int, batch_size: int) -> float:
        assert isinstance(config, DEXML.Config)
        if config.negatives == "all":
            return num_labels
        cached = config.cached_negatives if config.negatives == "embedding-cache" else 0
        return min(num_labels, cached + super().labels_of_step(config, num_labels, batch_size))

    def sampler(self, train: data.TrainingData, seed: int) -> sampling.Sampler:
        settings = self.config
        negatives: list[sampling.Negatives] = []
        match settings.negatives:
            case "all":
                negatives = [sampling.AllLabels()]
            case "embedding-cache":
                negatives = [sampling.Cached(settings.cached_negatives, self.loss)]
            case "hard":
                timing = {"start": settings.refresh_start, "every": settings.refresh_every}
                negatives = [sampling.Nearest(settings.negatives_per_query, settings.shortlist, **timing)]
        self.targets = train.targets
        size, drawn = settings.batch_size, sampling.Draw(settings.positives_per_query)
        return sampling.Sampler(train, batch_size=size, seed=seed, positives=drawn, negatives=negatives)

    def loss(self, queries_BD: Tensor, labels_SD: Tensor, batch: sampling.Batch) -> Tensor:
        settings, positives = self.config, batch.positives
        if settings.loss == "bce":
            return losses.binary_cross_entropy(queries_BD, labels_SD, positives, temperature=settings.temperature)
        common = (queries_BD, labels_SD, positives, positives.weights(settings.positives))
        match settings.loss:
            case "softmax":
                return losses.softmax(*common, temperature=settings.temperature)
            case "soft-top-k":
                return losses.soft_top_k(*common, k=settings.k, alpha=settings.alpha, temperature=settings.temperature)
        if settings.query_negatives:
            common = self._with_queries(*common, batch.query_ids)
        return losses.decoupled_softmax(*common, temperature=settings.temperature)

    def _with_queries(
        self,
        queries_BD: Tensor,
        labels_SD: Tensor,
        positives: losses.Positives,
        weights_P: Tensor,
        query_ids: np.ndarray,
    ) -> tuple[Tensor, Tensor, losses.Positives, Tensor]:
        """The arguments of the loss with queries as further columns of the pool; each worker adds its share of them.

        A query and one that shares a label with it, itself too, become true pairs of weight 0: decoupled softmax takes
        those neither for positives nor for negatives.
        """
        import torch

        host, device, num_labels = positives.host, queries_BD.device, len(labels_SD)
        mine = np.arange(host.workers.rank, len(query_ids), host.workers.size)
        targets_BL = self.targets[query_ids]
        related = (targets_BL @ targets_BL[mine].T).nonzero()
        rows_R, columns_R = (torch.from_numpy(ids.astype(np.int64)) for ids in related)
        rows_P = torch.cat([host.rows_P, rows_R])
        order_P = rows_P.argsort(stable=True)
        columns_P = torch.cat([host.columns_P, num_labels + columns_R])[order_P]
        pool_XD = torch.cat([labels_SD, queries_BD[upload(mine, device)]])
        larger = losses.Positives(rows_P[order_P], columns_P, len(query_ids), len(pool_XD), workers=host.workers)
        weights_P = torch.cat([weights_P, weights_P.new_zeros(len(rows_R))])[upload(order_P, device)]
        return queries_BD, pool_XD, larger.to(device), weights_P


@hookimpl
def register_methods(register: Callable[[type[Any]], None]) -> None:
    register(DEXML)
