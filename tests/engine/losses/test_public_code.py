"""Our losses have the values and the gradients that public code gave on the same tensors (`public_code.yaml`).

Legend: B queries, S labels of the pool, D dimensions, P true pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor

from xmcbench import losses
from xmcbench.engine.tables.label_table import LabelTable
from xmcbench.engine.tables.settings import TableConfig
from xmcbench_plugins.prime import PRIME

VALUES = yaml.safe_load(Path(__file__).with_name("public_code.yaml").read_text(encoding="utf-8"))
B, D, HARDEST = 24, 16, 10
TOLERANCE = 1e-5  # relative: public code has float32 in places
EXCLUDED = {"weight_temperature": 0.1, "bystanders": "excluded", "over_negatives": "sum"}


@dataclass(frozen=True)
class Point:
    """Unit vectors, and which of B labels are true for B queries.

    `chosen` weighs true pairs: `drawn` has label i for query i, `one` the positive that losses of public code drew.
    """

    queries_BD: Tensor
    labels_SD: Tensor
    prototypes_SD: Tensor
    positives: losses.Positives

    @classmethod
    def make(cls) -> Point:
        rng = np.random.default_rng(0)

        def unit() -> Tensor:
            vectors = rng.standard_normal((B, D))
            return torch.from_numpy(vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).requires_grad_()

        truth_BS = torch.from_numpy((rng.random((B, B)) < 0.08) | np.eye(B, dtype=bool)).double()
        torch.manual_seed(0)
        one_BS = torch.zeros_like(truth_BS).scatter_(1, torch.multinomial(truth_BS, 1), 1.0)
        rows_P, columns_P = truth_BS.nonzero(as_tuple=True)
        chosen = {"drawn": (rows_P == columns_P).float(), "one": one_BS[rows_P, columns_P].float()}
        return cls(unit(), unit(), unit(), losses.Positives(rows_P, columns_P, B, B, chosen))


def triplet(point: Point, which: str, margin: float | losses.DynamicMargin = 0.3, **settings: Any) -> Tensor:
    weights_P, given = point.positives.weights(which), {"margin": margin, "hardest": HARDEST, **settings}
    return losses.triplet(point.queries_BD, point.labels_SD, point.positives, weights_P, **given)


def regulariser(point: Point) -> Tensor:
    config = SimpleNamespace(hardest=HARDEST, regulariser_margin=0.3, regulariser_mean="violators", positives="one")
    method: Any = SimpleNamespace(config=config)
    return PRIME._regulariser(method, point.queries_BD, point.labels_SD, point.prototypes_SD, point.positives)


def cross_entropy(point: Point) -> Tensor:
    """Times B: Renee sums over the batch, and its learning rates are for that."""
    table = LabelTable(np.arange(B), D, TableConfig.model_validate({"optimizer": "sgd"}), seed=0)
    table.weight = table.weight.to(torch.float64)
    table.weight.copy_(point.labels_SD.detach())
    return losses.cross_entropy_of_rows(point.queries_BD, table, point.positives) * B


def decoupled_softmax(point: Point) -> Tensor:
    true = point.positives
    return losses.decoupled_softmax(point.queries_BD, point.labels_SD, true, true.averaged(), temperature=0.05)


OURS: dict[str, Callable[[Point], Tensor]] = {
    "ngame: triplet": partial(triplet, which="drawn", over_negatives="mean"),
    "ngame: triplet, weighted": partial(
        triplet, which="drawn", weight_temperature=0.1, bystanders="zero logit", over_negatives="mean"
    ),
    "prime: triplet, fixed margin": partial(triplet, which="one", **EXCLUDED),
    "prime: triplet, dynamic margin": partial(triplet, which="one", margin=losses.DynamicMargin(0.1, 0.3), **EXCLUDED),
    "prime: regulariser": regulariser,
    "renee: cross-entropy": cross_entropy,
    "dexml: decoupled softmax": decoupled_softmax,
}


@pytest.mark.parametrize("name", OURS)
def test_loss_and_gradient_are_those_of_the_public_code(name: str) -> None:
    """The gradient is that of the queries, as B sums over its dimensions, weighted 1 to D."""
    point, theirs = Point.make(), VALUES[name]
    loss = OURS[name](point)
    (gradient_BD,) = torch.autograd.grad(loss, point.queries_BD)
    sums_B = (gradient_BD @ torch.arange(1.0, D + 1, dtype=torch.float64)).tolist()
    assert float(loss.detach()) == pytest.approx(theirs["loss"], rel=TOLERANCE)
    largest = max(map(abs, theirs["gradient"]))
    assert sums_B == pytest.approx(theirs["gradient"], rel=0, abs=TOLERANCE * largest)


def test_every_value_has_a_loss() -> None:
    assert list(VALUES) == list(OURS)
