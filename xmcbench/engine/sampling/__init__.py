"""Samplers: which queries make a batch, and which labels they are scored against."""

from xmcbench.engine.sampling.batch import Batch
from xmcbench.engine.sampling.builtin import Recipe
from xmcbench.engine.sampling.cached import Cached
from xmcbench.engine.sampling.clustering import balanced_clusters
from xmcbench.engine.sampling.clusters import Clusters
from xmcbench.engine.sampling.embeddings import Embeddings
from xmcbench.engine.sampling.parts import Draw, Everything, Nearest, Negatives, Order, Shuffled
from xmcbench.engine.sampling.sampler import Sampler
from xmcbench.engine.sampling.settings import ClusteredBatches

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
