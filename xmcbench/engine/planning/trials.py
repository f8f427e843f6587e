"""A plan of trials: what each will cost on a named device, and whether it fits into the device's memory.

A prediction is for the trial exactly as configured: nothing is made smaller to fit.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from shutil import disk_usage

import numpy as np
import torch

from xmcbench.data import TrainingData, find_source, load
from xmcbench.data.lengths import tokens_of
from xmcbench.data.source import Draft
from xmcbench.engine.charging import TRAINING_PASSES, Charging
from xmcbench.engine.device import computing_on, default_device, usable_memory
from xmcbench.engine.embedding_method import EmbeddingMethod
from xmcbench.engine.encoders.settings import Precision
from xmcbench.engine.encoders.tokenizer import TextTokenizer
from xmcbench.engine.encoders.transformer import TransformerEncoder
from xmcbench.engine.passes import Pace
from xmcbench.engine.planning.dry_run import DryRun
from xmcbench.engine.planning.gpu_facts import SIZE, gpu_facts
from xmcbench.engine.planning.memory import FLOAT, EncoderCosts, Memory, costs, memory, tokenizer_of
from xmcbench.engine.planning.probe import LABELS_PER_QUERY, LARGE, SAMPLE, Probe, Workload, observe
from xmcbench.engine.training.checkpoints import NUM_STORED
from xmcbench.engine.training.steps import kept_bytes
from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.trial.budget import Ledger, PassTooLargeError
from xmcbench.trial.method import build_method
from xmcbench.trial.run import held_out_rows
from xmcbench.trial.trial import Trial

GB = 1e9
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Machine:
    """Devices that trials run on: peak operations per second by precision (None: measured), and bytes of memory."""

    name: str
    bf16: float | None
    float32: float | None
    memory: float
    source: str
    kind: str = "cuda"  # or cpu
    utilisation: float = 0.3  # assumed fraction of peak throughput

    def seconds(self, flops: float, precision: Precision, workers: int) -> float:
        """Seconds of this many operations at a precision, divided among the workers."""
        peak = self.float32 if precision == "float32" else self.bf16
        return flops / ((peak or measured_peak(precision, self.kind)) * self.utilisation * workers)

    def device_seconds(self, flops: float, precision: Precision, workers: int) -> float:
        """The same in device seconds of a worker, which on a CPU are those of all its threads."""
        return self.seconds(flops, precision, workers) * (torch.get_num_threads() if self.kind == "cpu" else 1)


# From the manufacturers' data sheets. The bf16 peaks are of dense matrix products that accumulate in float32; V100 and
# T4 have no bf16, their peaks are of float16. The float32 peaks are without TF32.
_ALL = (
    Machine("v100-32gb", 125e12, 15.7e12, 32 * GB, "NVIDIA V100 data sheet, SXM2 (float16)"),
    Machine("t4", 65e12, 8.1e12, 16 * GB, "NVIDIA T4 data sheet (float16)"),
    Machine("a10", 125e12, 31.2e12, 24 * GB, "NVIDIA A10 data sheet"),
    Machine("a6000", 154.8e12, 38.7e12, 48 * GB, "NVIDIA RTX A6000 data sheet"),
    Machine("a100-40gb", 312e12, 19.5e12, 40 * GB, "NVIDIA A100 data sheet"),
    Machine("a100-80gb", 312e12, 19.5e12, 80 * GB, "NVIDIA A100 data sheet"),
    Machine("l4", 121e12, 30.3e12, 24 * GB, "NVIDIA L4 data sheet"),
    Machine("h100", 989.4e12, 67e12, 80 * GB, "NVIDIA H100 data sheet, SXM"),
    Machine("h200", 989.4e12, 67e12, 141 * GB, "NVIDIA H200 data sheet, SXM"),
)
MACHINES = {machine.name: machine for machine in _ALL}
HERE = "here"


def machine_called(name: str) -> Machine:
    """Machines of a device; `here` is this one, its peak measured. Raises `UnknownNameError` for another name."""
    if name == HERE:
        kind = default_device().type
        gpu = kind == "cuda"
        memory = gpu_facts(kind)["memory"] if gpu else usable_memory()
        return Machine(HERE, None, None, float(memory), f"measured in {'seconds' if gpu else 'CPU time'}", kind)
    if name not in MACHINES:
        raise UnknownNameError("accelerator", name, [*MACHINES, HERE], "--accelerator")
    return MACHINES[name]


@cache
def measured_peak(precision: str, device: str = "cpu", size: int | None = None) -> float:
    """Operations per second of the fastest of several products of two square matrices, in `bf16` or `float32`.

    On a CPU: of one thread in its own CPU time, times the threads of a trial, so that other work does not count. On a
    GPU: of larger matrices, in another process.
    """
    if device != "cpu":
        return gpu_facts(device, size or SIZE)[precision]
    size, threads, fastest = size or 1024, torch.get_num_threads(), 0.0
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    left, right = (torch.randn(size, size).to(dtype) for _ in range(2))
    torch.set_num_threads(1)
    for _ in range(8):
        start = time.thread_time()
        torch.mm(left, right)
        fastest = max(fastest, 2 * size**3 / (time.thread_time() - start))
    torch.set_num_threads(threads)
    return threads * fastest


CHECKPOINTS = NUM_STORED + 1  # on disk at once: those that are kept, and the one that is being written
MARGIN = 0.15  # the largest error of a prediction of memory


@dataclass(frozen=True)
class TrialPlan:
    """The predicted costs of a trial. Bytes and seconds are per worker, what `ledger` counts is over all workers."""

    trial: Trial
    device: str
    workers: int
    ledger: Ledger
    seconds: float  # with the second forward passes, which the ledger does not count
    memory: Memory
    network: float  # bytes that a worker sends per step
    parameters: int  # of the encoder and the method's modules that are trained, without rows per label
    measured: bool  # whether the dataset is on disk
    labels: int
    disk: float  # bytes of the model and of the checkpoints that are there at once
    notes: tuple[str, ...] = ()

    @property
    def device_hours(self) -> float:
        return self.workers * self.seconds / 3600

    @property
    def pool(self) -> float:
        """Labels that a step's queries are scored against, mean over steps."""
        return self.ledger.pool_labels / max(1, self.ledger.steps)


