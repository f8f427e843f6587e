"""The kinds of searches among label vectors."""

from __future__ import annotations

from typing import Literal

Backend = Literal["exact", "faiss-hnsw", "faiss-ivf"]  # all labels, a graph, or clusters
VectorKind = Literal["float32", "bf16", "int8", "pq"]  # how an index keeps vectors; pq: product-quantised
CODES = 256  # values of a byte of `pq`; faiss learns them from at least as many labels


def is_approximate(backend: Backend, vectors: VectorKind) -> bool:
    """Whether a search may miss some of the best labels. Faiss does it then."""
    return backend != "exact" or vectors != "float32"
