"""Top-k inner-product search."""

from xmcbench.search.exact import ExactIndex, top_k
from xmcbench.search.faiss import HNSW, FaissIndex
from xmcbench.search.index import Backend, Index, build_index
from xmcbench.search.order import merge

__all__ = ["HNSW", "Backend", "ExactIndex", "FaissIndex", "Index", "build_index", "merge", "top_k"]
