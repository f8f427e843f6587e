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
        return _uniform(self._bits, shape)

    def rows(self, n: int, *shape: int) -> DrawnRows:
        """What `uniform(n, *shape)` would return, drawn a block at a time."""
        return DrawnRows(self._bits, n, shape)

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


class DrawnRows:
    """Numbers in [0, 1), float64 [n, *shape], each block of rows drawn when it is asked for.

    >>> whole, rows = Draws(1).uniform(5, 2), Draws(1).rows(5, 2)
    >>> bool((rows[3:5] == whole[3:5]).all())
    True
    """

    def __init__(self, bits: np.random.PCG64, n: int, shape: tuple[int, ...]) -> None:
        self._state, self._shape, self._width = bits.state, shape, int(np.prod(shape))
        bits.advance(n * self._width)

    def __getitem__(self, part: slice) -> np.ndarray:
        """The rows from `part.start` to `part.stop`."""
        bits = np.random.PCG64(0)
        bits.state = self._state
        bits.advance(part.start * self._width)
        return _uniform(bits, (part.stop - part.start, *self._shape))


def _uniform(bits: np.random.PCG64, shape: tuple[int, ...]) -> np.ndarray:
    raw: np.ndarray = bits.random_raw(int(np.prod(shape)))
    return ((raw >> np.uint64(11)) * 2.0**-53).reshape(shape)
