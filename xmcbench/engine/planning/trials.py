"""A plan of trials: what each will take on a named device, and whether it fits.

A prediction is that of one trial as it stands: nothing is made smaller to fit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from xmcbench.data import TrainingData, find_source, load
from xmcbench.data.source import Draft
from xmcbench.engine.embedding_method import EmbeddingMethod
from xmcbench.engine.encoders.tokenizer import TextTokenizer
from xmcbench.engine.planning.accelerators import UTILISATION, Accelerator
from xmcbench.engine.planning.encoder import EncoderCosts, costs, tokenizer_of
from xmcbench.engine.planning.memory import FLOAT, Memory, here, memory
from xmcbench.engine.planning.probe import Probe, look_at
from xmcbench.engine.planning.simulate import Paper, Simulation
from xmcbench.engine.planning.workload import LARGE, Lengths, Workload
from xmcbench.errors import XMCBenchError
from xmcbench.trial.build import build_method
from xmcbench.trial.run import held_out_rows
from xmcbench.trial.trial import Trial

MARGIN = 0.15  # how far a prediction of memory may be off


@dataclass(frozen=True)
class Machine:
    """What trials are to run on."""

    accelerator: Accelerator
    workers: int = 1
    utilisation: float = UTILISATION
    kind: str = field(default_factory=here)  # of device: cpu or cuda


@dataclass(frozen=True)
class TrialPlan:
    """What a trial will take. Bytes and seconds are a worker's; operations are of all workers."""

    trial: Trial
    workers: int
    steps: int
    epochs: float
    encoder_tokens: int
    flops: float  # as the ledger counts them
    seconds: float
    memory: Memory
    network: float  # bytes that a worker sends a step
    pool: float
    measured: bool  # whether the dataset was there to be looked at
    notes: tuple[str, ...] = ()

    @property
    def device_hours(self) -> float:
        return self.workers * self.seconds / 3600


class Planner:
    """Plans trials; an encoder on a dataset is looked at once."""

    def __init__(self, data: Path, cache: Path, lengths: Lengths, machine: Machine) -> None:
        self.data, self.cache, self.lengths, self.machine = data, cache, lengths, machine
        self._known: dict[tuple[str, ...], tuple[Workload, EncoderCosts, tuple[str, ...]]] = {}

    def plan(self, trial: Trial) -> TrialPlan:
        """Raises XMCBenchError where nothing can be said of the trial, and why."""
        method = build_method(trial)
        if not isinstance(method, EmbeddingMethod):
            raise XMCBenchError("trains no encoder of its own: no plan is made of it")
        work, encoder, notes = self._workload(trial, method)
        try:
            probe = look_at(method, work, encoder.dimension)
            simulation = Simulation(method, work, encoder, probe, trial.seed)
            paper = simulation.run(trial.budget, lambda flops: self._seconds(flops, method))
        except XMCBenchError:
            raise
        except Exception as problem:  # of a method that wants more than a sampler and a loss
            raise XMCBenchError(f"cannot be planned: {type(problem).__name__}: {problem}") from problem
        machine, ledger = self.machine, paper.ledger
        method.config = _on(method.config, machine.kind)
        held = memory(method, work, encoder, probe, paper, simulation.sampler, machine.workers, machine.kind)
        again = self._second_pass(method, encoder, paper)
        return TrialPlan(
            trial=trial,
            workers=machine.workers,
            steps=ledger.steps,
            epochs=ledger.epochs,
            encoder_tokens=ledger.encoder_tokens,
            flops=ledger.flops,
            seconds=self._seconds(ledger.flops + again * ledger.encoder_flops / 3, method),
            memory=held,
            network=_network(encoder, probe, paper, machine.workers),
            pool=ledger.pool_labels / max(1, ledger.steps),
            measured=work.measured,
            notes=notes,
        )

    def _seconds(self, flops: float, method: EmbeddingMethod) -> float:
        machine = self.machine
        return flops / (machine.accelerator.peak(method.config.precision) * machine.utilisation * machine.workers)

    def _second_pass(self, method: EmbeddingMethod, encoder: EncoderCosts, paper: Paper) -> float:
        """The share of a step's tokens whose activations are not kept: they go through the encoder twice."""
        total = float(paper.largest.lengths.sum()) * encoder.bytes_a_token / self.machine.workers
        return max(0.0, 1 - method.config.activation_gib * 2**30 / total) if total else 0.0

    def _workload(self, trial: Trial, method: EmbeddingMethod) -> tuple[Workload, EncoderCosts, tuple[str, ...]]:
        """The dataset and the encoder of a trial, and what is to be known of how they were found."""
        settings = method.config
        key = (
            trial.dataset,
            str(trial.seed if trial.selection else ""),
            trial.selection.model_dump_json() if trial.selection else "",
            settings.encoder.model_dump_json(),
            settings.precision,
            str((settings.max_query_length, settings.max_label_length)),
            str(type(method).training_data is not EmbeddingMethod.training_data and settings.model_dump_json()),
        )
        if key not in self._known:
            self._known[key] = self._look(trial, method)
        return self._known[key]

    def _look(self, trial: Trial, method: EmbeddingMethod) -> tuple[Workload, EncoderCosts, tuple[str, ...]]:
        settings, notes = method.config, []
        vocabulary: dict[str, int] = {}
        source = find_source(trial.dataset, self.data)
        if source.missing(self.data):
            work = self._assumed(source.draft)
            tokens = f"{work.query_lengths_N[0]} and {work.label_lengths_L[0]} tokens"
            notes.append(f"{trial.dataset} is not here: queries and labels of {tokens} are assumed")
        else:
            dataset = load(trial.dataset, self.data, self.cache)
            train = method.training_data(_kept_rows(dataset.training_data(), trial))
            tokenizer, told = tokenizer_of(settings.encoder, train.texts, self.cache)
            work = self._measured(train, tokenizer, settings, len(dataset.test.texts))
            notes += [told] if told else []
            vocabulary = {"vocabulary": len(tokenizer.tokenizer)} if settings.encoder.name == "tiny" else {}
        width = int(np.median(np.concatenate([work.query_lengths_N, work.label_lengths_L])))
        return work, costs(settings.encoder, settings.precision, width, **vocabulary), tuple(notes)

    def _assumed(self, draft: Draft) -> Workload:
        """That of a dataset of which no more is known than its card."""
        sizes = (draft.num_train, draft.num_test, draft.num_labels)
        if None in sizes:
            raise XMCBenchError(f"{draft.name} is not on disk, and its card does not say its sizes")
        return Workload.assumed(draft.card(*sizes, where="card"), self.lengths)  # type: ignore[arg-type]

    def _measured(
        self, train: TrainingData, tokenizer: TextTokenizer, settings: EmbeddingMethod.Config, num_test: int
    ) -> Workload:
        """That of training data, of which a share is looked at where there is much of it."""
        most_of_query = settings.max_query_length or train.card.max_length
        most_of_label = settings.max_label_length or train.card.max_label_length
        total = len(train.texts)
        if total > LARGE:
            train = train.rows(np.sort(np.random.default_rng(0).permutation(total)[:LARGE]))
        queries = tokenizer.tokens(train.texts, most_of_query, self.cache)
        labels = tokenizer.tokens(train.label_texts, most_of_label, self.cache)
        return Workload.of(train, queries, labels, num_test, len(train.texts) / total)


