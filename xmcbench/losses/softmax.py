"""The softmax family: softmax (InfoNCE over a pool) and decoupled softmax (DEXML Eq. 5).

Legend: B queries, S labels of the pool, D dimensions, P positive pairs. A query's loss is a weighted sum over its
positives, `weights_P` (see `Positives`); the loss is the mean over the B queries. Scores are float32 at least,
whatever the embeddings are, and are never held all at once.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import softplus

from xmcbench.losses.positives import Positives
from xmcbench.losses.score_sums import log_sum_exp, pair_scores


def mean_over_queries(terms_P: Tensor, weights_P: Tensor, num_queries: int) -> Tensor:
    """Scalar: weighted terms summed within a query, averaged over all B queries (those without a positive add 0)."""
    return (terms_P * weights_P.to(terms_P.dtype)).sum() / num_queries


def softmax(
    queries_BD: Tensor, labels_SD: Tensor, positives: Positives, weights_P: Tensor, *, temperature: float
) -> Tensor:
    """Softmax over the pool: -log(e^s_ij / sum_l e^s_il) for each positive j (DEXML Eq. 3; SupCon if averaged)."""
    sums_B = log_sum_exp(queries_BD, labels_SD, temperature)
    scores_P = pair_scores(queries_BD, labels_SD, positives.rows_P, positives.columns_P, temperature)
    return mean_over_queries(sums_B[positives.rows_P] - scores_P, weights_P, positives.num_queries)


def decoupled_softmax(
    queries_BD: Tensor, labels_SD: Tensor, positives: Positives, weights_P: Tensor, *, temperature: float
) -> Tensor:
    """-log(e^s_ij / (e^s_ij + sum over negatives e^s_in)): a query's other positives leave the denominator (Eq. 5)."""
    pairs_P = positives.rows_P, positives.columns_P
    negatives_B = log_sum_exp(queries_BD, labels_SD, temperature, excluded_P=pairs_P)
    scores_P = pair_scores(queries_BD, labels_SD, *pairs_P, temperature)
    return mean_over_queries(softplus(negatives_B[positives.rows_P] - scores_P), weights_P, positives.num_queries)
