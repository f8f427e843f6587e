"""A clock for budgets in device seconds that neither the machine nor other processes move."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.nn.modules.module import register_module_forward_hook

from xmcbench.engine.encoders.encoder import Encoder
from xmcbench.trial import meter
from xmcbench.trial.budget import current_stage


class Work:
    """A clock that only work moves: a hundredth of a second for a text, or what a test says for a stage."""

    def __init__(self, **of_stage: float) -> None:
        self.seconds, self.of_stage = 0.0, of_stage

    def __call__(self) -> float:
        return self.seconds

    def read(self, module: Any, _: Any, output: Any) -> None:
        if isinstance(module, Encoder):
            of_sample = meter._uncounted.get()
            self.seconds += len(output) * (0.01 if of_sample else self.of_stage.get(current_stage(), 0.01))


@contextmanager
def working() -> Iterator[Work]:
    """A clock that the texts move which encoders read in the block."""
    clock = Work()
    hook = register_module_forward_hook(clock.read)
    try:
        yield clock
    finally:
        hook.remove()
