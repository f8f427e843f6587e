"""Losses: pure functions of torch tensors.

Each takes the embeddings of B queries [B, D] and of the S labels of the pool [S, D] (float32) and the true pairs
(`Positives`), and returns a scalar: the mean over the queries, or this worker's part of it. `weights_P` [P] are the
weights of the pairs, from `Positives.every`, `averaged` or `weights`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
