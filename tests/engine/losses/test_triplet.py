"""Margins, and which negatives a triplet sees."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from xmcbench.engine.losses import DynamicMargin, Positives, hardest_pairs, pair_scores, score_sums, triplet
from xmcbench.engine.losses.triplet_loss import hardest_negatives

GENTLE = DynamicMargin(0.1, 0.3)


def hinge(margin: DynamicMargin, s_p: float, s_n: float) -> tuple[float, float, float]:
    """Value and gradient with respect to both scores."""
    positive, negative = torch.tensor(s_p, requires_grad=True), torch.tensor(s_n, requires_grad=True)
    value = margin.hinge(positive, negative)
    value.backward()
    assert positive.grad is not None
    assert negative.grad is not None
    return value.item(), positive.grad.item(), negative.grad.item()


@pytest.mark.parametrize(
    ("s_p", "s_n", "wanted"),
    [
        (0.2, 0.25, (0.15, -1, 1)),  # behind by 0.05: margin 0.1
        (0.2, 0.4, (0.4, -1, 1)),  # behind by 0.2: margin 0.2
        (0.2, 0.9, (1.0, -1, 1)),  # behind by 0.7: margin 0.3
        (0.9, 0.2, (0.0, 0, 0)),  # ahead by more than 0.1
        (0.55, 0.5, (0.05, -1, 1)),  # ahead, but not by 0.1
    ],
)
def test_the_dynamic_margin_by_its_cases(s_p: float, s_n: float, wanted: tuple[float, float, float]) -> None:
    assert hinge(GENTLE, s_p, s_n) == pytest.approx(wanted, abs=1e-6)


def test_as_printed_it_pulls_a_positive_that_is_barely_ahead_back() -> None:
    printed = DynamicMargin(0.1, 0.3, as_printed=True)
    assert hinge(printed, 0.55, 0.5) == pytest.approx((0.15, 1, -1), abs=1e-6)
    for s_p, s_n in ((0.2, 0.25), (0.2, 0.9), (0.9, 0.2)):
        assert hinge(printed, s_p, s_n) == hinge(GENTLE, s_p, s_n)


def line(*scores: float) -> tuple[Tensor, Tensor]:
    """One query, and labels with these scores."""
    return torch.ones(1, 1, requires_grad=True), torch.tensor(scores)[:, None].requires_grad_()


FIRST = Positives(torch.tensor([0, 0]), torch.tensor([0, 3]), 1, 5)  # labels 0 and 3
ONLY_0 = torch.tensor([1.0, 0.0])


def test_the_hardest_are_negatives_best_first() -> None:
    queries, labels = line(0.5, 0.1, 0.4, 0.9, 0.2)
    found, on_positives = hardest_negatives(queries, labels, FIRST, 2)
    torch.testing.assert_close(on_positives, torch.tensor([0.5, 0.9]))
    torch.testing.assert_close(found, torch.tensor([[0.4, 0.2]]))
    (found * torch.tensor([[1.0, 10.0]])).sum().backward()
    assert labels.grad is not None
    torch.testing.assert_close(labels.grad[:, 0], torch.tensor([0.0, 0.0, 1.0, 0.0, 10.0]))


def test_the_mean_is_over_the_negatives_there_are() -> None:
    queries, labels = line(0.5, 0.1, 0.4, 0.9, 0.2)
    assert hardest_negatives(queries, labels, FIRST, 4)[0][0, 3] == -torch.inf
    hinges = [1 - 0.5 + s_n for s_n in (0.4, 0.2, 0.1)]
    total = triplet(queries, labels, FIRST, ONLY_0, margin=1.0, hardest=9, over_negatives="sum")
    assert total.item() == pytest.approx(sum(hinges))
    mean = triplet(queries, labels, FIRST, ONLY_0, margin=1.0, hardest=9, over_negatives="mean")
    assert mean.item() == pytest.approx(sum(hinges) / 3)


def test_bystanders_take_their_share_of_the_weight_or_not() -> None:
    """One violator of two: alone it weighs 1, beside a logit of 0 it weighs e^s / (e^s + 1)."""
    queries, labels = line(0.5, -0.9, 0.4, 0.9, -0.9)
    common: dict[str, Any] = {"margin": 0.3, "hardest": 2, "weight_temperature": 0.1, "over_negatives": "sum"}

    def value(**options: str) -> float:
        return triplet(queries, labels, FIRST, ONLY_0, **common, **options).item()

    assert value() == pytest.approx(0.2)
    assert value(bystanders="zero logit") == pytest.approx(0.2 / (1 + torch.exp(torch.tensor(-4.0)).item()))


@pytest.mark.parametrize("bystanders", ["excluded", "zero logit"])
def test_without_a_violator_there_is_nothing_to_learn(bystanders: str) -> None:
    queries, labels = line(0.9, -0.5, -0.6, 0.8, -0.7)
    loss = triplet(
        queries,
        labels,
        FIRST,
        ONLY_0,
        margin=GENTLE,
        hardest=3,
        weight_temperature=0.1,
        bystanders=bystanders,
        over_negatives="mean",
    )
    loss.backward()
    assert loss.item() == 0
    assert labels.grad is not None
    assert not labels.grad.any()


def test_hardest_pairs_are_those_of_the_hardest_scores() -> None:
    queries, labels = line(0.5, 0.1, 0.4, 0.9, 0.2)
    for count, wanted in ((1, [2]), (2, [2, 4]), (9, [1, 2, 4])):
        found = hardest_pairs(queries, labels, FIRST, count)
        assert sorted(found.columns_P.tolist()) == wanted
        assert found.rows_P.tolist() == [0] * len(wanted)


@pytest.mark.parametrize("chunk", [1, 4, 1 << 21])
def test_pair_scores_and_their_gradients_are_those_of_the_products(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(score_sums.CHUNK_SCORES, "cpu", chunk)
    generator = torch.Generator().manual_seed(0)
    queries, labels = (torch.randn(n, 3, generator=generator, dtype=torch.float64).requires_grad_() for n in (2, 5))
    pairs = Positives(torch.tensor([0, 0, 1]), torch.tensor([4, 0, 4]), 2, 5)
    ours, wanted = pair_scores(queries, labels, pairs), (queries @ labels.T)[pairs.rows_P, pairs.columns_P]
    torch.testing.assert_close(ours, wanted)
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    both = [torch.autograd.grad(scores @ weights, (queries, labels)) for scores in (ours, wanted)]
    torch.testing.assert_close(both[0], both[1])
