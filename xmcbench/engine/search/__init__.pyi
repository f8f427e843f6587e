from .exact import ExactIndex, top_k
from .faiss import HNSW, IVF, FaissIndex
from .index import Backend, Index, build_index
from .order import merge

__all__ = ["HNSW", "IVF", "Backend", "ExactIndex", "FaissIndex", "Index", "build_index", "merge", "top_k"]
