"""Random draws that stay the same in every version of numpy, for data that are made or derived."""

from __future__ import annotations

import numpy as np


class Draws:
    """Random draws that are the same in every version of numpy.

    They use only the raw bit stream of PCG64, which numpy guarantees. What `Generator` draws from it may change.
    """

    def __init__(self, *seed: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(seed))

    def uniform(self, *shape: int) -> np.ndarray:
        """Numbers in [0, 1), float64."""
        raw: np.ndarray = self._bits.random_raw(int(np.prod(shape)))
        return ((raw >> np.uint64(11)) * 2.0**-53).reshape(shape)

    def integers(self, below: int, *shape: int) -> np.ndarray:
        """Integers in [0, below), int64."""
        return (self.uniform(*shape) * below).astype(np.int64)

    def permutation(self, n: int) -> np.ndarray:
        """0..n-1 in random order."""
        return np.argsort(np.asarray(self._bits.random_raw(n)), kind="stable")

    def weighted(self, weights: np.ndarray, n: int) -> np.ndarray:
        """`n` indices, each with probability proportional to its weight."""
        ends = np.cumsum(weights)
        indices: np.ndarray = np.searchsorted(ends, self.uniform(n) * ends[-1], side="right")
        return indices.clip(max=len(weights) - 1)
