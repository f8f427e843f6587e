"""What dropout costs in a training step: masks by text, torch's own draws, and none. Used by `step.py --dropout`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
from report import seconds_of
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from xmcbench.engine.encoders.dropout import SeededDropout
from xmcbench.engine.training import gradient_cache


class NoDropout(TorchFunctionMode):
    """Within this context `torch.nn.functional.dropout` returns its input."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func is functional.dropout else func(*args, **(kwargs or {}))


KINDS: dict[str, Callable[[Any], AbstractContextManager[object]]] = {
    "by text": SeededDropout,
    "torch": lambda _: nullcontext(),
    "none": lambda _: NoDropout(),
}


def dropout_costs(step: Callable[[int], object], turns: int) -> dict[str, float]:
    """Milliseconds of a step with each kind of dropout, and medians over turns of ratios within a turn."""
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for turn in range(turns + 1):
        for kind, context in KINDS.items():
            gradient_cache.SeededDropout = context  # type: ignore[misc, assignment]
            times[kind].append(seconds_of(partial(step, turn)))
    gradient_cache.SeededDropout = SeededDropout  # type: ignore[misc]
    clocked = {kind: np.array(values[1:]) for kind, values in times.items()}
    costs = {f"{kind}, ms": 1000 * float(np.median(values)) for kind, values in clocked.items()}
    ratios = {f"by text / {kind}": float(np.median(clocked["by text"] / clocked[kind])) for kind in ("torch", "none")}
    return costs | ratios
