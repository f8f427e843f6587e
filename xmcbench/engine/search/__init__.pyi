from .exact import ExactIndex, top_k
from .faiss import HNSW, FaissIndex
from .index import Backend, Index, build_index
from .order import merge

__all__ = ["HNSW", "Backend", "ExactIndex", "FaissIndex", "Index", "build_index", "merge", "top_k"]
