"""How shortlists of training queries are searched: exactly, or approximately where there are many pairs.

Legend: N queries, L labels, D dimensions, S queries of a sample.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from torch import Tensor

from xmcbench.engine import flops
from xmcbench.engine.search.exact import top_k
from xmcbench.engine.search.faiss import IVF
from xmcbench.engine.search.index import Backend, Index

LARGE_SEARCH = 10**12  # pairs of a query and a label: a search among more is approximate
SAMPLE = 256  # queries that are also searched exactly, to measure the recall


def backend_for(num_queries: int, num_labels: int) -> Backend:
    """The backend of a search for shortlists. It follows from the size alone, so that all machines use the same."""
    return "exact" if num_queries * num_labels <= LARGE_SEARCH else "faiss-ivf"


def search_flops(num_queries: int, num_labels: int, dimension: int) -> int:
    """Operations of a search for shortlists; of an approximate one, with those of building its index."""
    if backend_for(num_queries, num_labels) == "exact":
        return 2 * num_queries * num_labels * dimension
    return IVF().flops(num_queries, num_labels, dimension)


def measured_recall(index: Index, queries_ND: Tensor, labels_LD: Tensor, k: int, exclude: sp.csr_array) -> float:
    """The share of the exact `k` nearest labels that `index` finds, of a sample of queries; counts no operations."""
    sample = np.unique(np.linspace(0, len(queries_ND) - 1, SAMPLE).astype(int))
    queries_SD, excluded = queries_ND[sample], exclude[sample]
    with flops.counting():
        exact = top_k(queries_SD, labels_LD, k, exclude=excluded)
        found = index.top_k(queries_SD, k, exclude=excluded)
    hits = (np.isin(*rows).sum() for rows in zip(exact.indices, found.indices, strict=True))
    return float(sum(hits)) / exact.indices.size
