"""The propensity model of Jain et al. (2016): how likely it is that a true label was recorded."""

from __future__ import annotations

import numpy as np
import scipy

from xmcbench.errors import XMCBenchError


def label_counts(targets: scipy.sparse.csr_array) -> np.ndarray:
    """The sum of each column of the training targets [N, L], float64 [L]: of ones, the queries that have the label."""
    counts: np.ndarray = np.bincount(targets.indices, targets.data, minlength=targets.shape[1])
    return counts


def inverse_propensity(targets: scipy.sparse.csr_array, a: float, b: float) -> np.ndarray:
    """The weight of each label, float64 [L], from the training targets [N, L] of ones: rare labels weigh more.

    w_l = 1 + C (n_l + B)^-A with C = (ln N - 1)(B + 1)^A and n_l the number of training queries with label l.
    """
    return weights_of_counts(label_counts(targets), targets.shape[0], a, b)


def weights_of_counts(counts: np.ndarray, num_queries: int, a: float, b: float) -> np.ndarray:
    """`inverse_propensity` from the `label_counts` [L] of N = `num_queries` training queries."""
    if num_queries < 3:  # ln N < 1 inverts the model: rare labels would weigh less than 1
        raise XMCBenchError(f"propensities need at least 3 training queries, found {num_queries}")
    scale = (np.log(num_queries) - 1.0) * (b + 1.0) ** a
    weights: np.ndarray = 1.0 + scale * (counts + b) ** -a
    return weights
