from .exact import ExactIndex, top_k
from .index import Backend, build_index, measured_recall, search_flops
from .twins import Index

__all__ = ["Backend", "ExactIndex", "Index", "build_index", "measured_recall", "search_flops", "top_k"]