class UnplannedError(XMCBenchError):
    """A plan met what it did not expect: a trial that it should have planned is not checked."""


@dataclass
class Planner:
    """Plans trials. Datasets, encoders and probes are cached, since many trials of a suite have the same."""

    data: Path
    cache: Path
    machine: Machine
    query_tokens: int | None = None  # of a dataset that is not on disk; None: what its card implies
    label_tokens: int | None = None
    _examined: dict[str, tuple[Workload, EncoderCosts, tuple[str, ...]]] = field(default_factory=dict, repr=False)
    _probes: dict[tuple[str, ...], Probe] = field(default_factory=dict, repr=False)

    @computing_on("cpu")
    def plan(self, trial: Trial, workers: int = 1) -> TrialPlan:
        """The plan of a trial, computed on the CPU, also beside a GPU.

        Raises XMCBenchError with the reason where nothing can be predicted of the trial.
        """
        whole = build_method(trial)
        method, budget = whole.encoder_training(trial.budget)
        if not isinstance(method, EmbeddingMethod):
            raise XMCBenchError("trains no encoder of its own")
        if method.not_planned:
            raise XMCBenchError(method.not_planned)
        machine, settings = self.machine, method.config
        # The clock of a dry run follows from the operations counted so far.
        ledger = Ledger(clock="wall", _clock=lambda: machine.device_seconds(ledger.flops, settings.precision, workers))
        try:
            work, encoder, notes, probe = self._look(trial, method)
            per_operation = machine.device_seconds(1.0, settings.precision, workers)
            pace = Pace(encoding=per_operation, scoring=per_operation, given=True)
            charging = Charging(ledger, encoder.flops, budget=budget, pace=pace)
            run = DryRun(method, work, probe, charging, budget, trial.seed).spend()
        except XMCBenchError:
            raise
        except Exception as problem:  # a method may need more than a sampler and a loss
            raise UnplannedError(f"cannot be planned: {type(problem).__name__}: {problem}") from problem
        limit = _limit(trial, machine)
        held = memory(run, encoder, workers, machine.kind, limit)
        # The texts whose activations are not kept pass the encoder twice.
        activations = encoder.kept_bytes(float(run.lengths_N.sum()), len(run.lengths_N)) / workers
        kept = kept_bytes(settings.activation_gib, limit - held.before_training)
        recomputed = max(0.0, 1 - kept / activations) if activations else 0.0
        operations = ledger.flops + recomputed * ledger.encoder_flops / TRAINING_PASSES
        seconds = machine.seconds(operations, settings.precision, workers)
        parameters = encoder.parameters + probe.module_parameters
        # By ring algorithms: the embeddings of queries are gathered; their gradients and those of all parameters are
        # summed. Messages of one number per query are left out.
        values = 3 * (len(run.largest.query_ids) * encoder.dimension) + 2 * parameters
        sent = (workers - 1) / workers * FLOAT * values
        if ledger.refused_pass:
            plural = "" if f"{ledger.epochs:.3g}" == "1" else "s"
            then = "continues without it" if method.skips_refreshes else f"ends after {ledger.epochs:.3g} epoch{plural}"
            notes = (*notes, f"{trial.label}: mining or clustering does not fit into the budget: training {then}")
        if whole is not method:
            first = f"the training of its encoder ({method.name}) is planned, the next stage is not"
            notes = (*notes, f"{trial.label}: {first}")
        labels = work.train.num_labels
        model = held.weights + FLOAT * labels * probe.scored_dimension
        disk = model + CHECKPOINTS * (held.weights + held.optimizer + workers * held.tables)
        sizes = parameters, work.measured, labels, disk
        return TrialPlan(trial, machine.name, workers, ledger, seconds, held, sent, *sizes, notes)

    def _look(self, trial: Trial, method: EmbeddingMethod) -> tuple[Workload, EncoderCosts, tuple[str, ...], Probe]:
        """The dataset and the encoder of a trial, notes on what was assumed of them, and what its method does."""
        settings, own_data = method.config, type(method).training_data is not EmbeddingMethod.training_data
        own_encoder = method.has_network or type(method).build_pooling is not EmbeddingMethod.build_pooling
        used = {"encoder", "precision", "max_query_length", "max_label_length"}
        parts = {
            "dataset": trial.dataset,
            "held out": trial.selection and (trial.seed, trial.selection.model_dump()),
            "settings": settings.model_dump(mode="json", include=None if own_data or own_encoder else used),
            "method": method.name if own_encoder else "",
        }
        key = json.dumps(parts, sort_keys=True, default=str)
        if key not in self._examined:
            self._examined[key] = self._examine(trial, method)
        work, encoder, notes = self._examined[key]
        # A probe has a batch of its own.
        probed = key, method.name, settings.model_dump_json(exclude={"batch_size"})
        if probed not in self._probes:
            self._probes[probed] = observe(method, work, encoder.dimension)
        return work, encoder, notes, self._probes[probed]

    def _examine(self, trial: Trial, method: EmbeddingMethod) -> tuple[Workload, EncoderCosts, tuple[str, ...]]:
        """The dataset and the encoder of a trial, and notes on what was assumed of them."""
        settings, notes = method.config, []
        vocabulary = None
        source = find_source(trial.dataset, self.data)
        if source.missing(self.data):
            work = self._assumed(source.draft, settings)
            tokens = f"{work.query_lengths_N[0]} and {work.label_lengths_L[0]} tokens"
            notes.append(f"{trial.dataset} is not here: queries and labels of {tokens} are assumed")
        else:
            dataset = load(trial.dataset, self.data, self.cache)
            train, selection = dataset.training_data(), trial.selection
            if selection and selection.queries < len(train.texts):
                train = train.most_rows(held_out_rows(selection, trial.seed, len(train.texts))[1])
            train = method.training_data(train)
            tokenizer, warning = tokenizer_of(settings.encoder, train.texts, self.cache)
            work = self._measured(train, tokenizer, settings, len(dataset.test.texts))
            notes += [warning] if warning else []
            vocabulary = len(tokenizer.tokenizer)
        if trial.selection:
            work = replace(work, num_held_out=min(trial.selection.queries, work.num_queries))
        width = int(np.median(np.concatenate([work.query_lengths_N, work.label_lengths_L])))
        encoder = costs(settings.encoder, settings.precision, width, vocabulary, method)
        if settings.encoder.lora is not None:
            frozen = f"{encoder.frozen_bytes / 1e9:.3g} GB of weights are frozen"
            notes.append(f"{trial.label}: {encoder.parameters:,} parameters of the encoder are trained, {frozen}")
        return work, encoder, tuple(notes)

    def _assumed(self, draft: Draft, settings: EmbeddingMethod.Config) -> Workload:
        """The workload of a dataset of which only the card is here."""
        sizes = (draft.num_train, draft.num_test, draft.num_labels)
        if None in sizes:
            raise XMCBenchError(f"{draft.name} is not on disk, and its card does not say its sizes")
        longest = settings.max_query_length or draft.max_length
        longest_label = settings.max_label_length or draft.max_label_length
        return Workload.assumed(
            draft.card(*sizes, where="card"),  # type: ignore[arg-type]
            min(longest, self.query_tokens or tokens_of(draft.query_words, longest)),
            min(longest_label, self.label_tokens or tokens_of(draft.label_words, longest_label)),
            round(draft.labels_per_query or LABELS_PER_QUERY),
        )

    def _measured(
        self, train: TrainingData, tokenizer: TextTokenizer, settings: EmbeddingMethod.Config, num_test: int
    ) -> Workload:
        """The workload of training data; a sample of the queries represents a large dataset."""
        query_length = settings.max_query_length or train.card.max_length
        label_length = settings.max_label_length or train.card.max_label_length
        total = len(train.texts)
        if total > LARGE:
            train = train.rows(np.sort(np.random.default_rng(0).permutation(total)[:SAMPLE]))
        prompts = TransformerEncoder.prompts_of(settings.encoder)
        queries = tokenizer.after(prompts.get("query", "")).tokens(train.texts, query_length, self.cache)
        labels = tokenizer.after(prompts.get("document", "")).tokens(train.label_texts, label_length, self.cache)
        return Workload.of(train, queries, labels, num_test, total, measured=True)


