"""The norm of the whole gradient, whichever workers hold its parts: what clipping and the check for NaN go by.

Parameters that all workers hold have the same gradient on each, as it was all-reduced, and count once. A row of a table
lies with one worker, so the tables' parts are summed. Every worker gets the same number to the last bit: all of them
clip alike, and all of them see it where it is not finite.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from xmcbench.engine.workers import Workers

if TYPE_CHECKING:
    from xmcbench.engine.encoders.label_table import LabelTable

_PIECE = 2**20  # values summed in float32, which stops growing after some 10^7 equal ones


def squared_norm(tensor: Tensor) -> Tensor:
    """Sum of squares, a float64 scalar; infinite where squares overflow float32, as they would in Adam's state."""
    total = torch.zeros((), dtype=torch.float64, device=tensor.device)
    for piece in torch.split(tensor.detach().reshape(-1), _PIECE):
        total += torch.linalg.vector_norm(piece, dtype=torch.float32).double().square()
    return total


@torch.no_grad()
def global_gradient_norm(parameters: Iterable[Tensor], tables: Iterable[LabelTable], workers: Workers) -> float:
    """The 2-norm of the gradient of replicated `parameters` and of tables dealt out over `workers`.

    Called by every worker, once a step's gradients are all there.
    """
    # Worker 0's replica counts. The others' are added zero times, which still carries over what is not finite.
    once = float(workers.rank == 0)
    parts = [squared_norm(parameter.grad) * once for parameter in parameters if parameter.grad is not None]
    parts += [table.gradient_norm_squared() for table in tables]
    return float(workers.sum(torch.stack(parts).sum()).sqrt()) if parts else 0.0


def clip(parameters: Iterable[Tensor], norm: float, limit: float) -> float:
    """Scale the parameters' gradients in place so that a global norm of `norm` becomes at most `limit`.

    Returns the factor, which each table's `step` takes as its `scale`.
    """
    if norm <= limit:
        return 1.0
    scale = limit / norm
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if gradients:
        torch._foreach_mul_(gradients, scale)
    return scale
