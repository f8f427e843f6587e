"""An index of label vectors, built by the name of its search backend.

Legend: N queries, L labels, D dimensions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, assert_never

if TYPE_CHECKING:
    import scipy
    from torch import Tensor

    from xmcbench.engine.encoders.settings import Precision
    from xmcbench.trial.predictions import Predictions

Backend = Literal["exact", "faiss-flat", "faiss-hnsw", "faiss-ivf"]
APPROXIMATE: frozenset[Backend] = frozenset({"faiss-hnsw", "faiss-ivf"})


class Index(Protocol):
    """Searchable labels. All backends return the same scores and order; only a graph or clusters may miss labels."""

    def top_k(self, queries_ND: Tensor, k: int, *, exclude: scipy.sparse.csr_array | None = None) -> Predictions:
        """The `k` labels with the highest inner product per query without those in `exclude`; ties by lower id."""


def build_index(labels_LD: Tensor, backend: Backend = "exact", *, precision: Precision = "float32") -> Index:
    """An index of the labels. `precision` is that of exact products.

    Raises `XMCBenchError` if the backend needs faiss and faiss is missing.
    """
    from xmcbench.engine.search.exact import ExactIndex
    from xmcbench.engine.search.faiss import HNSW, IVF, FaissIndex

    match backend:
        case "exact":
            return ExactIndex(labels_LD, precision)
        case "faiss-flat":
            return FaissIndex(labels_LD)
        case "faiss-hnsw":
            return FaissIndex(labels_LD, HNSW())
        case "faiss-ivf":
            return FaissIndex(labels_LD, IVF())
        case _:
            assert_never(backend)
