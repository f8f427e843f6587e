"""Losses: pure functions of torch tensors.

Each takes the vectors of B queries [B, D] and of the S labels of the pool [S, D] (float32) and the true pairs
(`Positives`), and returns a scalar: the mean over the queries, or this worker's part of it. Scores are inner products,
or those of the method's own `score`. Scores [B, S] that a method has already are given in place of the queries, with
None for the labels. `weights_P` [P] are the weights of the pairs, from `Positives.every`, `averaged` or `weights`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
