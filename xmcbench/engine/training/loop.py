"""The training loop: steps until the budget is spent. A dry run takes the same loop, with steps that only count.

The sampler and the ledger agree on all workers; of the clocks, that of worker 0 counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from xmcbench.engine.charging import Charging, StepCost
from xmcbench.engine.device import default_device
from xmcbench.engine.workers import Workers
from xmcbench.trial.budget import Budget

Metrics = dict[str, float]


@dataclass
class Position:
    """The place of the next batch: `index` in `epoch`."""

    epoch: int = 0
    index: int = 0


class Steps(Protocol):
    """The parts of an optimiser step, real or counted."""

    def num_batches(self, epoch: int) -> int:
        """The number of steps in an epoch."""

    def refresh(self, epoch: int) -> None:
        """Called before each epoch: the sampler may look at the embeddings of everything."""

    def gradients(self, position: Position) -> StepCost:
        """Embed the batch at `position`, compute its loss and all gradients; return what that costs."""

    def update(self, fraction: float) -> Metrics:
        """Apply the gradients, `fraction` of the budget being spent; return metrics of the step."""


class Loop:
    """Takes steps from `position` on until `budget` is spent; `after_step` is called with the metrics of each."""

    def __init__(
        self,
        steps: Steps,
        charging: Charging,
        budget: Budget,
        position: Position,
        after_step: Callable[[Metrics], None] = lambda _metrics: None,
    ) -> None:
        self.steps, self.charging, self.budget = steps, charging, budget
        self.position, self.after_step = position, after_step

    def run(self) -> None:
        """Spend the budget."""
        steps, position, ledger = self.steps, self.position, self.charging.ledger
        while (before := self.spent()) < 1:
            with ledger.between_checks(self.budget):
                if position.index == 0:
                    steps.refresh(position.epoch)
                with ledger.stage("train"):
                    self.charging.step(steps.gradients(position))
                    self._advance()
                    # The step's place on the schedule is its middle: neither the first nor the last step has rate 0.
                    metrics = steps.update((before + min(1.0, self.spent())) / 2)
            self.after_step(metrics)

    def spent(self) -> float:
        """The fraction of the budget that is spent, by the clock of worker 0."""
        return from_worker_0(self.charging.ledger.fraction(self.budget), self.charging.workers)

    def _advance(self) -> None:
        position, batches = self.position, self.steps.num_batches(self.position.epoch)
        position.index += 1
        self.charging.ledger.epochs = position.epoch + position.index / batches
        if position.index == batches:
            position.epoch, position.index = position.epoch + 1, 0


def from_worker_0(value: float, workers: Workers) -> float:
    """Worker 0's value, on every worker: all must stop and write checkpoints in the same step."""
    if workers.size == 1:
        return value
    own = value if workers.rank == 0 else -math.inf
    return float(workers.max(torch.tensor(own, dtype=torch.float64, device=default_device())))
