"""The workers that share one training step, and their collectives.

Labels are sharded over workers, and every worker scores all queries of the batch against its own labels. **Each
worker's loss is its part, and the loss is the sum of the parts.** So a collective's backward pass sums what all workers
ask for, and a parameter that every worker holds gets the sum of their gradients. With one worker nothing is sent.

A collective is called by every worker, in the same order, whether or not its shard is empty.

Legend: B queries, N rows of one worker, D dimensions; `*` any shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from xmcbench.engine.device import default_device


@dataclass(frozen=True)
class Workers:
    """`size` workers, of which this is number `rank`. `ALONE` is the only one that needs no process group."""

    rank: int = 0
    size: int = 1

    def gather(self, rows_ND: Tensor) -> Tensor:
        """The rows of all workers, one worker after another. N may differ between them, and be 0."""
        if self.size == 1:
            return rows_ND
        return _Gather.apply(rows_ND, self)  # type: ignore[no-any-return,no-untyped-call]

    def sum(self, parts: Tensor) -> Tensor:
        """The elementwise sum of every worker's tensor."""
        if self.size == 1:
            return parts
        return _Sum.apply(parts)  # type: ignore[no-any-return,no-untyped-call]

    def log_sum_exp(self, parts_B: Tensor) -> Tensor:
        """log of the sum of e^part over workers; a part of -inf is an empty shard's, and gets no gradient."""
        if self.size == 1:
            return parts_B
        return _LogSumExp.apply(parts_B)  # type: ignore[no-any-return,no-untyped-call]

    def max(self, parts: Tensor) -> Tensor:
        """The elementwise maximum; without a gradient."""
        result = parts.detach().clone()
        if self.size > 1:
            dist.all_reduce(result, dist.ReduceOp.MAX)
        return result

    def totals(self, *counts: int) -> list[int]:
        """The sums of every worker's numbers. One worker does not ask its device, which would wait for it."""
        if self.size == 1:
            return list(counts)
        sums: list[int] = self.sum(torch.tensor(counts, device=default_device())).tolist()
        return sums

    def largest(self, value: float) -> float:
        """The largest of every worker's numbers; one worker does not ask its device."""
        if self.size == 1:
            return value
        return float(self.max(torch.tensor(value, dtype=torch.float64, device=default_device())))

    def of_worker_0(self, value: float) -> float:
        """Worker 0's number, on every worker: all must stop and write checkpoints in the same step."""
        return self.largest(value if self.rank == 0 else -math.inf)

    def barrier(self) -> None:
        """Return when every worker has called this."""
        if self.size > 1:
            dist.barrier()


ALONE = Workers()


def current_workers() -> Workers:
    """The workers of this process's group, or `ALONE`."""
    if dist.is_available() and dist.is_initialized():
        return Workers(dist.get_rank(), dist.get_world_size())
    return ALONE


@contextmanager
def joined(rank: int, size: int, rendezvous: Path) -> Iterator[None]:
    """Make this process worker `rank` of `size` within the block. Workers meet over the new file `rendezvous`.

    Each has a GPU, or equally many, where there are enough of them, and talks over nccl; else they share what there is,
    over gloo: nccl refuses two workers on one GPU.
    """
    gpus = torch.cuda.device_count()
    if gpus:
        torch.cuda.set_device(rank * max(1, gpus // size) % gpus)
    backend = "nccl" if gpus >= size and dist.is_nccl_available() else "gloo"
    dist.init_process_group(backend, init_method=f"file://{rendezvous}", rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


class _Gather(Function):
    @staticmethod
    def forward(ctx: Any, rows_ND: Tensor, workers: Workers) -> Tensor:
        mine = torch.tensor([rows_ND.shape[0]], device=rows_ND.device)
        counts = [torch.empty_like(mine) for _ in range(workers.size)]
        dist.all_gather(counts, mine)
        sizes = [int(count) for count in counts]
        # Collectives want equal shapes: short shards are padded and the padding dropped again.
        padded = rows_ND.new_zeros((max(sizes), *rows_ND.shape[1:]))
        padded[: rows_ND.shape[0]] = rows_ND
        pieces = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(pieces, padded)
        ctx.start, ctx.length = sum(sizes[: workers.rank]), rows_ND.shape[0]
        return torch.cat([piece[:size] for piece, size in zip(pieces, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _all_reduced(grads[0])[ctx.start : ctx.start + ctx.length], None


class _Sum(Function):
    @staticmethod
    def forward(ctx: Any, parts: Tensor) -> Tensor:  # noqa: ARG004
        return _all_reduced(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:  # noqa: ARG004
        return _all_reduced(grads[0])


class _LogSumExp(Function):
    @staticmethod
    def forward(ctx: Any, parts_B: Tensor) -> Tensor:
        largest_B = parts_B.clone()
        dist.all_reduce(largest_B, dist.ReduceOp.MAX)
        offset_B = largest_B.masked_fill(largest_B == -torch.inf, 0.0)
        total_B = _all_reduced((parts_B - offset_B).exp()).log() + offset_B
        ctx.save_for_backward(parts_B, total_B)
        return total_B

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        parts_B, total_B = ctx.saved_tensors
        share_B = (parts_B - total_B.masked_fill(total_B == -torch.inf, 0.0)).exp()
        result: Tensor = _all_reduced(grads[0]) * share_B
        return result


def _all_reduced(tensor: Tensor) -> Tensor:
    result = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(result)
    return result
