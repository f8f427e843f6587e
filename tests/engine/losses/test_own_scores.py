"""Losses of scores that are no inner products: those of a method's `score`, and given ones.

Legend: B queries, S labels, D dimensions.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from xmcbench import losses
from xmcbench.engine.flops import counting
from xmcbench.engine.losses import own_scores
from xmcbench.engine.losses.own_scores import score_matrix
from xmcbench.engine.tables.label_table import LabelTable
from xmcbench.engine.tables.settings import TableConfig

from . import reference
from .cases import CASES, ONE_EACH, embeddings, outcome

TRUTH = np.array([[0, 1, 0, 0, 1], [1, 0, 0, 0, 0], [0, 0, 1, 1, 1]])


def products(queries_BD: Tensor, labels_SD: Tensor) -> Tensor:
    return queries_BD @ labels_SD.T


def near(queries_BD: Tensor, labels_SD: Tensor) -> Tensor:
    """No inner product of any two vectors."""
    return -(queries_BD[:, None] - labels_SD[None]).abs().sum(2)


@pytest.mark.parametrize("numbers", [1 << 21, 9])  # in one chunk, and a label at a time
@pytest.mark.parametrize("name", CASES)
def test_a_score_that_is_the_inner_product_changes_nothing(
    name: str, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(own_scores.NUMBERS, "cpu", numbers)
    positives, both = reference.positives_of(TRUTH), embeddings(TRUTH.shape)
    found = outcome(CASES[name], *both, replace(positives, score=products), 0.3)
    for tensor, wanted in zip(found, outcome(CASES[name], *both, positives, 0.3), strict=True):
        torch.testing.assert_close(tensor, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", [name for name in ONE_EACH if "triplet" not in name])  # these scale the queries
def test_given_scores_are_those_of_the_score(name: str) -> None:
    positives, (queries, labels) = reference.positives_of(TRUTH), embeddings(TRUTH.shape)
    value, *gradients = outcome(CASES[name], queries, labels, replace(positives, score=near), 0.3)
    given = CASES[name].value(near(queries, labels), None, positives, 0.3)  # type: ignore[arg-type]
    torch.testing.assert_close(value, given.detach())
    for gradient, wanted in zip(gradients, torch.autograd.grad(given, (queries, labels)), strict=True):
        torch.testing.assert_close(gradient, wanted)


def test_the_modules_of_a_score_learn_in_every_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, labels = embeddings((3, 5))
    weight, drop = torch.tensor(0.7, dtype=torch.float64, requires_grad=True), torch.nn.Dropout(0.5)

    def gradients() -> list[Tensor]:
        torch.manual_seed(0)
        scores_BS = score_matrix(lambda q, z: weight * drop(near(q, z)), queries, labels)
        return list(torch.autograd.grad((scores_BS**2).sum(), (queries, labels, weight)))

    whole = gradients()
    monkeypatch.setitem(own_scores.NUMBERS, "cpu", 9)
    drop.p = 0.0
    chunked = gradients()
    drop.eval()
    monkeypatch.setitem(own_scores.NUMBERS, "cpu", 1 << 21)
    for found, wanted in zip(chunked, gradients(), strict=True):
        torch.testing.assert_close(found, wanted)
    assert not torch.allclose(whole[2], chunked[2])  # dropout was there


def test_what_is_computed_again_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward pass, and a backward pass that multiplies twice as much."""
    queries, labels = embeddings((3, 5), dtype=torch.float32)
    positives = replace(reference.positives_of(TRUTH), score=lambda q, z: products(q, z) ** 2)
    counts = []
    for numbers in (1 << 21, 9):
        monkeypatch.setitem(own_scores.NUMBERS, "cpu", numbers)
        with FlopCounterMode(display=False) as torchs, counting() as own:
            losses.softmax(queries, labels, positives, positives.every(), temperature=1.0).backward()
        counts.append((own.flops + own.module_flops, torchs.get_total_flops()))
    once = 2 * queries.numel() * len(labels)
    assert counts == [(3 * once, 3 * once), (3 * once, 4 * once)]


def test_scores_of_another_shape_are_refused() -> None:
    queries, labels = embeddings((3, 5))
    positives = reference.positives_of(TRUTH)
    with pytest.raises(ValueError, match=r"score returned \[5, 3\], expected \[queries, labels\] = \[3, 5\]"):
        losses.binary_cross_entropy(
            queries, labels, replace(positives, score=lambda q, z: products(q, z).T), temperature=1.0
        )
    with pytest.raises(ValueError, match=r"score returned \[3, 4\]"):
        losses.binary_cross_entropy(torch.zeros(3, 4), None, positives, temperature=1.0)


def test_the_fused_loss_of_a_table_refuses_another_score() -> None:
    queries, _ = embeddings((3, 5), dtype=torch.float32)
    table = LabelTable(torch.arange(5), 3, TableConfig())
    with pytest.raises(ValueError, match="the method defines another score"):
        losses.cross_entropy_of_rows(queries, table, replace(reference.positives_of(TRUTH), score=products))
