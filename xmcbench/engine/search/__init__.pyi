from .exact import ExactIndex, Index
from .index import Backend, build_index, measured_recall, search_flops, top_k

__all__ = ["Backend", "ExactIndex", "Index", "build_index", "measured_recall", "search_flops", "top_k"]
