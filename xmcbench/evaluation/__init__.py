"""Metrics from predictions and truth. Only numpy and scipy are needed, and nothing here knows a method."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
