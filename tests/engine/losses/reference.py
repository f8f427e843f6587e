"""The losses as their equations are written: one query and one label at a time, in float64.

B queries, S labels, D dimensions. The thresholds of soft top-k come from scipy's root finder.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor

from xmcbench.engine.losses import Positives

Weight = Callable[[int, int], float]  # of a pair (row, column)
Term = Callable[[list[Tensor], int, np.ndarray], Tensor]  # of a row's scores, one positive, the row of the truth


def positives_of(truth_BS: np.ndarray, seed: int = 0) -> Positives:
    """The dense truth as the losses take it: one pair of each row is `one`, up to two are `drawn`."""
    rng = np.random.default_rng(seed)
    rows, columns = np.nonzero(truth_BS)
    chosen = {}
    for which, count in (("one", 1), ("drawn", 2)):
        weights_P = torch.zeros(len(rows))
        for row in np.flatnonzero(truth_BS.any(1)):
            pairs = np.flatnonzero(rows == row)
            weights_P[rng.choice(pairs, min(count, len(pairs)), replace=False)] = 1
        chosen[which] = weights_P
    return Positives(torch.from_numpy(rows), torch.from_numpy(columns), *truth_BS.shape, chosen)


def weighting(name: str, truth_BS: np.ndarray, positives: Positives) -> Weight:
    """What the scheme `name` of `Positives` says of one pair."""
    if name == "all":
        return lambda row, column: 1.0  # noqa: ARG005
    if name == "averaged":
        return lambda row, column: 1.0 / truth_BS[row].sum()  # noqa: ARG005
    pairs = zip(positives.rows_P.tolist(), positives.columns_P.tolist(), strict=True)
    chosen = dict(zip(pairs, positives.chosen[name].tolist(), strict=True))
    return lambda row, column: chosen[row, column]


def score(query_D: Tensor, label_D: Tensor, temperature: float) -> Tensor:
    return query_D @ label_D / temperature


def softmax(scores_S: list[Tensor], positive: int, truth_S: np.ndarray) -> Tensor:  # noqa: ARG001
    return -torch.log(scores_S[positive].exp() / sum(s.exp() for s in scores_S))


def decoupled_softmax(scores_S: list[Tensor], positive: int, truth_S: np.ndarray) -> Tensor:
    own = scores_S[positive].exp()
    return -torch.log(own / (own + sum(s.exp() for s, true in zip(scores_S, truth_S, strict=True) if not true)))


def soft_top_k(k: int, alpha: float) -> Term:
    def term(scores_S: list[Tensor], positive: int, truth_S: np.ndarray) -> Tensor:  # noqa: ARG001
        if len(scores_S) <= k:
            return scores_S[positive] * 0
        t = threshold(scores_S, k, alpha)
        return -torch.log(1 / (1 + torch.exp(-alpha * (scores_S[positive] + t))))

    return term


def threshold(scores_S: list[Tensor], k: int, alpha: float) -> Tensor:
    """The root, and one Newton step from it: no change of value, but the derivative of the implicit function."""

    def excess(t: float) -> float:
        return sum(1 / (1 + math.exp(-alpha * (s.item() + t))) for s in scores_S) - k

    values = [s.item() for s in scores_S]
    root = brentq(excess, -max(values) - 50 / alpha, -min(values) + 50 / alpha, xtol=1e-13)
    z_S = [1 / (1 + torch.exp(-alpha * (s + root))) for s in scores_S]
    slope = sum(alpha * z.item() * (1 - z.item()) for z in z_S)
    return root - (sum(z_S) - k) / slope


def hinge(positive: Tensor, negative: Tensor, margin: float | tuple[float, float], as_printed: bool = False) -> Tensor:
    """A fixed margin, or PRIME's clip(|s_p - s_n|, low, high) by the three cases it makes."""
    if isinstance(margin, float):
        return torch.relu(negative - positive + margin)
    low, high = margin
    ahead = positive - negative
    if ahead <= 0:
        return -ahead + min(max(-ahead.item(), low), high)
    if ahead >= low:
        return ahead * 0
    return ahead + low if as_printed else low - ahead


def triplet(
    margin: float | tuple[float, float],
    hardest: int,
    weight_temperature: float | None,
    bystanders: str,
    over_negatives: str,
    as_printed: bool = False,
) -> Term:
    def term(scores_S: list[Tensor], positive: int, truth_S: np.ndarray) -> Tensor:
        negatives = sorted((s for s, true in zip(scores_S, truth_S, strict=True) if not true), key=lambda s: -s.item())
        hinges = [(n, hinge(scores_S[positive], n, margin, as_printed)) for n in negatives[:hardest]]
        total = scores_S[positive] * 0
        of_all: Tensor | float = 1.0
        if weight_temperature is not None:
            in_softmax = [(n, h) for n, h in hinges if h > 0 or bystanders == "zero logit"]
            of_all = sum((torch.exp(n / weight_temperature * float(h > 0)) for n, h in in_softmax), torch.zeros(()))
        for n, h in hinges:
            if h == 0:
                continue
            weight = 1.0 if weight_temperature is None else torch.exp(n / weight_temperature) / of_all
            total = total + weight * h
        return total / (len(hinges) or 1) if over_negatives == "mean" else total

    return term


def mean_loss(
    term: Term, queries_BD: Tensor, labels_SD: Tensor, truth_BS: np.ndarray, weight: Weight, temperature: float
) -> Tensor:
    """Weighted terms of the positives, summed within a query, averaged over all queries."""
    total = torch.zeros((), dtype=torch.float64)
    for row, query_D in enumerate(queries_BD):
        scores_S = [score(query_D, label_D, temperature) for label_D in labels_SD]
        for positive in np.flatnonzero(truth_BS[row]):
            if weight(row, int(positive)):
                total = total + weight(row, int(positive)) * term(scores_S, int(positive), truth_BS[row])
    return total / max(len(queries_BD), 1)


def binary_cross_entropy(queries_BD: Tensor, labels_SD: Tensor, truth_BS: np.ndarray, temperature: float) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for row, query_D in enumerate(queries_BD):
        for column, label_D in enumerate(labels_SD):
            chance = 1 / (1 + torch.exp(-score(query_D, label_D, temperature)))
            total = total - torch.log(chance if truth_BS[row, column] else 1 - chance)
    return total / len(queries_BD)
