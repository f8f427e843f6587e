from .batch import Batch
from .builtin import Recipe
from .cached import Cached
from .clusters import Clusters, balanced_clusters
from .embeddings import Embeddings
from .parts import Draw, Everything, Nearest, Negatives, Order, Shuffled
from .sampler import Sampler
from .settings import ClusteredBatches

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
