"""Label tables: rows that learn by optimisers of their own, and only where a step touches them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
