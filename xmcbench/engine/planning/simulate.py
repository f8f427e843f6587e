"""A trial on paper: the method's own sampler draws batches, what each would cost is added up, nothing is embedded.

Samplers look at stand-in vectors of few dimensions. What they and losses score is linear in the dimensions of vectors,
so that operations counted over a few are those over many, scaled.

Legend: N training queries, L labels, B queries of a batch, S labels of its pool, D dimensions of what is scored, K of a
shortlist.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from xmcbench.engine import flops
from xmcbench.engine.embedding_method import EmbeddingMethod
from xmcbench.engine.losses import Positives
from xmcbench.engine.planning.encoder import EncoderCosts
from xmcbench.engine.planning.probe import Probe
from xmcbench.engine.planning.workload import Workload
from xmcbench.engine.sampling.batch import Batch
from xmcbench.engine.sampling.embeddings import Embeddings
from xmcbench.engine.sampling.sampler import Sampler
from xmcbench.errors import XMCBenchError
from xmcbench.trial.budget import Budget, Ledger
from xmcbench.trial.run import derive_seed

EXACT_PAIRS = 2e8  # of queries and labels: up to so many neighbours are searched, beyond they are drawn at random
DRAWN = 16  # random neighbours of a query
BATCHES, OF_MANY = 24, 4  # of an epoch that are drawn; the others cost what these do on average
SETTLED = 2  # looks of a large sampler after which batches are taken to cost what they did


class PaperEmbeddings(Embeddings):
    """Stand-in vectors, and neighbours among them; counts what a search of the real ones would take."""

    def nearest(self, k: int, exclude: sp.csr_array) -> np.ndarray:
        queries_ND, labels_LD = self.queries(), self.labels()
        if len(queries_ND) * len(labels_LD) <= EXACT_PAIRS:
            return super().nearest(k, exclude)
        flops.current().flops += 2 * len(queries_ND) * labels_LD.numel()
        return np.random.default_rng(0).integers(0, len(labels_LD), (len(queries_ND), min(k, DRAWN)), dtype=np.int32)


@dataclass(frozen=True)
class StepCosts:
    """What one step takes."""

    queries: int
    labels: int
    tokens: int
    encoder_flops: float
    scoring_flops: float
    lengths: np.ndarray = field(repr=False)  # of all its texts


@dataclass
class Paper:
    """What a trial would spend, and the largest of its steps."""

    ledger: Ledger
    largest: StepCosts


class Simulation:
    """One method on one workload."""

    def __init__(self, method: EmbeddingMethod, work: Workload, encoder: EncoderCosts, probe: Probe, seed: int) -> None:
        self.method, self.work, self.encoder, self.probe = method, work, encoder, probe
        self.sampler: Sampler = method.sampler(work.train, derive_seed(seed, "sampler"))
        self.large = work.share < 1
        self.scale = probe.mining_dimension / work.labels_LD.shape[1]

    def run(self, budget: Budget, seconds_of: Callable[[float], float]) -> Paper:
        """Spend the budget on paper; `seconds_of` operations."""
        ledger, epoch, looks = Ledger(), 0, 0
        self._begin(ledger)
        steps: list[StepCosts] = []
        largest: StepCosts | None = None
        while ledger.fraction(budget) < 1:
            looked = self._refresh(ledger, epoch)
            looks += looked
            if not steps or ((looked or self.sampler.adds) and (not self.large or looks <= SETTLED)):
                steps = self._steps(epoch)
                largest = max([*steps, *([largest] if largest else [])], key=lambda step: step.tokens)
            self._take(ledger, budget, steps, epoch, seconds_of)
            self._show_everything()
            epoch += 1
        assert largest is not None
        return Paper(ledger, largest)

    def _begin(self, ledger: Ledger) -> None:
        """What a method looks at before its first step, as it was seen to do on a few texts."""
        self._charge(ledger, self.work.query_lengths_N, self.probe.asks_queries / self.work.share)
        self._charge(ledger, self.work.label_lengths_L, self.probe.asks_labels)

    def _charge(self, ledger: Ledger, lengths_N: np.ndarray, times: float) -> None:
        """Embed texts of these lengths, without a gradient."""
        ledger.encoder_tokens += round(times * float(lengths_N.sum()))
        ledger.encoder_flops += round(times * self.encoder.flops(lengths_N))

    def _refresh(self, ledger: Ledger, epoch: int) -> bool:
        """Let the sampler look, at what it costs; whether it did."""
        asked: list[float] = []

        def charged(vectors: Tensor, lengths_N: np.ndarray, times: float) -> Callable[[], Tensor]:
            def ask() -> Tensor:
                self._charge(ledger, lengths_N, times)
                asked.append(times)
                return vectors

            return ask

        work = self.work
        embeddings = PaperEmbeddings(
            charged(work.queries_ND, work.query_lengths_N, 1 / work.share),
            charged(work.labels_LD, work.label_lengths_L, float(self.method.encodes_labels)),
        )
        with flops.counting() as scored, torch.no_grad():
            self.sampler.refresh(epoch, embeddings)
        ledger.scoring_flops += int(scored.flops * self.scale / work.share)
        return bool(asked) or scored.flops > 0

    def _steps(self, epoch: int) -> list[StepCosts]:
        """The steps of an epoch, or some of them; the last one, which may be smaller, among them."""
        count = self.sampler.num_batches(epoch)
        most = 2 if self.sampler.adds else OF_MANY if self.large else BATCHES
        places = np.unique(np.linspace(0, count - 1, min(count, most)).astype(int))
        return [self._step(self.sampler.batch(epoch, int(place))) for place in places]

    def _step(self, batch: Batch) -> StepCosts:
        looked = 0.0
        if self.sampler.adds:
            work = self.work
            with flops.counting() as scored, torch.no_grad():
                vectors = work.queries_ND[batch.query_ids], work.labels_LD[batch.label_ids]
                batch = replace(batch, label_ids=self.sampler.harder(batch, *vectors))
            looked = scored.flops * self.scale
        lengths = [self.work.query_lengths_N[batch.query_ids]]
        if self.method.encodes_labels:
            lengths.append(self.work.label_lengths_L[batch.label_ids])
        lengths_N = np.concatenate(lengths)
        pairs = len(batch.query_ids) * len(batch.label_ids)
        return StepCosts(
            queries=len(batch.query_ids),
            labels=len(batch.label_ids),
            tokens=int(lengths_N.sum()),
            encoder_flops=3 * self.encoder.flops(lengths_N),
            scoring_flops=self.probe.flops_a_pair * pairs + looked,
            lengths=lengths_N,
        )

    def _take(
        self, ledger: Ledger, budget: Budget, steps: list[StepCosts], epoch: int, seconds_of: Callable[[float], float]
    ) -> None:
        """As many steps of an epoch as the budget has room for."""
        count = round(self.sampler.num_batches(epoch) / self.work.share)
        weights = np.full(len(steps), (count - 1) / max(1, len(steps) - 1)) if len(steps) > 1 else np.full(1, count)
        if len(steps) > 1:
            weights[-1] = 1.0
        total = float(weights.sum())

        def mean(values: list[float]) -> float:
            return float(np.dot(weights, values)) / total

        each = {
            "queries": mean([step.queries for step in steps]),
            "pool_labels": mean([step.labels for step in steps]),
            "encoder_tokens": mean([step.tokens for step in steps]),
            "encoder_flops": mean([step.encoder_flops for step in steps]),
            "scoring_flops": mean([step.scoring_flops for step in steps]),
        }
        operations = each["encoder_flops"] + each["scoring_flops"]
        progress = {
            "steps": 1.0, "epochs": 1 / count, "encoder_tokens": each["encoder_tokens"], "flops": operations,
            "device_seconds": seconds_of(operations),
        }  # fmt: skip
        room = [
            (limit - ledger.spent(name)) / progress[name]
            for name, limit in budget.spending().items()
            if progress.get(name)
        ]
        if not room:
            raise XMCBenchError(f"it stops at {', '.join(budget.spending())}, which a plan knows nothing of")
        taken = min(count, max(1, int(np.ceil(min(room) - 1e-9))))
        ledger.steps += taken
        ledger.epochs = epoch + taken / count
        for name, cost in each.items():
            setattr(ledger, name, getattr(ledger, name) + round(cost * taken))
        seconds = ledger.stage_seconds
        seconds["train"] = seconds.get("train", 0.0) + seconds_of(operations * taken)
        ledger.largest_step = {name: progress[name] for name in budget.spending() if name in progress}

    def _show_everything(self) -> None:
        """Parts that watch have seen every query by the end of an epoch."""
        if not self.sampler.watches:
            return
        work = self.work
        none = torch.empty(0, dtype=torch.int64)
        positives = Positives(none, none, none, 0)
        everything = Batch(np.arange(len(work.queries_ND)), np.arange(len(work.labels_LD)), positives)
        self.sampler.observe(everything, work.queries_ND, work.labels_LD)
