"""The softmax family: softmax (InfoNCE over a pool), UniDEC's PSL and PAL, decoupled softmax (DEXML Eq. 5).

Legend: B queries, S labels of the pool (of this worker), D dimensions, P positive pairs. The loss of a query is
a sum over its positives, weighted by `weights_P` (see `Positives`). The loss is the mean over the B queries; each
worker returns its part. Scores are at least float32 for embeddings of any type, and are never all in memory.
`label_to_query` reverses the direction of each loss.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import softplus

from xmcbench.engine.losses.positives import Positives, of_scores
from xmcbench.engine.losses.score_sums import log_sum_exp


def at_pairs(of_rows_B: Tensor, positives: Positives) -> Tensor:
    """[P] the element of each pair's query. Unlike indexing, gradients are summed in a fixed order on a CPU."""
    return of_rows_B.index_select(0, positives.rows_P)


def mean_over_queries(terms_P: Tensor, weights_P: Tensor, positives: Positives) -> Tensor:
    """Scalar: weighted terms summed within a query, averaged over all B queries (queries without a positive add 0)."""
    return (terms_P * weights_P.to(terms_P.dtype)).sum() / positives.mean_over


@of_scores
def softmax(
    queries_BD: Tensor, labels_SD: Tensor | None, positives: Positives, weights_P: Tensor, *, temperature: float
) -> Tensor:
    """Softmax over the pool: -log(e^s_ij / sum_l e^s_il) for each positive j (DEXML Eq. 3)."""
    part_B, scores_P = log_sum_exp(queries_BD, labels_SD, positives, temperature)
    sums_B = positives.workers.log_sum_exp(part_B)
    return mean_over_queries(at_pairs(sums_B, positives) - scores_P, weights_P, positives)


def psl(queries_BD: Tensor, labels_SD: Tensor | None, positives: Positives, *, temperature: float) -> Tensor:
    """UniDEC's PSL (SupCon): softmax, averaged over a query's positives; the others stay in its denominator."""
    return softmax(queries_BD, labels_SD, positives, positives.averaged(), temperature=temperature)


def pal(queries_BD: Tensor, labels_SD: Tensor | None, positives: Positives, *, temperature: float) -> Tensor:
    """UniDEC's PAL: softmax, summed over a query's positives."""
    return softmax(queries_BD, labels_SD, positives, positives.every(), temperature=temperature)


@of_scores
def decoupled_softmax(
    queries_BD: Tensor, labels_SD: Tensor | None, positives: Positives, weights_P: Tensor, *, temperature: float
) -> Tensor:
    """-log(e^s_ij / (e^s_ij + sum over negatives e^s_in)): without the other positives in the denominator (Eq. 5)."""
    part_B, scores_P = log_sum_exp(queries_BD, labels_SD, positives, temperature, negatives=True)
    negatives_B = positives.workers.log_sum_exp(part_B)
    return mean_over_queries(softplus(at_pairs(negatives_B, positives) - scores_P), weights_P, positives)
