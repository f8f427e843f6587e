"""Collectives: values, gradients, uneven and empty shards. Every worker's loss is a part; the parts sum to the loss."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from many_workers import MOST, on_workers

from xmcbench.engine.workers import Workers, joined

SIZES = range(1, MOST + 1)


def rows_of(rank: int) -> torch.Tensor:
    """Uneven shards; the second worker's is empty."""
    count = 0 if rank == 1 else rank + 2
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)


def gathered(workers: Workers) -> tuple[np.ndarray, np.ndarray]:
    mine = rows_of(workers.rank).requires_grad_()
    everyone = workers.gather(mine)
    weights = torch.arange(everyone.numel(), dtype=torch.float64).view_as(everyone) * (workers.rank + 1)
    (everyone * weights).sum().backward()
    assert mine.grad is not None
    return everyone.detach().numpy(), mine.grad.numpy()


@pytest.mark.parametrize("size", SIZES)
def test_gathered_rows_come_in_order_and_their_gradients_sum_over_workers(size: int) -> None:
    whole = torch.cat([rows_of(rank) for rank in range(size)]).numpy()
    wanted = np.arange(whole.size, dtype=float).reshape(whole.shape) * sum(range(1, size + 1))
    start = 0
    for rank, (everyone, gradient) in enumerate(on_workers(size, gathered)):
        np.testing.assert_array_equal(everyone, whole)
        np.testing.assert_array_equal(gradient, wanted[start : start + len(rows_of(rank))])
        start += len(rows_of(rank))


PARTS = torch.tensor(
    [
        [0.5, -torch.inf, 700.0, -torch.inf],
        [1.5, -torch.inf, -700.0, 2.0],
        [-torch.inf, -torch.inf, 701.0, 1.0],
        [0.0, -torch.inf, 0.0, 0.0],
    ],
    dtype=torch.float64,
)


def log_sum_exp(workers: Workers) -> tuple[np.ndarray, np.ndarray]:
    mine = PARTS[workers.rank].clone().requires_grad_()
    total = workers.log_sum_exp(mine)
    # Each part of the loss weighs the total differently.
    (total.masked_fill(total == -torch.inf, 0.0).sum() * (workers.rank + 1)).backward()
    assert mine.grad is not None
    return total.detach().numpy(), mine.grad.numpy()


@pytest.mark.parametrize("size", SIZES)
def test_log_sum_exp_over_workers(size: int) -> None:
    parts = PARTS[:size].clone().requires_grad_()
    total = parts.logsumexp(0)
    for rank, (found, gradient) in enumerate(on_workers(size, log_sum_exp)):
        np.testing.assert_allclose(found, total.detach().numpy(), rtol=1e-15)
        if size == 1:
            continue
        share = torch.softmax(PARTS[:size], 0).nan_to_num(0.0)[rank].numpy()
        weight = np.where(np.isfinite(found), sum(range(1, size + 1)), 0)
        np.testing.assert_allclose(gradient, share * weight, rtol=1e-13, atol=1e-300)


def reduced(workers: Workers) -> list[np.ndarray]:
    mine = torch.tensor([float(workers.rank), -float(workers.rank)], requires_grad=True)
    total = workers.sum(mine)
    (total * (workers.rank + 1)).sum().backward()
    assert mine.grad is not None
    workers.barrier()
    return [t.detach().numpy() for t in (total, mine.grad, workers.max(mine))]


@pytest.mark.parametrize("size", SIZES)
def test_sums_and_maxima(size: int) -> None:
    top = size - 1
    for total, gradient, largest in on_workers(size, reduced):
        np.testing.assert_array_equal(total, [size * top / 2, -size * top / 2])
        np.testing.assert_array_equal(gradient, np.full(2, size * (size + 1) / 2))
        np.testing.assert_array_equal(largest, [top, 0])


def test_one_worker_gets_its_own_tensor_back() -> None:
    alone, mine = Workers(), torch.ones(2, 3)
    assert alone.gather(mine) is mine
    assert alone.sum(mine) is mine
    assert alone.log_sum_exp(mine) is mine


@pytest.mark.parametrize(
    ("gpus", "size", "devices", "backend"),
    [
        (0, 2, [], "gloo"),
        (1, 2, [0, 0], "gloo"),
        (2, 3, [0, 1, 0], "gloo"),
        (2, 2, [0, 1], "nccl"),
        (4, 2, [0, 2], "nccl"),
    ],
)
def test_each_worker_has_a_gpu_and_nccl_where_there_are_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpus: int, size: int, devices: list[int], backend: str
) -> None:
    chosen, begun = Mock(), Mock()
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setattr("torch.cuda.set_device", chosen)
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: True)
    monkeypatch.setattr("torch.distributed.init_process_group", begun)
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: None)
    for rank in range(size):
        with joined(rank, size, tmp_path / "rendezvous"):
            pass
    assert [call.args[0] for call in chosen.call_args_list] == devices
    assert {call.args[0] for call in begun.call_args_list} == {backend}
