"""Collectives over the backend that workers of this machine take: nccl where each has a GPU, else gloo."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from many_workers import in_processes

from xmcbench.engine.device import default_device
from xmcbench.engine.workers import _Gather, _LogSumExp, _Sum, current_workers, joined

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(os.name != "posix", reason="workers are forked")]


def rows_of(rank: int) -> torch.Tensor:
    """Uneven shards of whole numbers: sums are exact in any order."""
    return torch.arange(3.0 * (rank + 1)).view(-1, 3) - rank


def collectives(rank: int, size: int, rendezvous: Path) -> tuple[str, list[torch.Tensor]]:
    """The backend, and what each collective gives. A single worker's are called too, which training leaves out."""
    torch.set_num_threads(1)
    with joined(rank, size, rendezvous):
        workers, device = current_workers(), default_device()
        mine = rows_of(rank).to(device).requires_grad_()
        everyone = _Gather.apply(mine, workers)
        (everyone * everyone).sum().backward()
        sums, logs = _Sum.apply(rows_of(0).to(device)), _LogSumExp.apply(torch.zeros(4, device=device))
        dist.barrier()
        return dist.get_backend(), [tensor.detach().cpu() for tensor in (everyone, mine.grad, sums, logs)]


@pytest.mark.parametrize("size", [1, 2])
def test_collectives_give_what_their_equations_say(size: int, tmp_path: Path) -> None:
    wanted_backend = "nccl" if torch.cuda.device_count() >= size else "gloo"
    whole = torch.cat([rows_of(rank) for rank in range(size)])
    answers = in_processes([(collectives, rank, size, tmp_path / "rendezvous") for rank in range(size)])
    for rank, (backend, (everyone, gradient, sums, logs)) in enumerate(answers):
        assert backend == wanted_backend
        assert torch.equal(everyone, whole)
        assert torch.equal(gradient, 2 * size * rows_of(rank))
        assert torch.equal(sums, size * rows_of(0))
        torch.testing.assert_close(logs, torch.full((4,), float(size)).log())
