"""One optimiser step over all workers: gradients summed, checked, clipped and applied.

Parameters that every worker holds are updated by AdamW, alike on each. Label tables update the rows they gave out.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from xmcbench.engine import checkpoint
from xmcbench.engine.gradient_norm import clip, global_gradient_norm
from xmcbench.engine.tables.label_table import LabelTable
from xmcbench.engine.workers import Workers


class Update:
    """The optimisers of a method's parameters and tables."""

    def __init__(
        self, groups: list[dict[str, Any]], tables: dict[str, LabelTable], workers: Workers, clip_norm: float | None
    ) -> None:
        self.optimizer = torch.optim.AdamW(groups, fused=True)
        self.base_rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.tables = tables
        self.workers = workers
        self.clip_norm = clip_norm

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def apply(self, factor: float) -> float:
        """Apply the gradients at `factor` times the base learning rates; return their norm over everything.

        Where the norm is not finite nothing is applied.
        """
        parameters = self.parameters
        sum_gradients(parameters, self.workers)
        norm = global_gradient_norm(
            parameters, [table.gradient_norm_squared() for table in self.tables.values()], self.workers
        )
        if not math.isfinite(norm):
            return norm
        scale = 1.0 if self.clip_norm is None else clip(parameters, norm, self.clip_norm)
        for group, rate in zip(self.optimizer.param_groups, self.base_rates, strict=True):
            group["lr"] = rate * factor
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        for table in self.tables.values():
            table.step(factor * table.config.learning_rate, scale)
        return norm

    def tensors(self) -> checkpoint.Groups:
        """State by group: the optimiser's, and each table's rows with their ids."""
        return {"optimizer": checkpoint.optimizer_tensors(self.optimizer), **self.table_tensors()}

    def table_tensors(self) -> checkpoint.Groups:
        """This worker's rows of each table, and their ids."""
        return {
            f"table {name}": {checkpoint.IDS: table.row_ids, **table.state_dict()}
            for name, table in self.tables.items()
        }

    def load(self, saved: list[checkpoint.Groups]) -> None:
        """Restore what `tensors` returned on each worker, for any number of workers."""
        checkpoint.load_optimizer(self.optimizer, saved[0].get("optimizer", {}))
        self.load_tables(saved)

    def load_tables(self, saved: list[checkpoint.Groups]) -> None:
        """Restore this worker's rows of the tables; takes them out of `saved`."""
        for name, table in self.tables.items():
            parts = [groups.pop(f"table {name}") for groups in saved]
            for tensor_name, rows in checkpoint.deal(parts, table.row_ids.cpu()):
                table.get_buffer(tensor_name).copy_(rows)


def sum_gradients(parameters: list[nn.Parameter], workers: Workers) -> None:
    """Sum each parameter's gradient over workers in one exchange; one that no worker has stays None.

    A worker whose shard was empty has none for what only labels pass through, so that the counts go along.
    """
    if workers.size == 1:
        return
    gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
    present: Tensor = gradients[0].new_tensor([float(p.grad is not None) for p in parameters])
    flat = torch.cat([tensor.flatten() for tensor in (*gradients, present)])
    dist.all_reduce(flat)
    *summed, counts = torch.split(flat, [tensor.numel() for tensor in (*gradients, present)])
    for parameter, gradient, count in zip(parameters, summed, counts.tolist(), strict=True):
        parameter.grad = gradient.view_as(parameter) if count else None
