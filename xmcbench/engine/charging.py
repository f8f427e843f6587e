"""The one place where the engine, and the methods it trains, enter costs into a trial's ledger.

All counts are over all workers. An encoder pass costs the operations of real tokens, without padding.

Legend: N texts, L labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from xmcbench.engine.device import default_device
from xmcbench.engine.flops import counting
from xmcbench.engine.sampling.batch import Batch
from xmcbench.engine.workers import ALONE, Workers
from xmcbench.trial.budget import Ledger

TRAINING_PASSES = 3  # a forward pass, and a backward pass that multiplies twice as much


@dataclass(frozen=True)
class StepCost:
    """The costs of one optimiser step, over all workers."""

    queries: int
    pool_labels: int
    encoder_tokens: int
    encoder_flops: int
    scoring_flops: int


class Charging:
    """Enters costs into `ledger`; `encoder_flops` gives the operations of one forward pass over texts of N lengths."""

    def __init__(self, ledger: Ledger, encoder_flops: Callable[[np.ndarray], int], workers: Workers = ALONE) -> None:
        self.ledger = ledger
        self.encoder_flops = encoder_flops
        self.workers = workers

    def encoding(self, lengths_N: np.ndarray) -> None:
        """Charge a forward pass over texts of these lengths in tokens, shared by the workers."""
        self.ledger.encoder_tokens += int(lengths_N.sum())
        self.ledger.encoder_flops += self.encoder_flops(lengths_N)

    def own_encoding(self, lengths_N: np.ndarray) -> None:
        """Charge a forward pass over this worker's texts and those of all other workers; every worker calls this."""
        tokens, operations = self._over_workers(int(lengths_N.sum()), self.encoder_flops(lengths_N))
        self.ledger.encoder_tokens += tokens
        self.ledger.encoder_flops += operations

    def on_demand(self, vectors: Callable[[], Tensor], lengths_N: np.ndarray) -> Callable[[], Tensor]:
        """`vectors`, which charges a forward pass over texts of these lengths at each call."""

        def charged() -> Tensor:
            self.encoding(lengths_N)
            return vectors()

        return charged

    def scoring(self, flops: int) -> None:
        """Charge operations on scores that all workers share or repeat."""
        self.ledger.scoring_flops += flops

    @contextmanager
    def counted_scoring(self, stage: str) -> Iterator[None]:
        """Charge the seconds of the block to `stage`, and the operations on scores that each worker counts in it."""
        with self.ledger.stage(stage), counting() as scored:
            yield
        self.scoring(*self._over_workers(scored.flops))

    def step_cost(
        self, batch: Batch, query_lengths_N: np.ndarray, label_lengths_L: np.ndarray | None, scoring_flops: int
    ) -> StepCost:
        """The cost of training on `batch` (of all workers), given the lengths of all texts in tokens.

        `label_lengths_L` is None if labels are not encoded; `scoring_flops` are this worker's.
        """
        lengths_N = query_lengths_N[batch.query_ids]
        if label_lengths_L is not None:
            lengths_N = np.concatenate([lengths_N, label_lengths_L[batch.label_ids]])
        return StepCost(
            queries=len(batch.query_ids),
            pool_labels=len(batch.label_ids),
            encoder_tokens=int(lengths_N.sum()),
            encoder_flops=TRAINING_PASSES * self.encoder_flops(lengths_N),
            scoring_flops=self._over_workers(scoring_flops)[0],
        )

    def step(self, cost: StepCost) -> None:
        """Charge one optimiser step."""
        ledger = self.ledger
        ledger.steps += 1
        ledger.queries += cost.queries
        ledger.pool_labels += cost.pool_labels
        ledger.encoder_tokens += cost.encoder_tokens
        ledger.encoder_flops += cost.encoder_flops
        ledger.scoring_flops += cost.scoring_flops

    def _over_workers(self, *counts: int) -> list[int]:
        total: list[int] = self.workers.sum(torch.tensor(counts, device=default_device())).tolist()
        return total
