"""Sets of (query, label) pairs held as sparse matrices: the true pairs, and the pairs that evaluation ignores.

N queries, K predicted labels per query, L labels.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import scipy

from xmcbench.errors import XMCBenchError

CHUNK_ENTRIES = 1 << 17  # entries processed at a time: the temporary arrays stay in a core's cache
SLOTS = 256  # of the filter table of each query; a power of two

Result = TypeVar("Result")


def usable_cores() -> int:
    """The cores of the processor that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def num_threads() -> int:
    """Threads to use: the cores this process may use, or fewer where `OMP_NUM_THREADS` says so."""
    cores = usable_cores()
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(cores, int(limit))) if limit.isdecimal() else cores


def map_chunks(function: Callable[[slice], Result], num_rows: int, width: int) -> list[Result]:
    """`function` of slices that cover the rows of `width` entries in order, each about `CHUNK_ENTRIES` entries.

    Computed by several threads.
    """
    step = max(1, CHUNK_ENTRIES // max(1, width))
    chunks = [slice(start, min(start + step, num_rows)) for start in range(0, num_rows, step)]
    if len(chunks) < 2:
        return [function(chunk) for chunk in chunks]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(num_threads()) as threads:
        return list(threads.map(function, chunks))


def binary(matrix: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """`matrix` as a set: every non-zero entry once, as 1.0, labels ascending within a row. Copied only if need be."""
    if matrix.has_canonical_format and bool((matrix.data == 1.0).all()):
        return matrix
    pairs = scipy.sparse.csr_array(matrix, copy=True)
    pairs.sum_duplicates()
    pairs.eliminate_zeros()
    pairs.data = np.ones(pairs.nnz, dtype=np.float32)
    return pairs


def contains(pairs: scipy.sparse.csr_array, indices: np.ndarray) -> np.ndarray:
    """Which of the labels `indices` [N, K] are in their row of the binary `pairs` [N, L]: bool [N, K]; -1 never is."""
    contained = np.zeros(indices.size, dtype=bool)
    contained[find(pairs, indices)] = True
    return contained.reshape(indices.shape)


def find(pairs: scipy.sparse.csr_array, indices: np.ndarray) -> np.ndarray:
    """The flat positions, ascending, at which labels `indices` [N, K] are in their row of the binary `pairs` [N, L].

    A table with `SLOTS` flags per query first rules out labels by their last bits; the few labels left are looked up
    exactly.
    """
    num_queries, num_labels = pairs.shape
    if len(indices) != num_queries:
        raise XMCBenchError(f"predictions have {len(indices)} rows, expected one for each of {num_queries} queries")
    if indices.size and int(indices.max()) >= num_labels:
        raise XMCBenchError(f"predictions hold label {int(indices.max())}, expected labels below {num_labels}")

    def look_up(chunk: slice) -> np.ndarray:
        start, stop = pairs.indptr[chunk.start], pairs.indptr[chunk.stop]
        if start == stop:
            return np.empty(0, np.int64)
        rows = np.arange(chunk.stop - chunk.start, dtype=np.int64)
        true_rows = np.repeat(rows, np.diff(pairs.indptr[chunk.start : chunk.stop + 1]))
        true_labels, predicted = pairs.indices[start:stop], indices[chunk]
        slots = np.zeros(len(rows) * SLOTS, dtype=bool)
        slots[true_rows * SLOTS + (true_labels & (SLOTS - 1))] = True
        maybe = np.flatnonzero(slots[(rows * SLOTS)[:, None] + (predicted & (SLOTS - 1))])
        labels = predicted.ravel()[maybe]
        keys = np.append(true_rows * num_labels + true_labels, len(rows) * num_labels)  # the last is above every key
        wanted = maybe // predicted.shape[1] * num_labels + labels
        hit = (keys[np.searchsorted(keys, wanted)] == wanted) & (labels >= 0)
        positions: np.ndarray = maybe[hit] + chunk.start * predicted.shape[1]
        return positions

    chunks = map_chunks(look_up, *indices.shape)
    return np.concatenate(chunks) if chunks else np.empty(0, np.int64)
