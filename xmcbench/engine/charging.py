"""The one place where the engine, and the methods it trains, enter costs into a trial's ledger.

All counts are over all workers. An encoder pass costs the operations of real tokens, without padding.

Legend: N texts, L labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from torch import Tensor

from xmcbench.engine.device import synchronise
from xmcbench.engine.flops import Count, counting
from xmcbench.engine.passes import Pace, stopping
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
    pace: Pace = field(default_factory=Pace)  # by which the seconds of passes are predicted

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
            with self.timed("encoding", self.encoder_flops(lengths_N)):
                return vectors()

        return charged

    @contextmanager
    def timed(self, kind: Literal["encoding", "scoring"], operations: int) -> Iterator[None]:
        """Measure what the block takes, from which the seconds of the next pass of this kind are predicted."""
        if not self._limits_seconds or not operations or self.pace.given:
            yield
            return
        synchronise()
        start = self.ledger.device_clock()
        yield
        synchronise()
        setattr(self.pace, kind, (self.ledger.device_clock() - start) / operations)

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Raise PassTooLargeError within a pass of the block as soon as the device seconds of the budget are spent.

        A pass can end between two of its parts (`stop_point`), so that it exceeds the budget by at most one part, as a
        training does by at most one step. Several workers do not end a pass, as their clocks differ: it then counts as
        one part.
        """
        if not self._limits_seconds:
            yield
            return
        assert self.budget is not None
        ledger, limit, before = self.ledger, self.budget.device_seconds or 0.0, self.ledger.device_seconds

        def passed() -> float:
            nonlocal before
            now, last = ledger.device_seconds, before
            before = now
            ledger.note_step("device_seconds", now - last)
            return now

        def stop() -> None:
            if passed() >= limit:
                ledger.refused_pass = 1
                raise PassTooLargeError(f"a pass over the data was ended: the {limit:,.10g} device seconds are spent")

        with stopping(stop) if self.workers.size == 1 else nullcontext():
            yield
        passed()

    @property
    def _limits_seconds(self) -> bool:
        return self.budget is not None and self.budget.device_seconds is not None

    def require(self, *lengths_N: np.ndarray, scoring_flops: int = 0, module_flops: int = 0) -> None:
        """Raise PassTooLargeError unless forward passes over texts of these lengths fit into the rest of the budget.

        Seconds are predicted from what the operations of the last pass took, or of a sample.
        """
        if self.budget is None:
            return
        texts = sum(map(len, lengths_N))
        what = f"a pass over {texts:,} texts" if texts else "a search for neighbours"
        self.ledger.require(self.budget, what, self._costs(*lengths_N, scoring=scoring_flops, modules=module_flops))

    def reserve(self, *lengths_N: np.ndarray) -> None:
        """Keep room in the budget for forward passes over texts of these lengths, until `release`."""
        if self.budget is not None and lengths_N:
            self.budget = self.budget.less(self._costs(*lengths_N))

    def release(self) -> None:
        """Refuse no pass any more: those that follow have their room, which the last step may have used a part of."""
        self.budget = None

    def _costs(self, *lengths_N: np.ndarray, scoring: int = 0, modules: int = 0) -> dict[str, float]:
        """What passes over texts of these lengths cost of the budget's limits."""
        encoder_flops = sum(self.encoder_flops(each_N) for each_N in lengths_N)
        costs = {
            "encoder_tokens": sum(int(each_N.sum()) for each_N in lengths_N),
            "flops": float(encoder_flops + scoring + modules),
        }
        if self._limits_seconds:
            costs["device_seconds"] = self._seconds(encoder_flops, scoring)
        return costs

    def _seconds(self, encoder_flops: int, scoring_flops: int) -> float:
        """The predicted device seconds of so many operations. The clock of worker 0 decides for all what fits."""
        clock, seconds = self.ledger.device_clock, 0.0
        if encoder_flops:
            seconds += encoder_flops * self.pace.of("encoding", clock)
        if scoring_flops:
            seconds += scoring_flops * self.pace.of("scoring", clock)
        spent = self.ledger.device_seconds
        return self.workers.of_worker_0(seconds + spent) - spent if self.workers.size > 1 else seconds

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
            module_flops = vector_flops[0] * needs_queries + vector_flops[1] * needs_labels
            self.require(*lengths, scoring_flops=int(scale * scoring_flops), module_flops=module_flops)

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
        with self.ledger.stage(stage), counting() as counted, self.stoppable():
            yield
        self.counts(counted)

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
