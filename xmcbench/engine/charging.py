"""The one place where the engine, and the methods it trains, enter costs into a trial's ledger.

All counts are over all workers. An encoder pass costs the operations of real tokens, without padding.

Legend: N texts, L labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from xmcbench.engine.flops import Count, counting
from xmcbench.engine.sampling.batch import Batch
from xmcbench.engine.sampling.embeddings import Require
from xmcbench.engine.workers import ALONE, Workers
from xmcbench.trial.budget import Budget, Ledger, PassTooLargeError

Cost = dict[str, int]  # by the name of a count of the ledger, over all workers
TRAINING_PASSES = 3  # a forward pass, and a backward pass that multiplies twice as much


def batch_lengths(batch: Batch, query_lengths_N: np.ndarray, label_lengths_L: np.ndarray | None) -> np.ndarray:
    """The lengths of the texts of `batch`, given those of all texts; `label_lengths_L` is None without label texts."""
    lengths_N = query_lengths_N[batch.query_ids]
    return lengths_N if label_lengths_L is None else np.concatenate([lengths_N, label_lengths_L[batch.label_ids]])


@dataclass
class Charging:
    """Enters costs into `ledger`; `encoder_flops` gives the operations of one forward pass over texts of N lengths.

    With a `budget`, a pass that does not fit into what is left of it is refused.
    """

    ledger: Ledger
    encoder_flops: Callable[[np.ndarray], int]
    workers: Workers = ALONE
    budget: Budget | None = None

    def charge(self, cost: Cost, times: int = 1) -> None:
        """Add so many times this cost."""
        for name, count in cost.items():
            setattr(self.ledger, name, getattr(self.ledger, name) + times * count)

    def encoding(self, lengths_N: np.ndarray) -> None:
        """Charge a forward pass over texts of these lengths in tokens, shared by the workers."""
        self.charge({"encoder_tokens": int(lengths_N.sum()), "encoder_flops": self.encoder_flops(lengths_N)})

    def passes(self, *lengths_N: np.ndarray, scoring_flops: int = 0) -> None:
        """Charge forward passes over texts of these lengths, and operations on their scores, shared by the workers.

        Raises PassTooLargeError, and charges nothing, where they do not fit into the rest of the budget.
        """
        self.require(*lengths_N, scoring_flops=scoring_flops)
        for each_N in lengths_N:
            self.encoding(each_N)
        self.scoring(scoring_flops)

    def own_encoding(self, lengths_N: np.ndarray) -> None:
        """Charge a forward pass over this worker's texts and those of all other workers; every worker calls this."""
        tokens, operations = self.workers.totals(int(lengths_N.sum()), self.encoder_flops(lengths_N))
        self.charge({"encoder_tokens": tokens, "encoder_flops": operations})

    def on_demand(
        self, vectors: Callable[[], Tensor], lengths_N: np.ndarray, module_flops: int = 0
    ) -> Callable[[], Tensor]:
        """`vectors`, which charges a forward pass over texts of these lengths at each call.

        A call raises PassTooLargeError where the pass does not fit into the rest of the budget, with the operations of
        the method's modules, which are counted as they are computed.
        """

        def charged() -> Tensor:
            self.require(lengths_N, module_flops=module_flops)
            self.encoding(lengths_N)
            return vectors()

        return charged

    def require(self, *lengths_N: np.ndarray, scoring_flops: int = 0, module_flops: int = 0) -> None:
        """Raise PassTooLargeError unless forward passes over texts of these lengths fit into the rest of the budget.

        Seconds are predicted from what the operations of training and mining have taken so far.
        """
        if self.budget is None:
            return
        ledger, seconds = self.ledger, self.ledger.stage_seconds
        encoder_flops = sum(self.encoder_flops(each_N) for each_N in lengths_N)
        taken = seconds.get("train", 0.0) + seconds.get("mine", 0.0)
        per_operation = self.workers.of_worker_0(taken) / max(1, ledger.encoder_flops)
        costs = {
            "encoder_tokens": float(sum(int(each_N.sum()) for each_N in lengths_N)),
            "flops": float(encoder_flops + scoring_flops + module_flops),
            "device_seconds": encoder_flops * per_operation,
        }
        texts = sum(map(len, lengths_N))
        ledger.require(self.budget, f"a pass over {texts:,} texts" if texts else "a search for neighbours", costs)

    def requirement(
        self,
        query_lengths_N: np.ndarray,
        label_lengths_L: np.ndarray,
        scale: float = 1.0,
        vector_flops: tuple[int, int] = (0, 0),
    ) -> Require:
        """`Embeddings.require` for texts of these lengths; operations on scores are multiplied by `scale`.

        `vector_flops` are those of modules that make the vectors of all queries, and of all labels.
        """

        def require(*, needs_queries: bool, needs_labels: bool, scoring_flops: int = 0) -> None:
            lengths = [query_lengths_N] * needs_queries + [label_lengths_L] * needs_labels
            own = vector_flops[0] * needs_queries + vector_flops[1] * needs_labels
            self.require(*lengths, scoring_flops=int(scale * scoring_flops), module_flops=own)

        return require

    def refreshed(self, refresh: Callable[[], None], skips: bool) -> bool:
        """Call `refresh`; whether training continues: one that does not fit into the budget is skipped, or the end.

        Raises PassTooLargeError if it does not fit and no step was taken yet.
        """
        try:
            refresh()
        except PassTooLargeError:
            if not self.ledger.steps:
                raise
            return skips
        return True

    def scoring(self, flops: int) -> None:
        """Charge operations on scores that all workers share or repeat."""
        self.ledger.scoring_flops += flops

    def counts(self, count: Count) -> None:
        """Charge what this worker counted, and what all other workers did; every worker calls this."""
        self.charge(self._of_all(count))

    @contextmanager
    def counted(self, stage: str) -> Iterator[None]:
        """Charge the seconds of the block to `stage`, and the operations that each worker counts in it."""
        with self.ledger.stage(stage), counting() as own:
            yield
        self.counts(own)

    def _of_all(self, count: Count) -> Cost:
        """The operations that all workers counted."""
        scoring, modules = self.workers.totals(count.flops, count.module_flops)
        return {"scoring_flops": scoring, "module_flops": modules}

    def step_cost(
        self, batch: Batch, query_lengths_N: np.ndarray, label_lengths_L: np.ndarray | None, count: Count
    ) -> Cost:
        """The cost of an optimiser step on `batch` (of all workers), given the lengths of all texts in tokens.

        `label_lengths_L` is None if labels are not encoded; `count` has the other operations of this worker.
        """
        lengths_N = batch_lengths(batch, query_lengths_N, label_lengths_L)
        return {
            "steps": 1,
            "queries": len(batch.query_ids),
            "pool_labels": len(batch.label_ids),
            "pool_positives": len(batch.positives.rows_P),
            "encoder_tokens": int(lengths_N.sum()),
            "encoder_flops": TRAINING_PASSES * self.encoder_flops(lengths_N),
            **self._of_all(count),
        }
