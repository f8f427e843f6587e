"""The gradient's norm is that of the whole model, the same number on every worker, and shows what is not finite."""

from __future__ import annotations

import math

import pytest
import torch
from many_workers import MOST, on_workers

from xmcbench.engine.gradient_norm import clip, global_gradient_norm, squared_norm
from xmcbench.engine.tables.label_table import LabelTable
from xmcbench.engine.tables.settings import TableConfig
from xmcbench.engine.workers import ALONE, Workers


def replicated() -> list[torch.Tensor]:
    """Parameters with gradients, and one that no loss depended on."""
    parameters = [torch.zeros(3, 4, requires_grad=True), torch.zeros(5, requires_grad=True)]
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    return [*parameters, torch.zeros(2, requires_grad=True)]


def norm_of(workers: Workers, broken: int | None, value: float) -> float:
    """Two tables of as many rows as the worker's number, one value of which may be broken."""
    parameters = replicated()
    tables = [LabelTable(torch.arange(workers.rank), 2, TableConfig(), seed=0) for _ in range(2)]
    for table in tables:
        gradient = torch.full((workers.rank, 2), float(workers.rank))
        if workers.rank == broken:
            gradient[0, 1] = value
        table().grad = gradient
    return float(global_gradient_norm(parameters, [table.gradient_norm_squared() for table in tables], workers))


@pytest.mark.parametrize("size", range(1, MOST + 1))
def test_replicated_parameters_count_once_and_every_row_once(size: int) -> None:
    parameters = sum(float(p.grad.double().square().sum()) for p in replicated() if p.grad is not None)
    tables = sum(2 * (rank * 2) * rank**2 for rank in range(size))
    found = on_workers(size, norm_of, None, 0.0)
    assert len(set(found)) == 1
    assert found[0] == pytest.approx(math.sqrt(parameters + tables), rel=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_on_one_worker_shows_on_all(value: float) -> None:
    assert not any(math.isfinite(norm) for norm in on_workers(3, norm_of, 2, value))
    assert all(math.isfinite(norm) for norm in on_workers(3, norm_of, None, value))


def test_nothing_to_train_has_no_gradient() -> None:
    assert global_gradient_norm([], [], ALONE) == 0


def test_squares_of_many_values_are_all_counted() -> None:
    """A running float32 sum of ones stops at 2**24."""
    assert float(squared_norm(torch.ones(1).expand(2**24 + 2**22))) == 2**24 + 2**22


@pytest.mark.parametrize(("limit", "scale"), [(1.0, 1 / 13), (13.0, 1.0), (100.0, 1.0)])
def test_clipping_brings_a_norm_down_to_the_limit_and_never_up(limit: float, scale: float) -> None:
    parameters = [torch.zeros(2, requires_grad=True), torch.zeros(1, requires_grad=True)]
    parameters[0].grad = torch.tensor([5.0, 12.0])
    norm = float(global_gradient_norm(parameters, [], ALONE))
    assert norm == pytest.approx(13)
    assert clip(parameters, norm, limit) == pytest.approx(scale)
    assert float(global_gradient_norm(parameters, [], ALONE)) == pytest.approx(13 * scale)
