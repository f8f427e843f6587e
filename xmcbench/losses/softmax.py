"""The softmax family: softmax (InfoNCE over a pool) and decoupled softmax (DEXML Eq. 5).

Legend: B queries, S labels of the pool, D dimensions, P positive pairs. A query's loss is a weighted sum over its
positives, `weights_P` (see `Positives`); the loss is the mean over the B queries. Scores are float32 at least,
whatever the embeddings are.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from xmcbench.losses.positives import Positives


def scores(queries_BD: Tensor, labels_SD: Tensor, temperature: float) -> Tensor:
    """[B, S] inner products over the temperature, in float32 or better."""
    dtype = torch.promote_types(queries_BD.dtype, torch.float32)
    return (queries_BD.to(dtype) @ labels_SD.to(dtype).T) / temperature


def mean_over_queries(terms_P: Tensor, weights_P: Tensor, num_queries: int) -> Tensor:
    """Scalar: weighted terms summed within a query, averaged over all B queries (those without a positive add 0)."""
    return (terms_P * weights_P.to(terms_P.dtype)).sum() / num_queries


def softmax(
    queries_BD: Tensor, labels_SD: Tensor, positives: Positives, weights_P: Tensor, *, temperature: float
) -> Tensor:
    """Softmax over the pool: -log(e^s_ij / sum_l e^s_il) for each positive j (DEXML Eq. 3; SupCon if averaged)."""
    scores_BS = scores(queries_BD, labels_SD, temperature)
    terms_P = scores_BS.logsumexp(1)[positives.rows_P] - scores_BS[positives.rows_P, positives.columns_P]
    return mean_over_queries(terms_P, weights_P, positives.num_queries)


def decoupled_softmax(
    queries_BD: Tensor, labels_SD: Tensor, positives: Positives, weights_P: Tensor, *, temperature: float
) -> Tensor:
    """-log(e^s_ij / (e^s_ij + sum over negatives e^s_in)): a query's other positives leave the denominator (Eq. 5)."""
    scores_BS = scores(queries_BD, labels_SD, temperature)
    is_positive_BS = torch.zeros_like(scores_BS, dtype=torch.bool)
    is_positive_BS[positives.rows_P, positives.columns_P] = True
    # The smallest finite number, not -inf: a row whose pool is all positive then has a defined, zero gradient.
    negatives_BS = scores_BS.masked_fill(is_positive_BS, torch.finfo(scores_BS.dtype).min)
    gaps_P = negatives_BS.logsumexp(1)[positives.rows_P] - scores_BS[positives.rows_P, positives.columns_P]
    return mean_over_queries(softplus(gaps_P), weights_P, positives.num_queries)
