"""Samplers: which queries make a batch, and which labels they are scored against."""

from xmcbench.sampling.builtin import Recipe
from xmcbench.sampling.cached import Cached
from xmcbench.sampling.clustering import balanced_clusters
from xmcbench.sampling.clusters import Clusters
from xmcbench.sampling.parts import Draw, Everything, Nearest, Negatives, Order, Shuffled
from xmcbench.sampling.sampler import Batch, Embeddings, Sampler
from xmcbench.sampling.settings import ClusteredBatches

__all__ = [
    "Batch",
    "Cached",
    "ClusteredBatches",
    "Clusters",
    "Draw",
    "Embeddings",
    "Everything",
    "Nearest",
    "Negatives",
    "Order",
    "Recipe",
    "Sampler",
    "Shuffled",
    "balanced_clusters",
]
