"""A dry run: the epochs of a training, of which only the costs are counted.

Budget, ledger and charging are those of a real training. The method's own sampler draws the batches, but of stand-in
vectors with few dimensions, and of only some batches of an epoch: the others cost what these do on average. What
samplers and losses compute is linear in the dimensions of the vectors, so the operations counted here are scaled.

Legend: N training queries, L labels, B queries of a batch, S labels of its pool.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from xmcbench.engine import flops
from xmcbench.engine.charging import Charging, Cost, batch_lengths
from xmcbench.engine.embedding_method import EmbeddingMethod
from xmcbench.engine.losses import Positives
from xmcbench.engine.planning.probe import Probe, Workload, true_labels
from xmcbench.engine.sampling.batch import Batch
from xmcbench.engine.sampling.embeddings import Embeddings
from xmcbench.engine.search.index import search_flops
from xmcbench.errors import XMCBenchError
from xmcbench.trial.budget import Budget
from xmcbench.trial.run import derive_seed

EXACT_PAIRS = 5e9  # of queries and labels: up to here neighbours are searched, beyond they are drawn at random
DRAWN = 16  # random neighbours per query
BATCHES, OF_LARGE, OF_ADDING = 24, 4, 2  # drawn per epoch: in general, of a large dataset, where the sampler adds
KNOWN_LIMITS = {"epochs", "steps", "encoder_tokens", "flops", "device_seconds"}


@dataclass(frozen=True)
class StandIns(Embeddings):
    """Stand-in vectors, and neighbours among them; counts what a search of the real vectors would take."""

    num_queries: int = 1  # of the dataset, of which those here may be a sample
    trained: bool = False
    found: dict[tuple[bool, int], np.ndarray] = field(default_factory=dict)  # neighbours searched before

    def nearest(self, k: int, exclude: sp.csr_array) -> np.ndarray:
        self.require(needs_queries=True, needs_labels=True)
        queries_ND, labels_LD = self.queries(), self.labels()
        of_search = search_flops if self.score is None else _of_every_pair
        operations = of_search(self.num_queries, *labels_LD.shape) * len(queries_ND) // self.num_queries
        self.require(needs_queries=False, needs_labels=False, scoring_flops=operations)
        flops.current().flops += operations
        if (self.trained, k) not in self.found:
            self.found[self.trained, k] = _neighbours(queries_ND, labels_LD, k, exclude)
        return self.found[self.trained, k]


def _of_every_pair(num_queries: int, num_labels: int, dimension: int) -> int:
    """The operations of an exact search, as `search_flops` has them for few pairs."""
    return 2 * num_queries * num_labels * dimension


def _neighbours(queries_ND: Tensor, labels_LD: Tensor, k: int, exclude: sp.csr_array) -> np.ndarray:
    """[N, k] the nearest labels of each query, or of too many pairs [N, min(k, DRAWN)] random ones."""
    if len(queries_ND) * len(labels_LD) > EXACT_PAIRS:
        return np.random.default_rng(0).integers(0, len(labels_LD), (len(queries_ND), min(k, DRAWN)), dtype=np.int32)
    with flops.counting():  # a search of the real vectors is counted in place of this one
        return Embeddings(lambda: queries_ND, lambda: labels_LD).nearest(k, exclude)


@dataclass
class DryRun:
    """Spends `budget` on paper: `charging` enters the costs."""

    method: EmbeddingMethod
    work: Workload
    probe: Probe
    charging: Charging
    budget: Budget
    seed: int

    def __post_init__(self) -> None:
        self.ledger = self.charging.ledger
        self.sampler = self.method.training_sampler(self.work.train, derive_seed(self.seed, "sampler"))
        self.label_lengths_L = self.work.label_lengths_L if self.method.encodes_labels else None
        self.epoch = self.index = 0  # of the next step
        self.largest: Batch  # of the step that encodes the most tokens
        self.looks = False  # whether a refresh looked at embeddings
        self.found: dict[tuple[bool, int], np.ndarray] = {}  # the neighbours that refreshes searched
        self._scale = self.probe.pair_flops / (2 * self.work.labels_LD.shape[1])
        self._most_tokens = -1
        self._last: Cost = {}  # of an epoch: its last batch may be smaller
        self._mean: Cost = {}  # of the other batches

    def spend(self) -> DryRun:
        """Count epochs until the budget is spent. Raises XMCBenchError for a limit that no plan can reach."""
        work, charging = self.work, self.charging
        if not KNOWN_LIMITS & self.budget.spending().keys():
            raise XMCBenchError(f"it stops at {', '.join(self.budget.spending())}, which a plan cannot count")
        lengths = {"queries": work.all_query_lengths_N, "labels": work.label_lengths_L}
        for lengths_N in (lengths[texts] for texts in self.method.first_passes):
            charging.passes(lengths_N)
            charging.charge({"module_flops": round(len(lengths_N) * self.probe.begin_flops)})
        charging.scoring(self.probe.grouping_flops)
        if last := [lengths[texts] for texts in self.method.last_passes]:
            charging.require(*last)
            charging.reserve(*last)
            self.budget = charging.budget or self.budget
        while self._continues and charging.refreshed(self._refresh, self.method.skips_refreshes):
            self._take_epoch()
        if last:
            charging.release()
            charging.passes(*last)
        return self

    @property
    def lengths_N(self) -> np.ndarray:
        """The lengths of all texts that the largest step encodes."""
        return batch_lengths(self.largest, self.work.query_lengths_N, self.label_lengths_L)

    @property
    def _continues(self) -> bool:
        """Whether budget is left for a step. The first step is always taken."""
        return self.ledger.fraction(self.budget) < 1 or not self.ledger.steps

    def _take_epoch(self) -> None:
        """Take the steps of an epoch, or as many as the budget allows."""
        steps = round(self.sampler.num_batches(self.epoch) / self.work.share)
        while self.index < steps and self._continues:
            alike = steps - 1 - self.index  # the last one may be smaller
            before = {name: self.ledger.spent(name) for name in self.budget.spending()}
            with self.ledger.between_checks(self.budget):
                self._take(self._mean if alike else self._last, 1, steps)
            costs = {name: self.ledger.spent(name) - spent for name, spent in before.items()}
            # As many more as surely fit are charged at once.
            fits = [int(left / costs[name]) for name, left in self.ledger.left(self.budget).items() if costs[name] > 0]
            if (more := min(alike, *fits) - 1) > 0:
                self._take(self._mean, more, steps)
        self.epoch, self.index = self.epoch + 1, 0

    def _take(self, cost: Cost, count: int, of: int) -> None:
        """Charge `count` steps of this cost, in an epoch of `of` steps."""
        with self.ledger.stage("train"):
            self.charging.charge(cost, count)
            self.index += count
            self.ledger.epochs = self.epoch + self.index / of

    def _refresh(self) -> None:
        """Let the sampler look at the stand-in vectors before an epoch."""
        work, charging, before = self.work, self.charging, self.ledger.flops
        queries_ND, labels_LD = vectors = self._vectors()
        if self.epoch and self.sampler.observes:
            # By the end of an epoch parts that watch have seen every query and label.
            none = torch.empty(0, dtype=torch.int64)
            everything = np.arange(len(queries_ND)), np.arange(len(labels_LD)), Positives(none, none, 0, 0)
            self.sampler.observe(Batch(*everything), *vectors)
        label_lengths_L = work.label_lengths_L[:0] if self.label_lengths_L is None else work.label_lengths_L
        of_query, of_label = self.probe.vector_flops
        of_all = of_query * work.num_queries, of_label * len(labels_LD)

        def made(vectors: Tensor, own_flops: int) -> Tensor:
            charging.charge({"module_flops": own_flops})
            return vectors

        stand_ins = StandIns(
            charging.on_demand(lambda: made(queries_ND, of_all[0]), work.all_query_lengths_N, of_all[0]),
            charging.on_demand(lambda: made(labels_LD, of_all[1]), label_lengths_L, of_all[1]),
            require=charging.requirement(work.all_query_lengths_N, label_lengths_L, self._scale / work.share, of_all),
            train=work.train,
            spent=lambda: self.ledger.fraction(self.budget),
            score=self.method.own_score,
            num_queries=work.num_queries,
            trained=self.epoch > 0,
            found=self.found,
        )
        with self.ledger.stage("mine"), flops.counting() as scored, torch.no_grad():
            self.sampler.refresh(self.epoch, stand_ins)
            charging.scoring(int(scored.flops * self._scale / work.share))
        looked = self.ledger.flops > before
        self.looks = self.looks or looked
        if not self._last or looked or self.sampler.extends_pool:
            self._draw()

    def _vectors(self) -> tuple[Tensor, Tensor]:
        work = self.work
        return (work.trained_queries_ND, work.trained_labels_LD) if self.epoch else (work.queries_ND, work.labels_LD)

    def _draw(self) -> None:
        """Draw some batches of the epoch, and count what they cost."""
        count = self.sampler.num_batches(self.epoch)
        most = OF_ADDING if self.sampler.extends_pool else OF_LARGE if self.work.share < 1 else BATCHES
        places = np.unique(np.linspace(0, count - 1, min(count, most)).astype(int))
        *others, self._last = (self._cost(self.sampler.batch(self.epoch, int(index))) for index in places)
        others = others or [self._last]
        self._mean = {name: round(np.mean([cost[name] for cost in others])) for name in self._last}

    def _cost(self, batch: Batch) -> Cost:
        """The cost of a step on this batch, with the labels that the sampler would add to its pool."""
        work, looked = self.work, 0.0
        if self.sampler.extends_pool:
            with flops.counting() as scored, torch.no_grad():
                queries_ND, labels_LD = self._vectors()
                vectors = queries_ND[batch.query_ids], labels_LD[batch.label_ids]
                batch = replace(batch, label_ids=self.sampler.extend_pool(batch, *vectors))
            looked = scored.flops * self._scale
        per_query = len(batch.label_ids) * self.probe.flops_per_pair
        if self.probe.true_label_flops:
            per_query += true_labels(work.train, batch) * self.probe.true_label_flops
        sizes = len(batch.query_ids), len(batch.label_ids)
        per_query += sizes[0] * self.probe.query_pair_flops * (sizes[1] + self.probe.scored_dimension)
        module_flops = self.probe.module_flops(*sizes)
        if self.sampler.extends_pool or self.sampler.observes:
            module_flops += sum(count * of_text for count, of_text in zip(sizes, self.probe.vector_flops, strict=True))
        counted = flops.Count(round(sizes[0] * per_query + looked), round(module_flops))
        cost = self.charging.step_cost(batch, work.query_lengths_N, self.label_lengths_L, counted)
        if cost["encoder_tokens"] > self._most_tokens:
            self.largest, self._most_tokens = batch, cost["encoder_tokens"]
        return cost
