"""Binary cross-entropy over every label of the pool (DEXML Eq. 2; OvA-BCE)."""

from __future__ import annotations

from torch import Tensor

from xmcbench.engine.losses.positives import Positives
from xmcbench.engine.losses.score_sums import cross_entropy


def binary_cross_entropy(queries_BD: Tensor, labels_SD: Tensor, positives: Positives, *, temperature: float) -> Tensor:
    """Scalar: the sum over S labels of each query's cross-entropies, averaged over the B queries; a worker's part.

    The gradient with respect to a score is (sigmoid(s) - y) / B. One pass over the scores computes value and gradients.
    """
    return cross_entropy(queries_BD, labels_SD, positives, temperature)
