"""Sets of (query, label) pairs held as sparse matrices: the truth, and the pairs that evaluation ignores."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp

from xmcbench.errors import XMCBenchError

CHUNK_ENTRIES = 1 << 22  # entries worked on at a time: temporaries stay near 100 MB however many queries there are


def row_chunks(num_rows: int, width: int) -> Iterator[slice]:
    """Slices that cover `num_rows` rows of `width` entries, about `CHUNK_ENTRIES` entries each."""
    step = max(1, CHUNK_ENTRIES // max(1, width))
    for start in range(0, num_rows, step):
        yield slice(start, min(start + step, num_rows))


def binary(matrix: sp.csr_array) -> sp.csr_array:
    """A copy of `matrix` as a set: every non-zero entry once, as 1.0, labels ascending within a row."""
    pairs = sp.csr_array(matrix, copy=True)
    pairs.sum_duplicates()
    pairs.eliminate_zeros()
    pairs.data = np.ones(pairs.nnz, dtype=np.float32)
    return pairs


def contains(pairs: sp.csr_array, indices: np.ndarray) -> np.ndarray:
    """Which of the labels `indices` [N, K] are in their row of the binary `pairs` [N, L]: bool [N, K]; -1 never is."""
    num_queries, num_labels = pairs.shape
    if len(indices) != num_queries:
        raise XMCBenchError(f"predictions have {len(indices)} rows, expected one for each of {num_queries} queries")
    if indices.size and int(indices.max()) >= num_labels:
        raise XMCBenchError(f"predictions hold label {int(indices.max())}, expected labels below {num_labels}")
    found = np.zeros(indices.shape, dtype=bool)
    for chunk in row_chunks(*indices.shape):
        part = pairs[chunk]
        offsets = np.arange(part.shape[0], dtype=np.int64) * num_labels
        keys = np.repeat(offsets, np.diff(part.indptr)) + part.indices
        keys = np.append(keys, part.shape[0] * num_labels)  # above every key, so a search always ends on one
        wanted = offsets[:, None] + indices[chunk]
        found[chunk] = (keys[np.searchsorted(keys, wanted)] == wanted) & (indices[chunk] >= 0)
    return found
