from .exact import ExactIndex, top_k
from .faiss import HNSW, IVF, FaissIndex
from .index import Backend, build_index, measured_recall, search_flops
from .order import merge
from .twins import Index

__all__ = [
    "HNSW",
    "IVF",
    "Backend",
    "ExactIndex",
    "FaissIndex",
    "Index",
    "build_index",
    "measured_recall",
    "merge",
    "search_flops",
    "top_k",
]
