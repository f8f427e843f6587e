"""Settings of samplers, for methods that share them. Importing them costs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from xmcbench.trial.method import Settings

if TYPE_CHECKING:
    from xmcbench.engine.sampling.sampler import Order

GROWTH = (10, 20, 25, 50, 75, 100, 125, 150, 200)  # NGAME's
OF_CLUSTERS = frozenset({"cluster_size", "cluster_start", "cluster_every", "cluster_growth", "cluster_vectors"})


class ClusteredBatches(Settings):
    """Settings of a method with batches of `Clusters`: a base of its `Config`, besides `EmbeddingMethod.Config`.

    Example:
        >>> ClusteredBatches(cluster_size=4).order().size
        4
        >>> "cluster_size" in ClusteredBatches(batches="shuffled").unused()
        True
    """

    batches: Literal["clusters", "shuffled"] = Field("clusters", description="batches of similar queries, or shuffled")
    cluster_size: int = Field(
        1, gt=0, description="most queries of a cluster before it grows; the number of clusters is a power of two"
    )
    cluster_start: int = Field(
        10, ge=0, description="first epoch, from 0, with clusters; before it batches are shuffled"
    )
    cluster_every: int = Field(5, gt=0, description="epochs that clusters serve")
    cluster_growth: tuple[int, ...] = Field(GROWTH, description="epochs from which clusters are twice as large")
    cluster_vectors: Literal["bank", "fresh"] = Field(
        "bank",
        description="clusters of the vectors that training steps made, or of queries embedded anew, which is charged",
    )

    def order(self) -> Order:
        """The `order` of a `Sampler`."""
        from xmcbench.engine.sampling.clusters import Clusters
        from xmcbench.engine.sampling.sampler import Shuffled

        if self.batches == "shuffled":
            return Shuffled()
        return Clusters(
            self.cluster_size, self.cluster_start, self.cluster_every, self.cluster_growth, self.cluster_vectors
        )

    def unused(self) -> frozenset[str]:
        return super().unused() | (OF_CLUSTERS if self.batches == "shuffled" else set())
