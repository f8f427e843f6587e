"""Chunks of labels change no value and no gradient, and no more than a chunk of scores is ever held."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from xmcbench.losses import Positives, binary_cross_entropy, decoupled_softmax, score_sums, softmax

B, S, D = 6, 23, 4
Loss = Callable[[Tensor, Tensor, Positives], Tensor]

LOSSES: dict[str, Loss] = {
    "softmax": lambda q, z, p: softmax(q, z, p, p.every(), temperature=0.3),
    "decoupled": lambda q, z, p: decoupled_softmax(q, z, p, p.averaged(), temperature=0.3),
    "bce": lambda q, z, p: binary_cross_entropy(q, z, p, temperature=0.3),
}


def truth() -> Positives:
    """Row 0 has every label, row 1 none, row 2 the last alone, the others some."""
    generator = torch.Generator().manual_seed(1)
    dense = torch.rand(B, S, generator=generator) < 0.3
    dense[0], dense[1], dense[2] = True, False, False
    dense[2, -1] = True
    rows, columns = dense.nonzero(as_tuple=True)
    return Positives(rows, columns, torch.full((B,), -1), S)


def outcome(loss: Loss) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    queries = torch.randn(B, D, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.randn(S, D, generator=generator, dtype=torch.float64, requires_grad=True)
    value = loss(queries, labels, truth())
    value.backward()
    assert queries.grad is not None
    assert labels.grad is not None
    return value.detach(), queries.grad, labels.grad


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("width", [1, 4, 22, 23])
def test_chunked_equals_whole(name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = outcome(LOSSES[name])
    monkeypatch.setattr(score_sums, "CHUNK_SCORES", width * B)
    for chunked, wanted in zip(outcome(LOSSES[name]), whole, strict=True):
        torch.testing.assert_close(chunked, wanted, rtol=1e-12, atol=1e-12)


class Watch(TorchDispatchMode):
    """Notes the size of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor):
            self.largest = max(self.largest, made.numel())
        return made


@pytest.mark.parametrize("name", LOSSES)
def test_the_score_matrix_is_never_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n, chunk = 64, 256
    monkeypatch.setattr(score_sums, "CHUNK_SCORES", chunk)
    diagonal = torch.arange(n)
    queries = torch.ones(n, 2, requires_grad=True)
    labels = torch.ones(n, 2, requires_grad=True)
    with Watch() as watch:
        LOSSES[name](queries, labels, Positives(diagonal, diagonal, diagonal, n)).backward()
    assert watch.largest == chunk < n * n
