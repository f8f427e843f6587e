"""Top-k inner-product search."""

from xmcbench.engine.search.exact import ExactIndex, top_k
from xmcbench.engine.search.faiss import HNSW, FaissIndex
from xmcbench.engine.search.index import Backend, Index, build_index
from xmcbench.engine.search.order import merge

__all__ = ["HNSW", "Backend", "ExactIndex", "FaissIndex", "Index", "build_index", "merge", "top_k"]
