"""The norm of the whole gradient over all workers, for clipping and for the check that the gradient is finite.

Parameters that all workers hold have the same all-reduced gradient on each worker and count once. A row of a label
table is held by one worker, so the tables' squared norms are summed over workers. Every worker gets the same number to
the last bit: all workers clip alike, and all of them see a norm that is not finite.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from xmcbench.engine.device import default_device
from xmcbench.engine.workers import Workers

_PIECE = 2**20  # values summed in float32, which stops growing after some 10^7 equal ones


def squared_norm(tensor: Tensor) -> Tensor:
    """Sum of squares, a float64 scalar; infinite where squares overflow float32, as they would in Adam's state."""
    total = torch.zeros((), dtype=torch.float64, device=tensor.device)
    for piece in torch.split(tensor.detach().reshape(-1), _PIECE):
        total += torch.linalg.vector_norm(piece, dtype=torch.float32).double().square()
    return total


@torch.no_grad()
def global_gradient_norm(parameters: Iterable[Tensor], tables_squared: Iterable[Tensor], workers: Workers) -> Tensor:
    """The 2-norm of the gradient of replicated `parameters` and of tables whose rows are spread over `workers`.

    A float64 scalar. `tables_squared` are the squared gradient norms of this worker's rows, one per table. Every worker
    calls this once all gradients of the step are computed.
    """
    # Only worker 0's replica counts. The others are multiplied by 0, which still propagates NaN and infinity.
    once = float(workers.rank == 0)
    parts = [squared_norm(parameter.grad) * once for parameter in parameters if parameter.grad is not None]
    parts += tables_squared
    nothing = torch.zeros((), dtype=torch.float64, device=default_device())
    return workers.sum(torch.stack(parts).sum() if parts else nothing).sqrt()


def clip(parameters: Iterable[Tensor], norm: float, limit: float) -> float:
    """Scale the parameters' gradients in place so that a global norm of `norm` becomes at most `limit`.

    Returns the factor, to be passed to `LabelTable.step` as `scale`.
    """
    if norm <= limit:
        return 1.0
    scale = limit / norm
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if gradients:
        torch._foreach_mul_(gradients, scale)
    return scale
