"""Every loss in every direction, as it is called and as its equation says it: what the tests here go over."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xmcbench import losses
from xmcbench.engine.losses import DynamicMargin, Positives

from . import reference

K, ALPHA = 2, 2.0
NGAME: dict[str, Any] = {
    "hardest": 3,
    "weight_temperature": 0.1,
    "bystanders": "zero logit",
    "over_negatives": "mean",
}
PRIME: dict[str, Any] = {**NGAME, "bystanders": "excluded", "over_negatives": "sum"}
UNWEIGHTED: dict[str, Any] = {**PRIME, "weight_temperature": None, "hardest": 2}
TRIPLETS: dict[str, dict[str, Any]] = {
    "triplet, ngame": {"margin": 0.3, **NGAME},
    "triplet, prime": {"margin": (0.1, 0.3), **PRIME},
    "triplet, prime as printed": {"margin": (0.3, 0.6), "as_printed": True, **PRIME},
    "triplet, unweighted": {"margin": 0.5, **UNWEIGHTED},
}


@dataclass(frozen=True)
class Case:
    """A loss of queries, labels, positives, temperature; its term in `reference`, None for cross-entropy."""

    loss: Callable[[Tensor, Tensor, Positives, float], Tensor]
    term: reference.Term | None
    scheme: str = "all"
    turned: bool = False

    def value(self, queries_BD: Tensor, labels_SD: Tensor, positives: Positives, temperature: float) -> Tensor:
        if not self.turned:
            return self.loss(queries_BD, labels_SD, positives, temperature)
        torch.manual_seed(0)
        return self.loss(*losses.label_to_query(queries_BD, labels_SD, positives), temperature)

    def expected(self, queries_BD: Tensor, labels_SD: Tensor, truth_BS: np.ndarray, temperature: float) -> Tensor:
        if self.term is None:
            return reference.binary_cross_entropy(queries_BD, labels_SD, truth_BS, temperature)
        positives = reference.positives_of(truth_BS)
        if self.turned:
            torch.manual_seed(0)
            positives = losses.label_to_query(queries_BD, labels_SD, positives)[2]
            has_query_S = truth_BS.any(0)
            queries_BD, labels_SD = labels_SD[torch.from_numpy(has_query_S)], queries_BD
            truth_BS = truth_BS.T[has_query_S]
        weight = reference.weighting(self.scheme, truth_BS, positives)
        return reference.mean_loss(self.term, queries_BD, labels_SD, truth_BS, weight, temperature)


def weighted(loss: Callable[..., Tensor], scheme: str, q: Tensor, z: Tensor, p: Positives, tau: float) -> Tensor:
    return loss(q, z, p, p.averaged() if scheme == "averaged" else p.weights(scheme), temperature=tau)


def unweighted(loss: Callable[..., Tensor], q: Tensor, z: Tensor, p: Positives, tau: float) -> Tensor:
    return loss(q, z, p, temperature=tau)


def triplet(settings: dict[str, Any], q: Tensor, z: Tensor, p: Positives, tau: float) -> Tensor:
    """Triplets have no temperature: queries stand in for it."""
    margin, as_printed = settings["margin"], settings.get("as_printed", False)
    others = {name: value for name, value in settings.items() if name not in ("margin", "as_printed")}
    given = margin if isinstance(margin, float) else DynamicMargin(*margin, as_printed)
    return losses.triplet(q / tau, z, p, p.weights("drawn"), margin=given, **others)


def every_case() -> dict[str, Case]:
    soft_top_k = partial(losses.soft_top_k, k=K, alpha=ALPHA)
    cases = {}
    for name, loss, term in (
        ("softmax", losses.softmax, reference.softmax),
        ("decoupled softmax", losses.decoupled_softmax, reference.decoupled_softmax),
        ("soft top-k", soft_top_k, reference.soft_top_k(K, ALPHA)),
    ):
        for scheme in ("all", "averaged", "one"):
            cases[f"{name}, {scheme}"] = Case(partial(weighted, loss, scheme), term, scheme)
    cases["psl"] = Case(partial(unweighted, losses.psl), reference.softmax, "averaged")
    cases["pal"] = Case(partial(unweighted, losses.pal), reference.softmax, "all")
    for name, settings in TRIPLETS.items():
        cases[name] = Case(partial(triplet, settings), reference.triplet(**settings), "drawn")
    turned = {f"{name}, label to query": Case(c.loss, c.term, c.scheme, turned=True) for name, c in cases.items()}
    cases["binary cross-entropy"] = Case(partial(unweighted, losses.binary_cross_entropy), None)
    return {**cases, **turned}


CASES = every_case()
ONE_EACH = [name for name in CASES if not re.search("averaged|, one|psl|pal", name)]


def embeddings(
    shape: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float64, dimensions: int = 3
) -> tuple[Tensor, Tensor]:
    """Queries [B, 3] and labels [S, 3], unit vectors that ask for a gradient."""
    generator = torch.Generator().manual_seed(seed)
    both = [torch.randn(size, dimensions, generator=generator, dtype=torch.float64) for size in shape]
    queries, labels = (torch.nn.functional.normalize(x, dim=1).to(dtype).requires_grad_() for x in both)
    return queries, labels


def outcome(
    case: Case, queries: Tensor, labels: Tensor, positives: Positives, tau: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss and both gradients."""
    value = case.value(queries, labels, positives, tau)
    return value.detach(), *torch.autograd.grad(value, (queries, labels))
