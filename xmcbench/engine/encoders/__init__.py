"""Text encoders: any transformers model, or the mean of word vectors; their tokenizers and settings."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
