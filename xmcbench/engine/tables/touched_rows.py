"""A table that every worker holds whole and that learns only where a step touches it.

The word vectors of a static encoder: too many rows for an optimiser that walks over all of them, too few to divide
among workers. Like a label table it keeps no gradient of its own size.

Legend: V rows of the table, H dimensions (none for a table of numbers), U different rows of a step, M rows of a chunk.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from xmcbench.engine.gradient_norm import squared_norm
from xmcbench.engine.tables.row_optimizers import RowOptimizer, State, rows_of_chunk
from xmcbench.engine.workers import Workers


class TouchedRows(nn.Module):
    """The parameter `weight` [V, H] or [V], and the gradients of the rows that a step's backward passes touched.

    So autograd sees no gradient of the table: `torch.autograd.grad` and `weight.grad` do not serve here.
    """

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self._parts: list[tuple[Tensor, Tensor]] = []

    def add_gradient(self, rows_U: Tensor, gradient_UH: Tensor) -> None:
        """Add to this step's gradient; the rows are different ones, in ascending order."""
        self._parts.append((rows_U, gradient_UH))

    def take_gradient(self, workers: Workers) -> tuple[Tensor, Tensor]:
        """The rows [U] that this step touched on any worker, ascending, and their gradients; the next step begins.

        Every worker gets the same bits.
        """
        nothing = torch.empty(0, dtype=torch.int64, device=self.weight.device), self.weight.detach()[:0]
        parts, self._parts = self._parts or [nothing], []
        if len(parts) == 1 and workers.size == 1:
            return parts[0]
        rows = workers.gather(torch.cat([rows for rows, _ in parts]))
        gradient = workers.gather(torch.cat([gradient for _, gradient in parts]))
        rows_U, places = torch.unique(rows, return_inverse=True)
        return rows_U, gradient.new_zeros(len(rows_U), *gradient.shape[1:]).index_add_(0, places, gradient)


class RowUpdate:
    """Updates the rows of a table that a step touched, with `optimizer`, at the base learning rate `rate`."""

    def __init__(self, table: TouchedRows, optimizer: RowOptimizer, rate: float) -> None:
        self.table, self.optimizer, self.rate = table, optimizer, rate
        self.state: State = {
            name: tensor.to(table.weight.device) for name, tensor in optimizer.state(*self._values().shape).items()
        }
        self._taken: tuple[Tensor, Tensor] | None = None

    def gradient_norm_squared(self, workers: Workers) -> Tensor:
        """Sum the gradient over workers, for `step`; the sum of its squares, float64, alike on all workers."""
        self._taken = self.table.take_gradient(workers)
        return squared_norm(self._taken[1])

    @torch.no_grad()
    def step(self, factor: float, scale: float) -> None:
        """Update the rows at `factor` times the base learning rate, the gradient times `scale`."""
        assert self._taken is not None
        (rows_U, gradient), self._taken = self._taken, None
        values_VH = self._values()
        gradient_UH = gradient.view(len(rows_U), values_VH.shape[1])
        tensors, length = {**self.state, "weight": values_VH}, rows_of_chunk(values_VH)
        for rows_M, gradient_MH in zip(torch.split(rows_U, length), torch.split(gradient_UH, length), strict=True):
            taken = {name: tensor.index_select(0, rows_M) for name, tensor in tensors.items()}
            self.optimizer.update(taken["weight"], gradient_MH.mul_(scale), taken, self.rate * factor)
            for name, tensor in tensors.items():
                tensor.index_copy_(0, rows_M, taken[name])

    def _values(self) -> Tensor:
        """The table as a matrix, which shares its memory."""
        weight = self.table.weight.detach()
        return weight.view(len(weight), -1)
