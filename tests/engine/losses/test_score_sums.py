"""Chunks of labels change no value and no gradient; few chunks of scores are ever held; what is computed is counted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from xmcbench.engine.flops import counting
from xmcbench.engine.losses import Positives, score_sums

from . import reference
from .cases import CASES, ONE_EACH, embeddings, outcome

B, S, D = 6, 23, 4


def truth() -> Positives:
    """Row 0 has every label, row 1 none, row 2 the last alone, the others some."""
    generator = torch.Generator().manual_seed(1)
    dense = torch.rand(B, S, generator=generator) < 0.3
    dense[0], dense[1], dense[2] = True, False, False
    dense[2, -1] = True
    return reference.positives_of(dense.numpy())


def chunks_of(monkeypatch: pytest.MonkeyPatch, scores: int, kept: int) -> None:
    monkeypatch.setitem(score_sums.CHUNK_SCORES, "cpu", scores)
    monkeypatch.setattr(score_sums, "KEPT_CHUNKS", kept)


@pytest.mark.parametrize("name", ONE_EACH)
@pytest.mark.parametrize(("width", "kept"), [(1, 0), (4, 2), (22, 1), (23, 0)])
def test_chunked_equals_whole(name: str, width: int, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    both = embeddings((B, S), dimensions=D)
    whole = outcome(CASES[name], *both, truth(), 0.3)
    chunks_of(monkeypatch, width * B, kept)
    for chunked, wanted in zip(outcome(CASES[name], *both, truth(), 0.3), whole, strict=True):
        torch.testing.assert_close(chunked, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ONE_EACH)
def test_a_second_backward_pass_gives_the_same(name: str) -> None:
    both = embeddings((B, S), dimensions=D)
    value = CASES[name].value(*both, truth(), 0.3)
    first, second = (torch.autograd.grad(value, both, retain_graph=True) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


class Watch(TorchDispatchMode):
    """Notes the size of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(tensor, Tensor):
                self.largest = max(self.largest, tensor.numel())
        return made


@pytest.mark.parametrize("name", ONE_EACH)
def test_the_score_matrix_is_never_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n, chunk = 128, 32 * 128  # above what soft top-k keeps of a row, before and after a merge
    chunks_of(monkeypatch, chunk, kept=0)
    diagonal = torch.arange(n)
    queries, labels = (x.float().detach().requires_grad_() for x in embeddings((n, n), dimensions=2))
    with Watch() as watch:
        CASES[name].value(
            queries, labels, Positives(diagonal, diagonal, n, n, {"drawn": torch.ones(n)}), 1.0
        ).backward()
    assert watch.largest == chunk < n * n


def test_few_chunks_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 64
    chunks_of(monkeypatch, 4 * n, kept=3)
    queries, labels = embeddings((n, n), dimensions=2)
    sums = score_sums.log_sum_exp(queries, labels, reference.positives_of(np.eye(n)), 1.0)[0]
    assert sums.grad_fn is not None
    kept = sums.grad_fn.kept
    assert len(kept) == 3
    sums.sum().backward()
    assert not kept


# Products of B x S scores in the forward pass, and in forward and backward together.
PRODUCTS = {
    "softmax, all": (1, 3),
    "decoupled softmax, all": (1, 3),
    "soft top-k, all": (1, 3),
    "triplet, prime": (1, 3),
    "binary cross-entropy": (3, 3),
}


@pytest.mark.parametrize("kept", [0, 99])
@pytest.mark.parametrize("name", PRODUCTS)
def test_operations_are_counted_whatever_is_kept(name: str, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    both = embeddings((B, S), dimensions=D)
    product = 2 * B * S * D
    chunks_of(monkeypatch, 4 * B, kept=kept)
    with counting() as count:
        value = CASES[name].value(*both, truth(), 0.3)
        forward = count.flops
    value.backward()
    assert (forward / product, count.flops / product) == PRODUCTS[name]
    value = CASES[name].value(*both, truth(), 0.3)
    assert count.flops / product == PRODUCTS[name][1]  # nobody counts now


@pytest.mark.parametrize(("kept", "products"), [(0, 4), (1, 3)])
def test_a_kept_chunk_is_scored_once(kept: int, products: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks_of(monkeypatch, S * B, kept=kept)
    with FlopCounterMode(display=False) as done:
        CASES["softmax, all"].value(*embeddings((B, S), dimensions=D), truth(), 0.3).backward()
    assert done.get_total_flops() == products * 2 * B * S * D


class TF32(TorchDispatchMode):
    """Rounds the factors of matrix products to the ten bits of the fraction that a GPU's TF32 has."""

    def __torch_dispatch__(self, func: object, types: object, args: tuple = (), kwargs: dict | None = None) -> object:  # type: ignore[type-arg]
        if func in {torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default}:
            args = tuple(tf32(value) if isinstance(value, Tensor) else value for value in args)
        return func(*args, **(kwargs or {}))  # type: ignore[operator]


def tf32(numbers: Tensor) -> Tensor:
    bits = numbers.float().view(torch.int32)
    return ((bits + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32).to(numbers.dtype)


@pytest.mark.parametrize("name", ONE_EACH)
def test_factors_of_tf32_err_less_than_embeddings_of_bf16(name: str) -> None:
    """So that products of scores may read TF32 where the encoder's products are bf16."""
    both = embeddings((B, S), dimensions=64)
    exact = outcome(CASES[name], *both, truth(), 0.1)
    rounded = tuple(part.detach().bfloat16().to(part.dtype).requires_grad_() for part in both)
    of_bf16 = outcome(CASES[name], *rounded, truth(), 0.1)
    with TF32():
        of_tf32 = outcome(CASES[name], *both, truth(), 0.1)
    for wanted, coarse, fine in zip(exact[1:], of_bf16[1:], of_tf32[1:], strict=True):
        assert 0 < (fine - wanted).norm() < (coarse - wanted).norm() / 2
