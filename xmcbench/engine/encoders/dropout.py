"""Dropout whose masks cost little on a CPU.

There torch draws a double for every value, on one thread: a tenth of a small encoder's step on one core, more of it on
many. Sixteen random bits a value are enough. The rate becomes the nearest multiple of 2^-16, and the scale is that of
the rounded rate, so the expectation stays exact. Torch's generator seeds each mask: what seeds it decides all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

LEVELS = 2**16


class QuickDropout(TorchFunctionMode):
    """Within this context `torch.nn.functional.dropout`, also a transformer's own use of it, is `quick_dropout`."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is functional.dropout:
            return quick_dropout(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def quick_dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """As `torch.nn.functional.dropout`: each value is 0 with probability `p`, otherwise divided by 1 - p."""
    dropped = round(p * LEVELS)
    if input.device.type != "cpu" or inplace or not training or dropped in (0, LEVELS):
        return functional.dropout(input, p, training, inplace)
    seed = int(torch.empty((), dtype=torch.int64).random_())
    bits = np.random.SFC64(seed).random_raw(-(-input.numel() // 4)).view(np.uint16)[: input.numel()]
    factor = np.multiply(bits >= dropped, np.float32(LEVELS / (LEVELS - dropped)), dtype=np.float32)
    return input * torch.from_numpy(factor).view(input.shape).to(input.dtype)
