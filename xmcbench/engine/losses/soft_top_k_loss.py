"""DEXML's soft top-k loss (Eq. 6 and 7, Section B.4), in one pass over the scores each way.

z = sigmoid(x + y), where x = alpha s and y is the threshold of each query that makes its z sum to k. Bisection would
score the pool once per step. Instead one pass keeps the M = 8 k largest x of each row, and power sums of e^x of the
others. As M of the z are at least that of the M-th largest x, and all sum to k, no other z exceeds k / M = 1/8: there

    z = e/(1 + e) = e - e^2 + e^3 - ...,  e = e^(x + y) <= 1/7,

so J power sums give their sum at any y, to the last digit: what is left out is at most 7^-J of it. The threshold is
then found from M + J numbers per row.

Legend: B queries, S labels of the pool (of this worker), C of a chunk, N some numbers of a row, M largest, J powers, K
the k largest, P positive pairs.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import logsigmoid, softplus

from xmcbench.engine import flops
from xmcbench.engine.losses.positives import Positives, of_scores
from xmcbench.engine.losses.score_sums import Scores, finite, largest
from xmcbench.engine.losses.softmax_losses import at_pairs, mean_over_queries
from xmcbench.engine.workers import Workers

SPARE = 8  # largest numbers kept, in multiples of k
NEWTON_STEPS = 60  # at most; a handful do
STEPS_PER_WAIT = 8  # of Newton's method on a GPU: to ask whether it has ended waits for the GPU


class _Row:
    """A summary of the numbers of each row so far: the `best_BM` largest, and power sums of all others.

    `powers_BJ` are the sums of e^(j (x - cut)), j = 1 .. J. The cut is the smallest of the best: no term exceeds 1.
    It is -inf of a row that is not full yet; nothing is left out of that.
    """

    def __init__(self, best_BM: Tensor) -> None:
        self.best_BM = best_BM
        num_powers = math.ceil(-math.log(torch.finfo(best_BM.dtype).eps) / math.log(SPARE - 1))
        self.j_J = torch.arange(1, num_powers + 1, dtype=best_BM.dtype, device=best_BM.device)
        self.powers_BJ = best_BM.new_zeros(best_BM.shape[0], num_powers)

    @property
    def cut_B1(self) -> Tensor:
        return self.best_BM.amin(1, keepdim=True)

    def add(self, numbers_BN: Tensor) -> None:
        """Add more numbers to the summary. They are overwritten."""
        size, cut_B1 = self.best_BM.shape[1], self.cut_B1
        candidates_BK, places_BK = largest(numbers_BN, size, cut_B1)
        rest_BN = numbers_BN.scatter_(1, places_BK, -torch.inf)
        ranked_BN = torch.cat([self.best_BM, candidates_BK], 1)
        self.best_BM, places_BM = ranked_BN.topk(size, dim=1, sorted=False)
        beaten_BN = ranked_BN.scatter_(1, places_BM, -torch.inf)
        self.powers_BJ *= self.rescaling(cut_B1)
        for others_BN in (rest_BN, beaten_BN):
            self._sum_powers(others_BN)

    def rescaling(self, cut_B1: Tensor) -> Tensor:
        """[B, J] what turns power sums relative to an earlier cut into those relative to this one."""
        return (self.j_J * (cut_B1 - finite(self.cut_B1))).exp()

    def _sum_powers(self, numbers_BN: Tensor) -> None:
        e_BN = numbers_BN.sub_(finite(self.cut_B1)).exp_()
        power_BN = e_BN.clone()
        for j in range(self.powers_BJ.shape[1]):
            self.powers_BJ[:, j] += power_BN.sum(1)
            power_BN *= e_BN

    def of_all(self, workers: Workers) -> _Row:
        """The combined summary of all workers."""
        row = _Row(torch.full_like(self.best_BM, -torch.inf))
        row.add(workers.gather(self.best_BM.T).T.clone())
        row.powers_BJ += workers.sum(self.powers_BJ * row.rescaling(self.cut_B1))
        return row


class _Balance:
    """log of the sum of z outside the top k, less that of the sum of 1 - z inside: 0 where z sums to k.

    Both sums are of small numbers, so this keeps the digits that sum z - k loses. In float64, on few numbers.
    """

    def __init__(self, row: _Row, k: int) -> None:
        best_BM = row.best_BM.double().sort(dim=1, descending=True).values
        self.top_BK, self.others_BM = best_BM[:, :k], best_BM[:, k:]
        self.cut_B = row.cut_B1[:, 0].double()
        self.powers_BJ, self.j_J = row.powers_BJ.double(), row.j_J.double()
        self.most_B = -self.cut_B - math.log(SPARE - 1)  # above it M of the z alone exceed k

    def tail(self, y_B: Tensor) -> tuple[Tensor, Tensor]:
        """log of the sum of z, and of z (1 - z), over all but the M largest."""
        e_B = (self.cut_B + y_B).clamp(max=-math.log(SPARE - 1)).exp()
        sums = []
        for coefficients_BJ in (self.powers_BJ, self.powers_BJ * self.j_J):
            sum_B = torch.zeros_like(e_B)
            for coefficient_B in coefficients_BJ.flip(1).unbind(1):
                sum_B = coefficient_B - e_B * sum_B
            sums.append(self.cut_B + y_B + sum_B.log())
        return sums[0], sums[1]

    def at(self, y_B: Tensor) -> tuple[Tensor, Tensor]:
        """The balance, and its derivative, which lies between 0 and 2."""
        top_BK, others_BM = self.top_BK + y_B[:, None], self.others_BM + y_B[:, None]
        tail_B, tail_slope_B = self.tail(y_B)
        outside_B = torch.logaddexp(logsigmoid(others_BM).logsumexp(1), tail_B)
        inside_B = logsigmoid(-top_BK).logsumexp(1)
        slope_B = torch.logaddexp(_log_slope(others_BM).logsumexp(1), tail_slope_B) - outside_B
        return outside_B - inside_B, slope_B.exp() + (_log_slope(top_BK).logsumexp(1) - inside_B).exp()

    def root(self) -> Tensor:
        """[B] y, by Newton's method inside a bracket that closes.

        It starts between the k-th and the next number. Left of there z <= 1/2 outside the top k, right of there
        1 - z <= 1/2 inside: towards the root the derivative is at least 1/2.
        """
        y_B = torch.minimum(-(self.top_BK[:, -1] + self.others_BM[:, 0]) / 2, self.most_B)
        low_B, high_B = torch.full_like(y_B, -torch.inf), self.most_B
        for step in range(1, NEWTON_STEPS + 1):
            balance_B, slope_B = self.at(y_B)
            low_B, high_B = torch.where(balance_B < 0, y_B, low_B), torch.where(balance_B < 0, high_B, y_B)
            newton_B = y_B - balance_B / slope_B
            inside_B = (newton_B >= low_B) & (newton_B <= high_B)
            last_B, y_B = y_B, torch.where(inside_B, newton_B, (low_B + high_B) / 2)
            asked = y_B.is_cpu or step % STEPS_PER_WAIT == 0
            if asked and bool(((y_B - last_B).abs() <= 1e-15 * y_B.abs()).all()):
                break
        return y_B

    def log_slopes(self, y_B: Tensor) -> Tensor:
        """[B] log of the sum of z (1 - z) over all labels."""
        best_BM = torch.cat([self.top_BK, self.others_BM], 1)
        return torch.logaddexp(_log_slope(best_BM + y_B[:, None]).logsumexp(1), self.tail(y_B)[1])


def _log_slope(x: Tensor) -> Tensor:
    """log of z (1 - z), the derivative of z = sigmoid(x)."""
    return logsigmoid(x) + logsigmoid(-x)


class _Threshold(Function):
    """y, and through it dy/dx_l = -v_l / sum v with v = z (1 - z): a softmax, as v itself underflows. And x_P."""

    @staticmethod
    @flops.by_formula()
    def forward(
        ctx: Any, queries_BD: Tensor, labels_SD: Tensor | None, positives: Positives, k: int, temperature: float
    ) -> tuple[Tensor, Tensor]:
        scores = Scores(queries_BD, labels_SD, positives, temperature)
        row, x_P = _Row(scores.new_rows(-torch.inf, SPARE * k)), scores.new_pairs()
        for start in scores.starts:
            x_BC, (here, places) = scores.chunk(start), scores.pairs(start)
            x_P[here] = x_BC[places]
            row.add(x_BC)
        balance = _Balance(row.of_all(positives.workers), k)
        y_B = balance.root()
        scores.remember(ctx, y_B.to(x_P.dtype), balance.log_slopes(y_B).to(x_P.dtype))
        return y_B.to(x_P.dtype), x_P

    @staticmethod
    @flops.by_formula()
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        scores = Scores.of(ctx)
        y_B1, slopes_B1 = (saved_B[:, None] for saved_B in ctx.saved_tensors[2:])
        asked_B1 = -scores.positives.workers.sum(grads[0])[:, None]

        def share(start: int) -> Tensor:
            # v = e / (1 + e)^2 with e = e^-|x + y|
            exponent_BC = scores.chunk(start).add_(y_B1).abs_().neg_()
            below_BC = exponent_BC.exp().add_(1).square_()
            return exponent_BC.sub_(slopes_B1).exp_().div_(below_BC).mul_(asked_B1)

        return *scores.pull(share, grads[1]), None, None, None


def threshold(
    queries_BD: Tensor, labels_SD: Tensor | None, positives: Positives, k: int, temperature: float
) -> tuple[Tensor, Tensor]:
    """[B] y with sum_l sigmoid(x_l + y) = k over the labels of all workers, which are more than k; [P] positives' x.

    x are inner products over `temperature`, which here is DEXML's temperature over its alpha.
    """
    threshold_and_scores: tuple[Tensor, Tensor] = _Threshold.apply(queries_BD, labels_SD, positives, k, temperature)  # type: ignore[no-untyped-call]
    return threshold_and_scores


@of_scores
def soft_top_k(
    queries_BD: Tensor,
    labels_SD: Tensor | None,
    positives: Positives,
    weights_P: Tensor,
    *,
    k: int,
    alpha: float = 2.0,
    temperature: float,
) -> Tensor:
    """Scalar: -log z of the positives, weighted within a query and averaged over the B queries; a worker's part.

    A pool of at most k labels has them all in the top k: its loss is 0.
    """
    (pool,) = positives.workers.totals(positives.num_labels)
    if pool <= k:
        total = queries_BD.sum() if labels_SD is None else queries_BD.sum() + labels_SD.sum()
        return total.to(torch.promote_types(queries_BD.dtype, torch.float32)) * 0.0
    y_B, x_P = threshold(queries_BD, labels_SD, positives, k, temperature / alpha)
    return mean_over_queries(softplus(-x_P - at_pairs(y_B, positives)), weights_P, positives)
