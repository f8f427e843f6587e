"""Dropout on a CPU: the distribution of torch's, and its seed."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import dropout

from xmcbench.engine.encoders.dropout import QuickDropout, quick_dropout


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_values_are_dropped_at_the_rate_and_scaled(rate: float, kind: torch.dtype) -> None:
    torch.manual_seed(0)
    found = quick_dropout(torch.ones(1000, 999, dtype=kind), rate)
    assert found.dtype == kind
    rounding = 2**-8 if kind == torch.bfloat16 else 1e-4
    assert found.unique().tolist() == [0.0, pytest.approx(1 / (1 - rate), rel=rounding)]
    dropped = (found == 0).float()
    # Six standard deviations: over all, in each row, and of neighbours at once.
    assert abs(float(dropped.mean()) - rate) < 6 * (rate * (1 - rate) / dropped.numel()) ** 0.5 + 2**-16
    assert float((dropped.mean(1) - rate).abs().max()) < 6 * (rate * (1 - rate) / 999) ** 0.5
    both = float((dropped[:, 1:] * dropped[:, :-1]).mean())
    assert abs(both - rate**2) < 0.005


def test_masks_follow_the_seed_and_move_on() -> None:
    values = torch.ones(64, 5)
    torch.manual_seed(1)
    first, second = quick_dropout(values), quick_dropout(values)
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert torch.equal(first, quick_dropout(values))


def test_the_gradient_has_the_mask() -> None:
    values = torch.randn(9, 7, requires_grad=True)
    found = quick_dropout(values, 0.3)
    found.sum().backward()
    assert torch.equal(values.grad, torch.where(found == 0, 0.0, torch.tensor(1 / (1 - round(0.3 * 65536) / 65536))))


@pytest.mark.parametrize(("rate", "training"), [(0.0, True), (1.0, True), (0.4, False)])
def test_where_there_is_nothing_to_draw_it_is_torchs(rate: float, training: bool) -> None:
    values = torch.randn(5, 3)
    assert torch.equal(quick_dropout(values, rate, training), dropout(values, rate, training))


def test_within_the_context_modules_and_functions_use_it() -> None:
    values = torch.ones(40, 40)
    for drop in (nn.Dropout(0.2), lambda x: dropout(x, p=0.2, training=True)):
        torch.manual_seed(3)
        wanted = quick_dropout(values, 0.2)
        torch.manual_seed(3)
        with QuickDropout():
            assert torch.equal(drop(values), wanted)
        torch.manual_seed(3)
        assert not torch.equal(drop(values), wanted)