def _limit(trial: Trial, machine: Machine) -> float:
    """The bytes that a worker may take: the device's memory, or the budget's limit if that is less."""
    return min(machine.memory, trial.budget.peak_bytes or machine.memory)


def too_large(plan: TrialPlan) -> str | None:
    """Why the trial will not fit its budget's memory, or None if it will, or where only running it can tell."""
    limit, needed = plan.trial.budget.peak_bytes, plan.memory.total
    if limit is None or needed <= limit * (1 + MARGIN):
        return None
    return f"a worker is predicted to take {needed / 1e9:.2f} GB of memory, the budget allows {limit / 1e9:.2f} GB"


def _sharing(plan: TrialPlan, machine: Machine) -> int:
    """How many workers share the machine's memory: all of them on a CPU."""
    return plan.workers if machine.kind == "cpu" else 1


def labels_that_fit(plan: TrialPlan, machine: Machine) -> int | None:
    """About how many labels the machine's memory is enough for, in two digits; None if it is enough for all."""
    memory, workers = plan.memory, _sharing(plan, machine)
    needed = workers * memory.total
    if needed <= machine.memory:
        return None
    # What does not grow with the labels; the rest nearly all does.
    fixed = workers * (memory.process + memory.weights + memory.optimizer + memory.activations + memory.backward)
    fit = max(0, int(plan.labels * (machine.memory - fixed) / (needed - fixed)))
    return int(float(f"{fit:.2g}"))