def _kept_rows(train: TrainingData, trial: Trial) -> TrainingData:
    """The training data without as many queries as the trial sets aside."""
    if trial.selection is None or trial.selection.queries >= len(train.texts):
        return train
    return train.rows(held_out_rows(trial.selection, trial.seed, len(train.texts))[1])


def _on(config: EmbeddingMethod.Config, kind: str) -> EmbeddingMethod.Config:
    """The settings with the micro-batches that they stand for on such a device, whatever is here."""
    return config.model_copy(update={"micro_batch_tokens": config.micro_batch_on(kind)})


def _network(encoder: EncoderCosts, probe: Probe, paper: Paper, workers: int) -> float:
    """Bytes that a worker sends in the largest step, by ring algorithms: queries gathered, their gradients and those of
    all parameters summed.

    Messages of a number a query are left out.
    """
    queries = paper.largest.queries * encoder.dimension * FLOAT
    gradients = (encoder.parameters + probe.module_parameters) * FLOAT
    share = (workers - 1) / workers
    return share * queries + 2 * share * queries + 2 * share * gradients


def too_large(plan: TrialPlan) -> str | None:
    """Why the trial will not fit its budget's memory, or None where it will, or where only running it can tell."""
    limit, needed = plan.trial.budget.peak_bytes, plan.memory.total
    if limit is None or needed <= limit * (1 + MARGIN):
        return None
    return f"a worker is predicted to take {needed / 1e9:.2f} GB of memory, the budget allows {limit / 1e9:.2f} GB"


def fits(plan: TrialPlan, accelerator: Accelerator) -> str:
    """`yes`, `close` where the prediction is within its error of the memory there is, or `no`."""
    limit = min(accelerator.memory, plan.trial.budget.peak_bytes or accelerator.memory)
    needed = plan.memory.total
    return "no" if needed > limit else "close" if needed * (1 + MARGIN) > limit else "yes"
