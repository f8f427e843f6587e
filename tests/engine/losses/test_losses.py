"""Every loss against its equation, its gradient, and the ends of its range."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from xmcbench import losses

from . import reference
from .cases import CASES, ONE_EACH, embeddings, outcome

TRUTHS = {
    "ordinary": np.array([[0, 1, 0, 0, 1], [1, 0, 0, 0, 0], [0, 0, 1, 1, 1]]),
    "a query without a positive": np.array([[0, 0, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0]]),
    "an all-positive row": np.array([[1, 1, 1, 1], [1, 0, 0, 0]]),
    "one label": np.array([[1], [0], [1]]),
    "one query": np.array([[0, 1, 1, 0, 0, 0]]),
    "one pair": np.array([[1]]),
    "as many labels as k": np.array([[1, 0], [1, 1]]),
    "no positive at all": np.zeros((2, 3), int),
    "no label": np.zeros((2, 0), int),
}


@pytest.mark.parametrize("truth", TRUTHS.values(), ids=TRUTHS)
@pytest.mark.parametrize("name", CASES)
def test_value_and_both_gradients_equal_the_equation(name: str, truth: np.ndarray) -> None:
    queries, labels = embeddings(truth.shape)
    value, *gradients = outcome(CASES[name], queries, labels, reference.positives_of(truth), 0.3)
    wanted = CASES[name].expected(queries, labels, truth, 0.3)
    assert value.dtype == torch.float64
    assert value.item() == pytest.approx(wanted.item(), rel=1e-6, abs=1e-9)  # weights are float32
    if not wanted.requires_grad:  # no positive at all: a sum of nothing
        assert all(not g.any() for g in gradients)
        return
    others = torch.autograd.grad(wanted, (queries, labels), materialize_grads=True)
    for gradient, other in zip(gradients, others, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", [name for name in ONE_EACH if "prime" not in name])
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    """But PRIME's: its margin moves with the scores, and its gradient is stopped."""
    truth = TRUTHS["ordinary"]
    positives = reference.positives_of(truth)
    # Also of a loss that is not the end of the graph: twice itself.
    both = embeddings(truth.shape, seed=1)
    assert gradcheck(lambda q, z: 2 * CASES[name].value(q, z, positives, 0.5), both, nondet_tol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("temperature", [1e-4, 0.05, 1e4])
@pytest.mark.parametrize("name", ONE_EACH)
def test_nothing_overflows(name: str, temperature: float, dtype: torch.dtype) -> None:
    for truth in TRUTHS.values():
        queries, labels = embeddings(truth.shape, seed=2, dtype=dtype)
        loss, *gradients = outcome(CASES[name], queries, labels, reference.positives_of(truth), temperature)
        assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        for tensor in (loss, *gradients):
            assert bool(torch.isfinite(tensor).all())
        assert all(gradient.dtype == dtype for gradient in gradients)


@pytest.mark.parametrize("name", ONE_EACH)
def test_bf16_embeddings_are_scored_in_float32(name: str) -> None:
    """The loss is that of the rounded embeddings; only their gradients are rounded again."""
    truth = TRUTHS["ordinary"]
    rounded = embeddings(truth.shape, dtype=torch.bfloat16)
    exact = [x.detach().double().requires_grad_() for x in rounded]
    found = outcome(CASES[name], *rounded, reference.positives_of(truth), 1.0)
    wanted = outcome(CASES[name], *exact, reference.positives_of(truth), 1.0)
    assert found[0].item() == pytest.approx(wanted[0].item(), rel=1e-5)
    for gradient, other in zip(found[1:], wanted[1:], strict=True):
        torch.testing.assert_close(gradient.double(), other, rtol=0.01, atol=3e-3)


@pytest.mark.parametrize("name", ONE_EACH)
def test_a_label_that_is_twice_in_a_pool_counts_twice(name: str) -> None:
    once = TRUTHS["ordinary"]
    twice = np.concatenate([once, once[:, [1, 0]]], 1)
    queries, labels = embeddings(once.shape)
    doubled = torch.cat([labels, labels[[1, 0]]])
    value = CASES[name].value(queries, doubled, reference.positives_of(twice), 0.3)
    wanted = CASES[name].expected(queries, doubled, twice, 0.3)
    assert value.item() == pytest.approx(wanted.item(), rel=1e-6)
    found = torch.autograd.grad(value, (queries, labels), retain_graph=True)
    for gradient, other in zip(found, torch.autograd.grad(wanted, (queries, labels)), strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-6, atol=1e-8)


def test_the_gradient_of_decoupled_softmax_is_the_papers() -> None:
    """On z_j of a positive -(1 - sigma_ij) x_i; on a negative's z_n sum_j e^s_in / (e^s_ij + negatives) x_i."""
    truth, tau = TRUTHS["ordinary"], 0.3
    queries, labels = embeddings(truth.shape)
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
        queries, labels = embeddings(truth.shape)
        positives = reference.positives_of(truth)
        found = [
            CASES[f"{name}, all"].value(queries, labels, positives, 0.3) for name in ("softmax", "decoupled softmax")
        ]
        assert torch.allclose(*found) is same


@pytest.mark.parametrize("name", ["softmax, all", "decoupled softmax, all", "soft top-k, all", "binary cross-entropy"])
def test_the_order_of_the_labels_does_not_matter(name: str) -> None:
    truth = TRUTHS["ordinary"]
    queries, labels = embeddings(truth.shape)
    order = np.array([4, 2, 0, 1, 3])
    found = CASES[name].value(queries, labels, reference.positives_of(truth), 0.3)
    other = CASES[name].value(queries, labels[order], reference.positives_of(truth[:, order]), 0.3)
    torch.testing.assert_close(found, other)


def test_the_gradient_of_cross_entropy_is_sigmoid_less_truth() -> None:
    truth = TRUTHS["ordinary"]
    queries, labels = embeddings(truth.shape)
    losses.binary_cross_entropy(queries, labels, reference.positives_of(truth), temperature=0.3).backward()
    x, z = queries.detach(), labels.detach()
    wanted = (torch.sigmoid(x @ z.T / 0.3) - torch.from_numpy(truth)) / 0.3 / len(truth)
    torch.testing.assert_close(queries.grad, wanted @ z)
    torch.testing.assert_close(labels.grad, wanted.T @ x)
