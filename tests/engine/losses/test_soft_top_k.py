"""The threshold of soft top-k: the root to the last digits, from one pass over the scores."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import expit
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.functional import logsigmoid

from xmcbench.engine.losses import Positives, score_sums, soft_top_k
from xmcbench.engine.losses.soft_top_k_loss import threshold


def threshold_of(x_BS: Tensor, k: int) -> Tensor:
    """The threshold of given scores: those of queries that are unit vectors."""
    none = torch.empty(0, dtype=torch.int64)
    true = Positives(none, none, *x_BS.shape)
    return threshold(torch.eye(len(x_BS), dtype=x_BS.dtype), x_BS.T, true, k, 1.0)[0]


def root(x_S: np.ndarray, k: int) -> float:
    """By bisection on a balance of small sums, as the losses balance them: sum z - k itself has no digits to spare."""
    order = np.sort(x_S.astype(np.float64))[::-1]

    def balance(y: float) -> float:
        return float(expit(order[k:] + y).sum() - expit(-(order[:k] + y)).sum())

    return float(brentq(balance, -order[0] - 50, -order[-1] + 50, xtol=1e-14, rtol=1e-15))


SPREADS = {
    "alike": lambda _, n: np.zeros(n),
    "close": lambda rng, n: 0.1 * rng.standard_normal(n),
    "normal": lambda rng, n: 3 * rng.standard_normal(n),
    "far": lambda rng, n: 20 * rng.standard_normal(n),
    "heavy": lambda rng, n: rng.standard_cauchy(n).clip(-300, 300),
    "tied": lambda rng, n: rng.integers(0, 3, n).astype(float),
    "a few far ahead": lambda rng, n: np.where(rng.random(n) < 5 / n, 30.0, -15 + rng.standard_normal(n)),
    "sorted": lambda rng, n: np.sort(rng.standard_normal(n) * 2),
}


@settings(max_examples=60)
@given(
    seed=st.integers(0, 1000),
    k=st.integers(1, 6),
    spare=st.integers(1, 600),
    spread=st.sampled_from(sorted(SPREADS)),
    chunk=st.sampled_from([1, 7, 100, 10_000]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    rows=st.integers(1, 3),
)
@example(seed=0, k=1, spare=7, spread="tied", chunk=8, dtype=torch.float64, rows=1)
@example(seed=0, k=3, spare=57, spread="close", chunk=100, dtype=torch.float64, rows=1)
def test_it_is_the_root_that_another_finder_gives(
    seed: int, k: int, spare: int, spread: str, chunk: int, dtype: torch.dtype, rows: int
) -> None:
    rng = np.random.default_rng(seed)
    x_BS = torch.from_numpy(np.stack([SPREADS[spread](rng, k + spare) for _ in range(rows)])).to(dtype)
    before = score_sums.CHUNK_SCORES["cpu"]
    score_sums.CHUNK_SCORES["cpu"] = chunk * len(x_BS)
    try:
        found_B = threshold_of(x_BS, k)
    finally:
        score_sums.CHUNK_SCORES["cpu"] = before
    wanted_B = [root(x_S, k) for x_S in x_BS.numpy()]
    # Sums over hundreds of scores leave a few units of float32's last place, 1.2e-7.
    precision = {torch.float32: 1e-6, torch.float64: 1e-14}[dtype]
    np.testing.assert_allclose(found_B.numpy(), wanted_B, rtol=precision, atol=precision)


@pytest.mark.parametrize("k", [1, 5, 100])
def test_many_labels_keep_the_digits(k: int) -> None:
    rng = np.random.default_rng(k)
    x_BS = torch.from_numpy(np.stack([spread(rng, 50_000) for spread in SPREADS.values()]).astype(np.float32))
    wanted_B = [root(x_S, k) for x_S in x_BS.numpy()]
    np.testing.assert_allclose(threshold_of(x_BS, k).numpy(), wanted_B, rtol=3e-7, atol=1e-6)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 1000), k=st.integers(1, 5), spare=st.integers(1, 60), spread=st.sampled_from([0.0, 1.0, 100.0])
)
def test_z_sums_to_k(seed: int, k: int, spare: int, spread: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    x_BS = spread * torch.randn(3, k + spare, generator=generator, dtype=torch.float64)
    z_BS = torch.sigmoid(x_BS + threshold_of(x_BS, k)[:, None])
    torch.testing.assert_close(z_BS.sum(1), torch.full((3,), float(k), dtype=torch.float64), rtol=1e-12, atol=0)


def test_the_bracket_holds_the_root_however_many_labels_score_alike() -> None:
    """Beyond 22,000 k equal labels the root lies below the bracket of DEXML's code."""
    found = threshold_of(torch.zeros(1, 200_000), 1).item()
    assert found == pytest.approx(-math.log(199_999), rel=1e-7)
    assert found < -10


@pytest.mark.parametrize("spread", [0.1, 3.0, 20.0])
@pytest.mark.parametrize("size", [7, 60])  # all are among the largest, or most are in the power sums
def test_backward_equals_finite_differences(spread: float, size: int) -> None:
    x_BS = spread * torch.randn(1, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert gradcheck(lambda x: threshold_of(x, 3), (x_BS.requires_grad_(),), eps=1e-6, atol=1e-5)


def log_z(x_BS: Tensor, k: int) -> Tensor:
    return logsigmoid(x_BS + threshold_of(x_BS, k)[:, None])


def test_a_threshold_moves_with_its_scores_even_where_float32_underflows() -> None:
    """Adding a constant to all scores changes nothing, so the gradient sums to 0."""
    x_BS = torch.tensor([[1800.0, 1760.0, -1400.0, -1800.0]], requires_grad=True)
    log_z(x_BS, 2)[0, 2].backward()
    assert x_BS.grad is not None
    assert bool(torch.isfinite(x_BS.grad).all())
    assert x_BS.grad[0, 2] > 0
    assert x_BS.grad.sum().item() == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize("size", [1, 4, 5])
def test_a_pool_of_at_most_k_labels_is_the_top_k(size: int) -> None:
    queries, labels = torch.randn(2, 3, requires_grad=True), torch.randn(size, 3, requires_grad=True)
    true = Positives(torch.tensor([0, 1]), torch.tensor([0, size - 1]), 2, size)
    loss = soft_top_k(queries, labels, true, true.every(), k=5, temperature=0.1)
    loss.backward()
    assert loss.item() == 0
    assert queries.grad is not None
    assert labels.grad is not None
    assert not queries.grad.any()
    assert not labels.grad.any()
