"""One optimiser step over all workers: gradients summed, clipped and applied.

Parameters that every worker holds are updated by AdamW, alike on each. Label tables update the rows they gave out, and
tables of word vectors the rows that were read: the others rest, so their moments and their weights do not decay.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from xmcbench.engine import checkpoint
from xmcbench.engine.gradient_norm import clip, global_gradient_norm
from xmcbench.engine.tables.label_table import LabelTable
from xmcbench.engine.tables.row_optimizers import RowAdam
from xmcbench.engine.tables.touched_rows import RowUpdate, TouchedRows
from xmcbench.engine.workers import Workers


class Update:
    """The optimisers of a method's parameters and label tables; the `TouchedRows` of `modules` are updated by rows."""

    def __init__(
        self,
        groups: list[dict[str, Any]],
        tables: dict[str, LabelTable],
        workers: Workers,
        clip_norm: float | None,
        modules: Iterable[nn.Module] = (),
    ) -> None:
        by_rows = {id(module.weight): module for module in modules if isinstance(module, TouchedRows)}
        self.row_updates = [
            RowUpdate(by_rows[id(parameter)], RowAdam(group["weight_decay"]), group["lr"])
            for group in groups
            for parameter in group["params"]
            if id(parameter) in by_rows
        ]
        dense = [{**group, "params": [p for p in group["params"] if id(p) not in by_rows]} for group in groups]
        self.optimizer = torch.optim.AdamW(dense, fused=True)
        self.base_rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.tables = tables
        self.workers = workers
        self.clip_norm = clip_norm

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def gradient_norm(self) -> Tensor:
        """The norm of the gradients of everything, a float64 scalar, after they are summed over workers."""
        sum_gradients(self.parameters, self.workers)
        squares = [table.gradient_norm_squared() for table in self.tables.values()]
        once = float(self.workers.rank == 0)  # counts what is alike on all workers
        squares += [update.gradient_norm_squared(self.workers) * once for update in self.row_updates]
        return global_gradient_norm(self.parameters, squares, self.workers)

    def apply(self, factor: float, norm: float) -> None:
        """Apply the gradients, of the norm `norm`, at `factor` times the base learning rates."""
        scale = 1.0 if self.clip_norm is None else clip(self.parameters, norm, self.clip_norm)
        for group, rate in zip(self.optimizer.param_groups, self.base_rates, strict=True):
            group["lr"] = rate * factor
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        for table in self.tables.values():
            table.step(factor * table.config.learning_rate, scale)
        for update in self.row_updates:
            update.step(factor, scale)

    def tensors(self) -> checkpoint.Groups:
        """State by group: the optimisers', and each table's rows with their ids."""
        return {
            "optimizer": checkpoint.optimizer_tensors(self.optimizer),
            "row optimizers": self._row_states(),
            **self.table_tensors(),
        }

    def _row_states(self) -> dict[str, Tensor]:
        updates = enumerate(self.row_updates)
        return {f"{number}.{name}": tensor for number, update in updates for name, tensor in update.state.items()}

    def table_tensors(self) -> checkpoint.Groups:
        """This worker's rows of each table, and their ids."""
        return {
            f"table {name}": {checkpoint.IDS: table.row_ids, **table.state_dict()}
            for name, table in self.tables.items()
        }

    def load(self, saved: list[checkpoint.Groups]) -> None:
        """Restore what `tensors` returned on each worker, for any number of workers."""
        checkpoint.load_optimizer(self.optimizer, saved[0].get("optimizer", {}))
        for name, tensor in self._row_states().items():
            tensor.copy_(saved[0]["row optimizers"][name])
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
    if workers.size == 1 or not parameters:
        return
    gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
    present: Tensor = gradients[0].new_tensor([float(p.grad is not None) for p in parameters])
    flat = torch.cat([tensor.flatten() for tensor in (*gradients, present)])
    dist.all_reduce(flat)
    *summed, counts = torch.split(flat, [tensor.numel() for tensor in (*gradients, present)])
    for parameter, gradient, count in zip(parameters, summed, counts.tolist(), strict=True):
        parameter.grad = gradient.view_as(parameter) if count else None