def too_much(plan: TrialPlan, machine: Machine, free_disk: float | None = None) -> str | None:
    """Why the machine cannot hold the trial in memory or on disk, and how many labels it could; None if it can.

    `free_disk` is in bytes.
    """
    if (fit := labels_that_fit(plan, machine)) is not None:
        name = "this machine" if machine.name == HERE else machine.name
        room = f"{name} has {machine.memory / GB:.3g} GB, enough for about {fit:,}"
        needed = plan.memory.total * _sharing(plan, machine)
        return f"needs about {needed / GB:.3g} GB of memory, and {room} of the {plan.labels:,} labels"
    if free_disk is not None and plan.disk > free_disk:
        return f"needs about {plan.disk / GB:.3g} GB of disk, and the store has {free_disk / GB:.3g} GB"
    return None


def too_long(plan: TrialPlan, timeout: float) -> str | None:
    """Why the trial will not end within `timeout` seconds, or None if it will."""
    if plan.seconds <= timeout:
        return None
    predicted = f"is predicted to take {plan.seconds / 3600:.4g} hours on {plan.workers} x {plan.device}, idle"
    ends = f"the suite's timeout ends it after {timeout / 3600:.4g}"
    return f"{plan.trial.dataset}/{plan.trial.label} {predicted}, {ends}"


def too_much_here(plan: TrialPlan, store: Path) -> str | None:
    """Why this machine cannot hold the trial in memory, or the disk of `store` its files; None if they can."""
    there = next(folder for folder in (store, *store.parents) if folder.is_dir())
    return too_much(plan, machine_called(HERE), disk_usage(there).free)


def plan_here(trial: Trial, data: Path, cache_dir: Path, workers: int) -> TrialPlan | None:
    """The plan of a trial on this machine; None if it cannot be planned.

    Raises PassTooLargeError where its budget is spent before the first step.
    """
    try:
        return _planner_here(data, cache_dir).plan(trial, workers)
    except PassTooLargeError:
        raise
    except XMCBenchError as reason:  # its memory and its time are measured while it runs
        if isinstance(reason, UnplannedError):
            _log.warning("warning: %s: memory and time are not checked before it runs: it %s", trial.label, reason)
        return None


@cache
def _planner_here(data: Path, cache_dir: Path) -> Planner:
    return Planner(data, cache_dir, machine_called(HERE))


def fits(plan: TrialPlan, machine: Machine) -> str:
    """`yes`, `close` where the prediction is within its error of the memory there is, or `no`."""
    limit = min(_limit(plan.trial, machine), machine.memory / _sharing(plan, machine))
    needed = plan.memory.total
    return "no" if needed > limit else "close" if needed * (1 + MARGIN) > limit else "yes"
