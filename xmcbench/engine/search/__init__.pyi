from .exact import ExactIndex, Index
from .index import build_index, measured_recall, search_flops, top_k
from .kinds import Backend, VectorKind

__all__ = ["Backend", "ExactIndex", "Index", "VectorKind", "build_index", "measured_recall", "search_flops", "top_k"]
