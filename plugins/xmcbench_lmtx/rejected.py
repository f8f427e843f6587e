"""Negatives that the teacher rejected. Legend: N documents, L labels, K labels of a row."""

from __future__ import annotations

import numpy as np
import scipy

from xmcbench import sampling


class Rejected(sampling.Nearest):
    """`per_query` negatives drawn from the labels of each query that the teacher rejected (Table 7)."""

    def __init__(self, rejected_NL: scipy.sparse.csr_array, per_query: int) -> None:
        super().__init__(per_query)
        counts_N = np.diff(rejected_NL.indptr)
        self.nearest_NK = np.full((len(counts_N), max(1, int(counts_N.max(initial=0)))), -1, np.int32)
        self.nearest_NK[np.arange(self.nearest_NK.shape[1]) < counts_N[:, None]] = rejected_NL.indices

    def refresh(self, epoch: int, embeddings: sampling.Embeddings) -> None:
        """Keep the rejected labels: they change only with the next cycle."""
