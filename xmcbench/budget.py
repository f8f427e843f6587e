"""What a trial may spend, and what it spent."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil
from pydantic import BaseModel, ConfigDict, Field, model_validator

# Evaluation and indexing come after the budgeted work: a slower index must not shorten training.
BUDGETED_STAGES = ("prepare", "train", "mine", "cluster")


def peak_memory() -> int:
    """Peak resident memory of this process in bytes, as the system keeps it."""
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # kilobytes elsewhere


class Budget(BaseModel):
    """Limits on training; it stops at the first step boundary past any of them. At least one is set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epochs: float | None = Field(None, gt=0, description="passes over the training queries")
    steps: int | None = Field(None, gt=0, description="optimiser steps")
    encoder_tokens: int | None = Field(None, gt=0, description="real tokens encoded, mining included, padding not")
    flops: float | None = Field(None, gt=0, description="floating-point operations of encoder and scores")
    device_seconds: float | None = Field(None, gt=0, description="seconds in the stages " + ", ".join(BUDGETED_STAGES))

    @model_validator(mode="after")
    def _some_limit(self) -> Budget:
        if not self.limits():
            raise ValueError(f"a budget needs at least one of {', '.join(type(self).model_fields)}")
        return self

    def limits(self) -> dict[str, float]:
        """The limits that are set, by name."""
        return {name: value for name, value in self.model_dump().items() if value is not None}


@dataclass
class Ledger:
    """What was spent so far: counted, never estimated."""

    epochs: float = 0.0
    steps: int = 0
    queries: int = 0  # training queries seen, repeats counted
    encoder_tokens: int = 0
    # A backward pass counts twice the forward one; what is computed again to save memory does not count.
    encoder_flops: int = 0  # of real tokens
    scoring_flops: int = 0  # of products of queries and labels
    stage_seconds: dict[str, float] = field(default_factory=dict)
    peak_bytes: int = 0  # peak resident memory of the worker that took the most
    worker_bytes: list[int] = field(default_factory=list)  # of each worker, at the end of training
    largest_step: dict[str, float] = field(default_factory=dict)  # most of each limit that one step took
    _inner: float = field(default=0.0, repr=False)  # seconds charged to stages inside the one now open

    @property
    def device_seconds(self) -> float:
        return sum(self.stage_seconds.get(stage, 0.0) for stage in BUDGETED_STAGES)

    @property
    def flops(self) -> int:
        return self.encoder_flops + self.scoring_flops

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Charge the wall-clock of the block to stage `name`; a stage inside a stage is charged once, to the inner."""
        outer, self._inner = self._inner, 0.0
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.stage_seconds[name] = self.stage_seconds.get(name, 0.0) + spent - self._inner
            self._inner = outer + spent

    @contextmanager
    def off_the_books(self) -> Iterator[None]:
        """Leave the block's tokens and seconds out of what is spent (evaluation on the selection split)."""
        counts = self.encoder_tokens, self.encoder_flops, self.scoring_flops
        outer = dict(self.stage_seconds)
        inner = self._inner
        start = time.perf_counter()
        try:
            yield
        finally:
            self.encoder_tokens, self.encoder_flops, self.scoring_flops = counts
            self.stage_seconds = outer
            self._inner = inner + time.perf_counter() - start

    def spent(self, limit: str) -> float:
        """How much of the limit named `limit` is spent."""
        return float(getattr(self, limit))

    @contextmanager
    def step(self, budget: Budget) -> Iterator[None]:
        """Note what the block, one step, takes of each limit: by the largest step a trial may overrun."""
        before = {name: self.spent(name) for name in budget.limits()}
        yield
        for name, spent in before.items():
            self.largest_step[name] = max(self.spent(name) - spent, self.largest_step.get(name, 0.0))

    def fraction(self, budget: Budget) -> float:
        """The share of the budget spent: that of the limit nearest to its end. 1 or more means stop."""
        return max(self.spent(name) / limit for name, limit in budget.limits().items())

    def over(self, budget: Budget) -> dict[str, float]:
        """Limits overrun by more than the one step that may cross them, with what was spent."""
        return {
            name: self.spent(name)
            for name, limit in budget.limits().items()
            if self.spent(name) > limit + self.largest_step.get(name, 0.0)
        }

    def as_dict(self) -> dict[str, Any]:
        """The ledger as a record keeps it."""
        return {**self.state(), "device_seconds": self.device_seconds, "flops": self.flops}

    def state(self) -> dict[str, Any]:
        """What `Ledger(**state)` continues from."""
        return {name: value for name, value in asdict(self).items() if not name.startswith("_")}
