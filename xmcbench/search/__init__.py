"""Top-k inner-product search."""

from xmcbench.search.exact import top_k

__all__ = ["top_k"]
