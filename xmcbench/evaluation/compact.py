"""Resamples in few numbers: what an installed xmcbench needs to say which accepted rows tie.

All that `significance.py` reads of the metrics of T trials on B resamples is the standard deviation of sums and
differences of them. Any T vectors with the same covariances do, of T + 1 numbers each: a QR decomposition finds them.

Legend: T trials, B resamples.
"""

from __future__ import annotations

import numpy as np


def compact_resamples(values_TB: np.ndarray, size: int) -> np.ndarray:
    """float32 [T, size] whose rows have mean 0 and the covariances (`ddof=1`) of `values_TB`; T < `size`."""
    centred_TB = values_TB - values_TB.mean(axis=1, keepdims=True, dtype=np.float64)
    # [T, min(T, B)], with the inner products of the centred rows
    triangle = np.asarray(np.linalg.qr(centred_TB.T, mode="r")).T
    scale = np.sqrt((size - 1) / (values_TB.shape[1] - 1))
    made: np.ndarray = triangle @ _of_mean_zero(size)[: triangle.shape[1]] * scale
    return made.astype(np.float32)


def _of_mean_zero(size: int) -> np.ndarray:
    """`size` - 1 orthonormal rows [size - 1, size], each of mean 0 (Helmert's)."""
    below = np.tril(np.ones((size - 1, size)))
    count = np.arange(1, size)
    below[np.arange(size - 1), count] = -count
    return np.asarray(below / np.sqrt(count * (count + 1))[:, None])
