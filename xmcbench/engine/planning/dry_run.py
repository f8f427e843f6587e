"""A dry run: the training loop with steps that only count.

Loop, budget, ledger and charging are those of a real training. The method's own sampler draws the batches, but of
stand-in vectors with few dimensions, and of only some batches of an epoch: the others cost what these do on average.
What samplers and losses compute is linear in the dimensions of the vectors, so the operations counted here are scaled.

Legend: N training queries, L labels, B queries of a batch, S labels of its pool.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np
import scipy.sparse as sp
import torch

from xmcbench.engine import flops
from xmcbench.engine.charging import Charging, StepCost, batch_lengths
from xmcbench.engine.embedding_method import EmbeddingMethod
from xmcbench.engine.losses import Positives
from xmcbench.engine.planning.probe import Probe, Workload
from xmcbench.engine.sampling.batch import Batch
from xmcbench.engine.sampling.embeddings import Embeddings
from xmcbench.engine.search.index import search_flops
from xmcbench.engine.training.loop import Charge, Loop, Metrics, Position
from xmcbench.errors import XMCBenchError
from xmcbench.trial.budget import Budget
from xmcbench.trial.run import derive_seed

EXACT_PAIRS = 2e8  # of queries and labels: up to here neighbours are searched, beyond they are drawn at random
DRAWN = 16  # random neighbours per query
BATCHES, OF_LARGE, OF_ADDING = 24, 4, 2  # drawn per epoch: in general, of a large dataset, where the sampler adds
SETTLED = 2  # refreshes of a large dataset after which batches and refreshes are assumed to cost what they did
KNOWN_LIMITS = {"epochs", "steps", "encoder_tokens", "flops", "device_seconds"}


@dataclass(frozen=True)
class StandIns(Embeddings):
    """Stand-in vectors, and neighbours among them; counts what a search of the real vectors would take."""

    num_queries: int = 1  # of the dataset, of which those here may be a sample

    def nearest(self, k: int, exclude: sp.csr_array) -> np.ndarray:
        self.require(needs_queries=True, needs_labels=True)
        queries_ND, labels_LD = self.queries(), self.labels()
        if len(queries_ND) * len(labels_LD) <= EXACT_PAIRS:
            return super().nearest(k, exclude)
        operations = search_flops(self.num_queries, *labels_LD.shape) * len(queries_ND) // self.num_queries
        self.require(needs_queries=False, needs_labels=False, scoring_flops=operations)
        flops.current().flops += operations
        return np.random.default_rng(0).integers(0, len(labels_LD), (len(queries_ND), min(k, DRAWN)), dtype=np.int32)


class LooksError(Exception):
    """A sampler looks at embeddings."""


def _looks(*_args: object, **_options: object) -> NoReturn:
    raise LooksError


def dry_run(
    method: EmbeddingMethod, work: Workload, probe: Probe, charging: Charging, budget: Budget, seed: int
) -> CountedSteps:
    """Spend `budget` on paper: `charging` enters the costs. Returns the steps: their largest, and the sampler's state.

    Raises XMCBenchError for a limit that no plan can reach.
    """
    if not KNOWN_LIMITS & budget.spending().keys():
        raise XMCBenchError(f"it stops at {', '.join(budget.spending())}, which a plan cannot count")
    steps = CountedSteps(method, work, probe, charging, seed)
    for lengths_N in [work.all_query_lengths_N] * probe.asks_queries + [work.label_lengths_L] * probe.asks_labels:
        charging.passes(lengths_N)  # the embeddings that the method asks for before its first step
    CountingLoop(steps, charging, budget, Position(), skips_refreshes=method.skips_refreshes).run()
    return steps


class CountingLoop(Loop):
    """The training loop; steps of an epoch that cost the same are charged at once."""

    steps: CountedSteps

    def step(self, before: float) -> Metrics:
        ledger, names = self.charging.ledger, self.budget.spending()
        spent = {name: ledger.spent(name) for name in names}
        metrics = super().step(before)
        if self.position.index and (more := self._more(spent)) > 0:
            with ledger.stage("train"):
                self.charging.step(self.steps.cost(self.position), more)
            self.advance(more)
        return metrics

    def _more(self, spent: dict[str, float]) -> int:
        """How many more steps like the last one surely fit into epoch and budget; `spent` is from before that step."""
        ledger, position = self.charging.ledger, self.position
        fits = [self.steps.num_batches(position.epoch) - 1 - position.index]
        for name, limit in self.budget.spending().items():
            cost = ledger.spent(name) - spent[name]
            if cost > 0:
                fits.append(int((limit - ledger.spent(name)) / cost) - 1)
        return min(fits)


class CountedSteps:
    """The steps of a training, counted."""

    def __init__(self, method: EmbeddingMethod, work: Workload, probe: Probe, charging: Charging, seed: int) -> None:
        self.method, self.work, self.probe, self.charging = method, work, probe, charging
        self.sampler = method.sampler(work.train, derive_seed(seed, "sampler"))
        self.label_lengths_L = work.label_lengths_L if method.encodes_labels else None
        self.largest: Batch  # of the step that encodes the most tokens
        self._scale = probe.mining_dimension / work.labels_LD.shape[1]
        self._changes = 0  # of the batches, by refreshes or by what the sampler added
        self.refresh_cost: dict[str, int] = {}  # of the last refresh, by name in the ledger
        self._most_tokens = -1
        self._last: StepCost | None = None  # of an epoch: its last batch may be smaller
        self._mean: StepCost | None = None  # of the other batches

    @property
    def lengths_N(self) -> np.ndarray:
        """The lengths of all texts that the largest step encodes."""
        return batch_lengths(self.largest, self.work.query_lengths_N, self.label_lengths_L)

    def num_batches(self, epoch: int) -> int:
        return round(self.sampler.num_batches(epoch) / self.work.share)

    def refresh(self, epoch: int) -> None:
        work, charging, ledger = self.work, self.charging, self.charging.ledger
        if work.share < 1 and self._changes >= SETTLED:
            self._repeat_refresh(epoch)
            return
        if epoch and self.sampler.observes:
            self._observe_everything()
        before = {name: getattr(ledger, name) for name in ("encoder_tokens", "encoder_flops", "scoring_flops")}
        queries_ND = work.trained_queries_ND if epoch else work.queries_ND
        labels = lambda: work.labels_LD  # noqa: E731
        label_lengths_L = work.label_lengths_L if self.method.encodes_labels else work.label_lengths_L[:0]
        embeddings = StandIns(
            charging.on_demand(lambda: queries_ND, work.all_query_lengths_N),
            charging.on_demand(labels, work.label_lengths_L) if self.method.encodes_labels else labels,
            require=charging.requirement(work.all_query_lengths_N, label_lengths_L, self._scale / work.share),
            num_queries=work.num_queries,
        )
        with ledger.stage("mine"), flops.counting() as scored, torch.no_grad():
            self.sampler.refresh(epoch, embeddings)
            charging.scoring(int(scored.flops * self._scale / work.share))
        cost = {name: getattr(ledger, name) - count for name, count in before.items()}
        refreshed = any(cost.values())
        if refreshed:
            self.refresh_cost = cost
        if self._last is None or refreshed or self.sampler.extends_pool:
            self._draw(epoch)
        self._changes += refreshed or self.sampler.extends_pool

    def _repeat_refresh(self, epoch: int) -> None:
        """Charge the cost of the last refresh if the sampler would look at embeddings again."""
        ledger = self.charging.ledger
        try:
            self.sampler.refresh(epoch, Embeddings(_looks, _looks, stage=_looks, require=_looks))
        except LooksError:
            if self.charging.budget:
                operations = self.refresh_cost["encoder_flops"] + self.refresh_cost["scoring_flops"]
                tokens = self.refresh_cost["encoder_tokens"]
                ledger.require(
                    self.charging.budget, "a refresh", {"encoder_tokens": float(tokens), "flops": float(operations)}
                )
            with ledger.stage("mine"):
                for name, count in self.refresh_cost.items():
                    setattr(ledger, name, getattr(ledger, name) + count)

    def step(self, position: Position, charge: Charge) -> Metrics:
        charge(self.cost(position))
        return {}

    def cost(self, position: Position) -> StepCost:
        """The cost of the step at `position`."""
        last = position.index + 1 == self.num_batches(position.epoch)
        cost = self._last if last else self._mean
        assert cost is not None
        return cost

    def _draw(self, epoch: int) -> None:
        """Draw some batches of the epoch, and count what they cost."""
        count = self.sampler.num_batches(epoch)
        most = OF_ADDING if self.sampler.extends_pool else OF_LARGE if self.work.share < 1 else BATCHES
        *others, self._last = (
            self._cost(self.sampler.batch(epoch, int(index)))
            for index in np.unique(np.linspace(0, count - 1, min(count, most)).astype(int))
        )
        others = others or [self._last]
        means = {name: round(np.mean([vars(cost)[name] for cost in others])) for name in vars(self._last)}
        self._mean = StepCost(**means)

    def _cost(self, batch: Batch) -> StepCost:
        """The cost of a step on this batch, with the labels that the sampler would add to its pool."""
        work, looked = self.work, 0.0
        if self.sampler.extends_pool:
            with flops.counting() as scored, torch.no_grad():
                vectors = work.queries_ND[batch.query_ids], work.labels_LD[batch.label_ids]
                batch = replace(batch, label_ids=self.sampler.extend_pool(batch, *vectors))
            looked = scored.flops * self._scale
        pairs = len(batch.query_ids) * len(batch.label_ids)
        scoring = round(self.probe.flops_per_pair * pairs + looked)
        cost = self.charging.step_cost(batch, work.query_lengths_N, self.label_lengths_L, scoring)
        if cost.encoder_tokens > self._most_tokens:
            self.largest, self._most_tokens = batch, cost.encoder_tokens
        return cost

    def _observe_everything(self) -> None:
        """Show every query and label to parts that watch: by the end of an epoch they have seen all."""
        work, none = self.work, torch.empty(0, dtype=torch.int64)
        positives = Positives(none, none, 0, 0)
        everything = Batch(np.arange(len(work.queries_ND)), np.arange(len(work.labels_LD)), positives)
        self.sampler.observe(everything, work.trained_queries_ND, work.labels_LD)
