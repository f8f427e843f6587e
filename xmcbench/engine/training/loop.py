"""The training loop: steps until the budget is spent. A dry run takes the same loop, with steps that only count.

The sampler and the ledger agree on all workers; of the clocks, that of worker 0 counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from xmcbench.engine.charging import Charging, StepCost
from xmcbench.engine.workers import from_worker_0
from xmcbench.trial.budget import Budget, PassTooLargeError

Metrics = dict[str, float]


@dataclass
class Position:
    """The place of the next batch: `index` in `epoch`."""

    epoch: int = 0
    index: int = 0


Charge = Callable[[StepCost], float]  # enters the cost of a step; returns the step's place on the schedule, in 0..1


class Steps(Protocol):
    """The optimiser steps of a training, taken or counted."""

    def num_batches(self, epoch: int) -> int:
        """The number of steps in an epoch."""

    def refresh(self, epoch: int) -> None:
        """Called before each epoch: the sampler may look at the embeddings of everything."""

    def step(self, position: Position, charge: Charge) -> Metrics:
        """Train on the batch at `position`: `charge` its cost, once, before the update; return metrics of the step."""


class Loop:
    """Takes steps from `position` on until `budget` is spent, or `why_ended` gives a reason before a step.

    `after_step` is called with the metrics of each step.
    Only a step may exceed the budget. A refresh that does not fit into what is left ends training, or is skipped.
    """

    def __init__(
        self,
        steps: Steps,
        charging: Charging,
        budget: Budget,
        position: Position,
        after_step: Callable[[Metrics], None] = lambda _metrics: None,
        skips_refreshes: bool = False,
        why_ended: Callable[[], str] = lambda: "",
    ) -> None:
        self.steps, self.charging, self.budget = steps, charging, budget
        self.position, self.after_step, self.skips_refreshes = position, after_step, skips_refreshes
        self.why_ended = why_ended

    def run(self) -> None:
        """Spend the budget, or as much of it as is wanted."""
        while (before := self.spent()) < 1 and not self.why_ended():
            if self.position.index == 0 and not self._refreshed(self.position.epoch):
                return
            self.after_step(self.step(before))

    def step(self, before: float) -> Metrics:
        """Take a step, `before` of the budget being spent."""

        def charge(cost: StepCost) -> float:
            self.charging.step(cost)
            self.advance()
            # The step's place on the schedule is its middle: neither the first nor the last step has rate 0.
            return (before + min(1.0, self.spent())) / 2

        ledger = self.charging.ledger
        with ledger.between_checks(self.budget), ledger.stage("train"):
            return self.steps.step(self.position, charge)

    def _refreshed(self, epoch: int) -> bool:
        """Refresh the sampler; whether training continues. Raises PassTooLargeError if no step was taken yet."""
        try:
            self.steps.refresh(epoch)
        except PassTooLargeError:
            if not self.charging.ledger.steps:
                raise
            return self.skips_refreshes
        return self.spent() < 1 or not self.charging.ledger.steps

    def spent(self) -> float:
        """The fraction of the budget that is spent, by the clock of worker 0."""
        return from_worker_0(self.charging.ledger.fraction(self.budget), self.charging.workers)

    def advance(self, steps: int = 1) -> None:
        """Move the position over so many steps of its epoch."""
        position, batches = self.position, self.steps.num_batches(self.position.epoch)
        position.index += steps
        self.charging.ledger.epochs = position.epoch + position.index / batches
        if position.index == batches:
            position.epoch, position.index = position.epoch + 1, 0
