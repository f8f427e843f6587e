"""The hash of the truth that predictions are scored against; it is stored beside the predictions."""

from __future__ import annotations

from hashlib import sha256

import numpy as np

from xmcbench.data.dataset import Dataset
from xmcbench.data.pairs import binary


def truth_hash(dataset: Dataset) -> str:
    """SHA-256 of the test targets and the ignored test pairs, as sets: entry order and integer width do not matter."""
    digest = sha256()
    for matrix in (dataset.test.targets, dataset.ignore_test):
        pairs = binary(matrix)
        for part in (pairs.shape, pairs.indptr, pairs.indices):
            digest.update(np.asarray(part, dtype="<i8").tobytes())
    return digest.hexdigest()
