"""DEXML: dual encoders for extreme multi-label classification (Gupta et al., ICLR 2024)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from xmcbench import EmbeddingMethod, MethodInfo, TrainingData, hookimpl, losses, sampling

if TYPE_CHECKING:
    from torch import Tensor

# Settings that apply only with one value of another setting.
ONLY_WITH = {
    "negatives_per_query": ("negatives", "hard"),
    "shortlist": ("negatives", "hard"),
    "refresh_start": ("negatives", "hard"),
    "refresh_every": ("negatives", "hard"),
    "cached_negatives": ("negatives", "embedding-cache"),
    "k": ("loss", "soft-top-k"),
    "alpha": ("loss", "soft-top-k"),
}


class DEXML(EmbeddingMethod):
    """One encoder, negatives from in-batch to all labels, losses that treat each positive separately."""

    name = "dexml"
    info = MethodInfo(
        summary="dual encoder, decoupled softmax, in-batch / hard / embedding-cache / all negatives",
        citation="Gupta et al., Dual-Encoders for Extreme Multi-Label Classification, ICLR 2024",
        needs=("label texts",),
    )

    class Config(EmbeddingMethod.Config):
        negatives: Literal["in-batch", "hard", "embedding-cache", "all"] = Field(
            "hard",
            description="label pool; in-batch: the positives drawn for the batch; hard: also labels from "
            "shortlists of nearest labels; embedding-cache: also the labels with the largest "
            "gradients in a cache of all label embeddings; all: every label",
        )
        loss: Literal["decoupled-softmax", "softmax", "bce", "soft-top-k"] = Field(
            "decoupled-softmax", description="decoupled-softmax is Eq. 5, soft-top-k Eq. 6 and 7, bce Eq. 2"
        )
        positives: Literal["all", "one"] = Field(
            "all",
            description="positives in the loss: all in the pool (Eq. 5), or one drawn uniformly per query and step",
        )
        temperature: float = Field(0.05, gt=0, description="divides the inner products")
        positives_per_query: int = Field(
            1, gt=0, description="positives per query drawn into the pool; not with `all` negatives"
        )
        negatives_per_query: int = Field(1, gt=0, description="labels drawn from a query's shortlist; with `hard`")
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

        def unused(self) -> frozenset[str]:
            unused = {setting for setting, (other, value) in ONLY_WITH.items() if getattr(self, other) != value}
            if self.negatives == "all":
                unused.add("positives_per_query")
            if self.loss == "bce":
                unused.add("positives")
            return frozenset(unused)

    config: DEXML.Config

    def sampler(self, train: TrainingData, seed: int) -> sampling.Sampler:
        settings = self.config
        negatives: list[sampling.Negatives] = []
        match settings.negatives:
            case "all":
                negatives = [sampling.Everything()]
            case "embedding-cache":
                negatives = [sampling.Cached(settings.cached_negatives, self.loss)]
            case "hard":
                timing = {"start": settings.refresh_start, "every": settings.refresh_every}
                negatives = [sampling.Nearest(settings.negatives_per_query, settings.shortlist, **timing)]
        drawn = sampling.Draw(settings.positives_per_query)
        size = settings.batch_size
        return sampling.Sampler(train, batch_size=size, seed=seed, positives=drawn, negatives=negatives)

    def loss(self, queries_BD: Tensor, labels_SD: Tensor, batch: sampling.Batch) -> Tensor:
        settings, positives = self.config, batch.positives
        if settings.loss == "bce":
            return losses.binary_cross_entropy(queries_BD, labels_SD, positives, temperature=settings.temperature)
        weights_P = positives.every() if settings.positives == "all" else positives.one_sampled()
        common = (queries_BD, labels_SD, positives, weights_P)
        match settings.loss:
            case "softmax":
                return losses.softmax(*common, temperature=settings.temperature)
            case "soft-top-k":
                return losses.soft_top_k(*common, k=settings.k, alpha=settings.alpha, temperature=settings.temperature)
        return losses.decoupled_softmax(*common, temperature=settings.temperature)


@hookimpl
def register_methods(register: Callable[[type[Any]], None]) -> None:
    register(DEXML)
