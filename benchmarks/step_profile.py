"""Where the time of a training step goes. Used by `step.py --profile`."""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xmcbench.data.dataset import DatasetCard, TrainingData
from xmcbench.data.formats import read_directory
from xmcbench.engine.training.gradient_cache import CachedEmbeddings
from xmcbench.engine.training.loop import Position
from xmcbench.engine.training.steps import TrainingSteps
from xmcbench.trial.budget import Budget
from xmcbench.trial.run import Run

HARNESS = "harness"


class Stopwatch:
    """Seconds spent in parts, without what other parts within them take."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._running = [HARNESS]
        self._since = time.perf_counter()

    def _switch(self, change: Callable[[], object]) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        self.seconds[self._running[-1]] += now - self._since
        self._since = now
        change()

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, whose time goes to `part`."""

        def run(*args: Any, **kwargs: Any) -> Any:
            self._switch(lambda: self._running.append(part))
            try:
                return function(*args, **kwargs)
            finally:
                self._switch(self._running.pop)

        return run


def profile(data: Path, encoder: str, precision: str, asked: Any) -> list[dict[str, Any]]:
    """Parts of a step of DEXML with in-batch negatives, in median seconds and shares."""
    with tempfile.TemporaryDirectory() as directory:
        steps = make_steps(data, encoder, precision, asked, Path(directory))
        clock = Stopwatch()
        clock_parts(steps, clock)
        turns = []
        take_step(steps, 0)
        for turn in range(asked.turns):
            clock.seconds.clear()
            clock._switch(lambda: None)
            clock.seconds.clear()
            take_step(steps, turn + 1)
            clock._switch(lambda: None)
            turns.append(dict(clock.seconds))
    parts = sorted({part for turn in turns for part in turn}, key=lambda part: -turns[0].get(part, 0.0))
    whole = float(np.median([sum(turn.values()) for turn in turns]))
    rows = []
    for part in parts:
        middle = float(np.median([turn.get(part, 0.0) for turn in turns]))
        share = float(np.median([turn.get(part, 0.0) / sum(turn.values()) for turn in turns]))
        rows.append({"encoder": encoder, "precision": precision, "part": part, "ms": 1000 * middle, "%": 100 * share})
    return [*rows, {"encoder": encoder, "precision": precision, "part": "step", "ms": 1000 * whole, "%": 100.0}]


def take_step(steps: TrainingSteps, number: int) -> None:
    """Step `number` as the training loop takes it."""
    batches = steps.num_batches(0)
    steps.method.charging.step(steps.gradients(Position(number // batches, number % batches)))
    steps.update(0.5)


def clock_parts(steps: TrainingSteps, clock: Stopwatch) -> None:
    """Encoder, loss and optimiser on the clock; all the rest is the harness, its larger parts by name."""
    encoder: Any = steps.method.encoder
    cache: Any = steps.embedder.cache
    watched: list[tuple[Any, str, str]] = [
        (encoder, "forward", "encoder, forward"),
        (CachedEmbeddings, "backward", "encoder, backward"),
        (steps, "_loss", "loss"),
        (steps.optimizers, "apply", "optimiser"),
        (steps.batches, "batch", f"{HARNESS}: batch"),
        (cache, "_micro_batch", f"{HARNESS}: padding"),
        (steps.method.charging, "step_cost", f"{HARNESS}: ledger"),
    ]
    for owner, name, part in watched:
        setattr(owner, name, clock.timed(part, getattr(owner, name)))


def make_steps(data: Path, encoder: str, precision: str, asked: Any, root: Path) -> TrainingSteps:
    from xmcbench_dexml import DEXML

    parts = read_directory(data)
    rows, labels = parts.train.targets.shape
    card = DatasetCard(name="bench", num_train=rows, num_test=1, num_labels=labels, max_length=32, max_label_length=16)
    train = TrainingData(card, parts.train.texts, parts.train.targets, parts.label_texts, parts.ignore_train)
    config = DEXML.Config.model_validate(
        {"encoder": encoder, "negatives": "in-batch", "batch_size": asked.batch, "precision": precision}
    )
    method = DEXML(config)
    run = Run(seed=0, budget=Budget(steps=10**6), checkpoint=root, cache=asked.cache)
    method.prepare(train, run)
    return TrainingSteps(method, train)
