from .batch import Batch
from .builtin import Recipe
from .cached import Cached
from .clusters import Clusters, balanced_clusters
from .embeddings import Embeddings
from .sampler import AllLabels, Draw, Nearest, Negatives, Order, Sampler, Shuffled
from .settings import ClusteredBatches

__all__ = [
    "AllLabels",
    "Batch",
    "Cached",
    "ClusteredBatches",
    "Clusters",
    "Draw",
    "Embeddings",
    "Nearest",
    "Negatives",
    "Order",
    "Recipe",
    "Sampler",
    "Shuffled",
    "balanced_clusters",
]
