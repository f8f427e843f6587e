"""Training and search: encoders, losses, samplers, the training loop, and its dry run. It knows no method by name."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, submodules=["encoders", "losses", "sampling", "search", "tables", "training"]
)
