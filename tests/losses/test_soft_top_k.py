"""The soft top-k operator by itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from xmcbench.losses.soft_top_k import log_soft_top_k, threshold

from .reference import threshold as reference_threshold


@settings(max_examples=40)
@given(
    seed=st.integers(0, 1000),
    k=st.integers(1, 5),
    spare=st.integers(1, 30),
    alpha=st.sampled_from([0.1, 2.0, 20.0]),
    spread=st.sampled_from([0.0, 1.0, 100.0]),
)
def test_z_sums_to_k_and_lies_in_the_unit_interval(seed: int, k: int, spare: int, alpha: float, spread: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = spread * torch.randn(3, k + spare, generator=generator, dtype=torch.float64)
    z = log_soft_top_k(scores, k, alpha).exp()
    assert bool(((z >= 0) & (z <= 1)).all())
    torch.testing.assert_close(z.sum(1), torch.full((3,), float(k), dtype=torch.float64), rtol=1e-8, atol=0)
    assert bool((z.argsort(1) == scores.argsort(1)).all()) or spread != 1.0


def test_the_threshold_is_the_root_that_another_finder_gives() -> None:
    scores = 5 * torch.randn(4, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    wanted = [reference_threshold(list(row), 3, 2.0).item() for row in scores]
    np.testing.assert_allclose(threshold(scores, 3, 2.0).numpy(), wanted, atol=1e-10)


def test_the_bracket_holds_the_root_however_many_labels_score_alike() -> None:
    """Beyond 22,000 k equal labels the root lies below the bracket of DEXML's code."""
    scores = torch.zeros(1, 200_000)
    assert log_soft_top_k(scores, 1, 2.0).exp().sum().item() == pytest.approx(1.0, rel=1e-3)
    assert threshold(scores, 1, 2.0).item() < -10 / 2.0


@pytest.mark.parametrize("spread", [0.1, 3.0, 20.0])
def test_backward_equals_finite_differences(spread: float) -> None:
    scores = spread * torch.randn(3, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert gradcheck(lambda s: log_soft_top_k(s, 3, 2.0), (scores.requires_grad_(),), eps=1e-6, atol=1e-5)


def test_a_threshold_moves_with_its_scores_even_where_float32_underflows() -> None:
    """Adding a constant to all scores changes nothing, so the gradient sums to 0."""
    scores = torch.tensor([[900.0, 880.0, -700.0, -900.0]], requires_grad=True)
    log_soft_top_k(scores, 2, 2.0)[0, 2].backward()
    assert scores.grad is not None
    assert bool(torch.isfinite(scores.grad).all())
    assert scores.grad[0, 2] > 0
    assert scores.grad.sum().item() == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("size", [1, 4, 5])
def test_a_pool_of_at_most_k_labels_is_the_top_k(size: int) -> None:
    scores = torch.randn(2, size, requires_grad=True)
    log_z = log_soft_top_k(scores, 5, 2.0)
    log_z.sum().backward()
    assert scores.grad is not None
    assert not log_z.any()
    assert not scores.grad.any()
