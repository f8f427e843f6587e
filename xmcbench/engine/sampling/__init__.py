"""Samplers: which queries make a batch, and which labels they are scored against."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
