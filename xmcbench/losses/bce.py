"""Binary cross-entropy over every label of the pool (DEXML Eq. 2; OvA-BCE)."""

from __future__ import annotations

from torch import Tensor

from xmcbench.losses.positives import Positives
from xmcbench.losses.score_sums import pair_scores, sum_softplus


def binary_cross_entropy(queries_BD: Tensor, labels_SD: Tensor, positives: Positives, *, temperature: float) -> Tensor:
    """Scalar: the sum over S labels of each query's cross-entropies, averaged over the B queries.

    Its gradient with respect to a score is (sigmoid(s) - y) / B.
    """
    # -log sigmoid(s) = softplus(s) - s, so the truth enters as one sparse sum.
    on_positives_P = pair_scores(queries_BD, labels_SD, positives.rows_P, positives.columns_P, temperature)
    return (sum_softplus(queries_BD, labels_SD, temperature).sum() - on_positives_P.sum()) / positives.num_queries
