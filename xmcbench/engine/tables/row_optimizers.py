"""Optimisers of label tables: pure updates of some rows, which cost nothing for the others.

The label table cuts its rows into chunks, hands each over in float32 together with the same rows of the state, and
stores what comes back. So an optimiser holds no tensors, knows neither row numbers nor workers, and its update of a row
depends on that row alone: a table dealt out over workers is updated as the whole one.

`state(num_rows, dimension)` is the state of rows that were never updated, by name; the first dimension of every tensor
is rows. `update` changes rows and their state in place, in float32, at a learning rate; it uses the gradient up.

Legend: N rows of the table, M rows of a chunk, D dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

State = dict[str, Tensor]
_CHUNK = {"cpu": 2**18, "cuda": 2**24}  # values: on a CPU the temporaries of a chunk lie in its cache


def rows_of_chunk(weight_ND: Tensor) -> int:
    """The rows that are updated at once."""
    return max(1, _CHUNK[weight_ND.device.type] // max(1, weight_ND.shape[1]))


@dataclass(frozen=True)
class RowAdam:
    """Adam (Kingma & Ba, 2015, Algorithm 1) with decoupled weight decay (Loshchilov & Hutter, 2019, Algorithm 2).

    Every row has its own step count, so the first updates of a row that is rarely touched are corrected for bias as if
    it were a small model of its own. Between its updates a row's moments rest and it does not decay. Where every step
    touches all rows this is `torch.optim.AdamW`.
    """

    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8

    def state(self, num_rows: int, dimension: int) -> State:
        return {
            "mean": torch.zeros(num_rows, dimension),
            "square": torch.zeros(num_rows, dimension),
            "touches": torch.zeros(num_rows, dtype=torch.int32),
        }

    def update(self, weight_MD: Tensor, gradient_MD: Tensor, state: State, rate: float) -> None:
        beta1, beta2 = self.betas
        mean_MD, square_MD, touches_M = state["mean"], state["square"], state["touches"]
        touches_M.add_(1)
        mean_MD.lerp_(gradient_MD, 1 - beta1)
        square_MD.mul_(beta2).addcmul_(gradient_MD, gradient_MD, value=1 - beta2)
        # In float64, as one minus a power near one loses digits.
        touches_M1 = touches_M.to(torch.float64)[:, None]
        size_M1 = (rate / (1 - beta1**touches_M1)).to(weight_MD.dtype)
        scale_M1 = (1 - beta2**touches_M1).rsqrt().to(weight_MD.dtype)
        weight_MD.mul_(1 - rate * self.weight_decay)
        torch.sqrt(square_MD, out=gradient_MD).mul_(scale_M1).add_(self.epsilon)
        weight_MD.sub_(torch.div(mean_MD, gradient_MD, out=gradient_MD).mul_(size_M1))


@dataclass(frozen=True)
class MomentumSGD:
    """Gradient descent with momentum, as `torch.optim.SGD`: the decay is added to the gradient.

    What full one-vs-all tables are trained with: Renee with momentum 0.9 and weight decay 1e-4, ELMO with momentum 0,
    which keeps no state at all.
    """

    momentum: float = 0.0
    weight_decay: float = 0.0

    def state(self, num_rows: int, dimension: int) -> State:
        return {"momentum": torch.zeros(num_rows, dimension)} if self.momentum else {}

    def update(self, weight_MD: Tensor, gradient_MD: Tensor, state: State, rate: float) -> None:
        if self.weight_decay:
            gradient_MD.add_(weight_MD, alpha=self.weight_decay)
        if self.momentum:
            gradient_MD = state["momentum"].mul_(self.momentum).add_(gradient_MD)
        weight_MD.add_(gradient_MD, alpha=-rate)


RowOptimizer = RowAdam | MomentumSGD
