"""DEXML's soft top-k loss (Eq. 6 and 7, Section B.4).

Legend: B queries, S labels of the pool, P positive pairs. z = sigmoid(alpha (s + t)), with the threshold t_B of each
query such that its z sum to k.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import logsigmoid

from xmcbench.losses.positives import Positives
from xmcbench.losses.softmax import mean_over_queries

BISECTIONS = 60  # halvings of a bracket of width max s - min s: to float64's last digits


def scores(queries_BD: Tensor, labels_SD: Tensor, temperature: float) -> Tensor:
    """[B, S] inner products over the temperature, in float32 or better."""
    dtype = torch.promote_types(queries_BD.dtype, torch.float32)
    return (queries_BD.to(dtype) @ labels_SD.to(dtype).T) / temperature


def threshold(scores_BS: Tensor, k: int, alpha: float) -> Tensor:
    """[B] t with sum_l sigmoid(alpha (s_l + t)) = k, by bisection; k is below S.

    The bracket is where t would be were all scores the largest or all the smallest. DEXML's fixed one, 10/alpha beyond
    either, misses t when more than 22,000 k labels score alike.
    """
    if_all_zero = math.log(k / (scores_BS.shape[1] - k)) / alpha
    low_B = if_all_zero - scores_BS.amax(1)
    high_B = if_all_zero - scores_BS.amin(1)
    # sum z - k is the sum of z over all but the top k less that of 1 - z over the top k: so small numbers keep digits.
    sign_BS = torch.ones_like(scores_BS).scatter_(1, scores_BS.topk(k, dim=1).indices, -1.0)
    for _ in range(BISECTIONS):
        middle_B = (low_B + high_B) / 2
        too_few_B = (sign_BS * torch.sigmoid(sign_BS * alpha * (scores_BS + middle_B[:, None]))).sum(1) < 0
        low_B = torch.where(too_few_B, middle_B, low_B)
        high_B = torch.where(too_few_B, high_B, middle_B)
    return (low_B + high_B) / 2


class _LogSoftTopK(Function):
    """log z of the soft top-k operator. The backward pass differentiates through the threshold, in the log domain:

    with v = alpha z (1 - z) and u = g alpha (1 - z), ds = u - (sum u) v / sum v.
    """

    @staticmethod
    def forward(ctx: Any, scores_BS: Tensor, k: int, alpha: float) -> Tensor:
        logits_BS = alpha * (scores_BS + threshold(scores_BS, k, alpha)[:, None])
        ctx.save_for_backward(logits_BS)
        ctx.alpha = alpha
        return logsigmoid(logits_BS)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (logits_BS,) = ctx.saved_tensors
        u_BS = grads[0] * ctx.alpha * torch.sigmoid(-logits_BS)
        # v / sum v as a softmax: v itself underflows where scores lie far apart.
        share_BS = (logsigmoid(logits_BS) + logsigmoid(-logits_BS)).softmax(1)
        return u_BS - u_BS.sum(1, keepdim=True) * share_BS, None, None


def log_soft_top_k(scores_BS: Tensor, k: int, alpha: float) -> Tensor:
    """[B, S] log z. A pool of at most k labels has them all in the top k: log z = 0 everywhere."""
    if scores_BS.shape[1] <= k:
        return scores_BS * 0.0
    result: Tensor = _LogSoftTopK.apply(scores_BS, k, alpha)  # type: ignore[no-untyped-call]
    return result


def soft_top_k(
    queries_BD: Tensor,
    labels_SD: Tensor,
    positives: Positives,
    weights_P: Tensor,
    *,
    k: int,
    alpha: float = 2.0,
    temperature: float,
) -> Tensor:
    """Scalar: -log z of the positives, weighted within a query and averaged over the B queries."""
    log_z_BS = log_soft_top_k(scores(queries_BD, labels_SD, temperature), k, alpha)
    return mean_over_queries(-log_z_BS[positives.rows_P, positives.columns_P], weights_P, positives.num_queries)
