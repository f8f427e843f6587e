"""The learning rate over a budget."""

from __future__ import annotations


def warmup_linear(fraction: float, warmup: float) -> float:
    """Factor in 0..1 at `fraction` of the budget: a linear rise over the first `warmup`, then a linear fall to 0.

    A shorter budget is a shorter schedule, not a cut one.
    """
    if fraction < warmup:
        return fraction / warmup
    return max(0.0, (1.0 - fraction) / (1.0 - warmup))
