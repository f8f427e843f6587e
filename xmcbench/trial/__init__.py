"""A trial: its key, budget and ledger, the contract of a method, its predictions, its record, and the store."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["programs"])
