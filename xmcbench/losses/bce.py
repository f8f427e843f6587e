"""Binary cross-entropy over every label of the pool (DEXML Eq. 2; OvA-BCE)."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import softplus

from xmcbench.losses.positives import Positives
from xmcbench.losses.softmax import scores


def binary_cross_entropy(queries_BD: Tensor, labels_SD: Tensor, positives: Positives, *, temperature: float) -> Tensor:
    """Scalar: the sum over S labels of each query's cross-entropies, averaged over the B queries.

    Its gradient with respect to a score is (sigmoid(s) - y) / B.
    """
    scores_BS = scores(queries_BD, labels_SD, temperature)
    # -log sigmoid(s) = softplus(s) - s, so the truth enters as one sparse sum.
    on_positives = scores_BS[positives.rows_P, positives.columns_P].sum()
    return (softplus(scores_BS).sum() - on_positives) / positives.num_queries
