"""Every loss against its equation, its gradient, and the ends of its range."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from xmcbench import losses
from xmcbench.losses import Positives

from . import reference

K, ALPHA = 2, 2.0
WEIGHTS = ("every", "averaged", "one_sampled")
TERMS = {
    "softmax": reference.softmax,
    "decoupled_softmax": reference.decoupled_softmax,
    "soft_top_k": reference.soft_top_k(K, ALPHA),
}
TRUTHS = {
    "ordinary": np.array([[0, 1, 0, 0, 1], [1, 0, 0, 0, 0], [0, 0, 1, 1, 1]]),
    "a query without a positive": np.array([[0, 0, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0]]),
    "an all-positive row": np.array([[1, 1, 1, 1], [1, 0, 0, 0]]),
    "one label": np.array([[1], [0], [1]]),
    "one query": np.array([[0, 1, 1, 0, 0, 0]]),
    "one pair": np.array([[1]]),
    "as many labels as k": np.array([[1, 0], [1, 1]]),
    "no positive at all": np.zeros((2, 3), int),
}


def evaluate(name: str, queries_BD: Tensor, labels_SD: Tensor, positives: Positives, scheme: str, tau: float) -> Tensor:
    if name == "binary_cross_entropy":
        return losses.binary_cross_entropy(queries_BD, labels_SD, positives, temperature=tau)
    weights_P = getattr(positives, scheme)()
    if name == "soft_top_k":
        return losses.soft_top_k(queries_BD, labels_SD, positives, weights_P, k=K, alpha=ALPHA, temperature=tau)
    loss: Callable[..., Tensor] = getattr(losses, name)
    return loss(queries_BD, labels_SD, positives, weights_P, temperature=tau)


def expected(name: str, queries_BD: Tensor, labels_SD: Tensor, truth: np.ndarray, scheme: str, tau: float) -> Tensor:
    if name == "binary_cross_entropy":
        return reference.binary_cross_entropy(queries_BD, labels_SD, truth, tau)
    weight = reference.weighting(scheme, truth, reference.positives_of(truth))
    return reference.mean_loss(TERMS[name], queries_BD, labels_SD, truth, weight, tau)


def embeddings(truth: np.ndarray, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Queries [B, 3] and labels [S, 3], unit vectors that ask for a gradient."""
    generator = torch.Generator().manual_seed(seed)
    both = [torch.randn(size, 3, generator=generator, dtype=torch.float64) for size in truth.shape]
    queries, labels = (torch.nn.functional.normalize(x, dim=1).to(dtype).requires_grad_() for x in both)
    return queries, labels


CASES = [(name, scheme) for name in TERMS for scheme in WEIGHTS] + [("binary_cross_entropy", "every")]


@pytest.mark.parametrize("truth", TRUTHS.values(), ids=TRUTHS)
@pytest.mark.parametrize(("name", "scheme"), CASES)
def test_value_and_both_gradients_equal_the_equation(name: str, scheme: str, truth: np.ndarray) -> None:
    queries, labels = embeddings(truth)
    found = evaluate(name, queries, labels, reference.positives_of(truth), scheme, 0.3)
    wanted = expected(name, queries, labels, truth, scheme, 0.3)
    assert found.dtype == torch.float64
    assert found.item() == pytest.approx(wanted.item(), rel=1e-6, abs=1e-9)  # weights are float32
    gradients = torch.autograd.grad(found, (queries, labels))
    if not wanted.requires_grad:  # no positive at all: a sum of nothing
        assert all(not g.any() for g in gradients)
        return
    for gradient, other in zip(gradients, torch.autograd.grad(wanted, (queries, labels)), strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", [*TERMS, "binary_cross_entropy"])
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    truth = TRUTHS["ordinary"]
    positives = reference.positives_of(truth)
    assert gradcheck(lambda q, z: evaluate(name, q, z, positives, "every", 0.5), embeddings(truth, seed=1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("temperature", [1e-4, 0.05, 1e4])
@pytest.mark.parametrize("truth", TRUTHS.values(), ids=TRUTHS)
@pytest.mark.parametrize("name", [*TERMS, "binary_cross_entropy"])
def test_nothing_overflows(name: str, truth: np.ndarray, temperature: float, dtype: torch.dtype) -> None:
    queries, labels = embeddings(truth, seed=2, dtype=dtype)
    loss = evaluate(name, queries, labels, reference.positives_of(truth), "every", temperature)
    loss.backward()
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    for tensor in (loss, queries.grad, labels.grad):
        assert tensor is not None
        assert bool(torch.isfinite(tensor).all())
    assert queries.grad is not None
    assert queries.grad.dtype == dtype


def test_the_gradient_of_decoupled_softmax_is_the_papers() -> None:
    """On z_j of a positive -(1 - sigma_ij) x_i; on a negative's z_n sum_j e^s_in / (e^s_ij + negatives) x_i."""
    truth, tau = TRUTHS["ordinary"], 0.3
    queries, labels = embeddings(truth)
    positives = reference.positives_of(truth)
    losses.decoupled_softmax(queries, labels, positives, positives.every(), temperature=tau).backward()
    x, z = queries.detach().numpy(), labels.detach().numpy()
    e = np.exp(x @ z.T / tau)
    wanted = np.zeros_like(z)
    for i, row in enumerate(truth):
        negatives = sum(e[i, n] for n in np.flatnonzero(row == 0))
        for j in np.flatnonzero(row):
            wanted[j] -= (1 - e[i, j] / (e[i, j] + negatives)) * x[i]
            for n in np.flatnonzero(row == 0):
                wanted[n] += e[i, n] / (e[i, j] + negatives) * x[i]
    assert labels.grad is not None
    np.testing.assert_allclose(labels.grad.numpy(), wanted / tau / len(truth), rtol=1e-10)


def test_decoupling_matters_only_beside_other_positives() -> None:
    one = np.array([[0, 1, 0, 0], [1, 0, 0, 0]])
    for truth, same in ((one, True), (TRUTHS["ordinary"], False)):
        queries, labels = embeddings(truth)
        positives = reference.positives_of(truth)
        found = [evaluate(name, queries, labels, positives, "every", 0.3) for name in ("softmax", "decoupled_softmax")]
        assert torch.allclose(*found) is same


@pytest.mark.parametrize("name", [*TERMS, "binary_cross_entropy"])
def test_the_order_of_the_labels_does_not_matter(name: str) -> None:
    truth = TRUTHS["ordinary"]
    queries, labels = embeddings(truth)
    order = np.array([4, 2, 0, 1, 3])
    found = evaluate(name, queries, labels, reference.positives_of(truth), "every", 0.3)
    other = evaluate(name, queries, labels[order], reference.positives_of(truth[:, order]), "every", 0.3)
    torch.testing.assert_close(found, other)
