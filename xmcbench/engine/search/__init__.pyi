from .exact import ExactIndex, Index
from .index import Backend, VectorKind, build_index, measured_recall, search_flops, top_k

__all__ = ["Backend", "ExactIndex", "Index", "VectorKind", "build_index", "measured_recall", "search_flops", "top_k"]
