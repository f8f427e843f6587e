"""The inputs (`Run`) and outputs (`TrainingLog`) of fitting a trial. Nothing here imports torch.

A `Judge` is a method's view of a teacher, which it asks about N document-label pairs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from xmcbench.data.dataset import Texts
from xmcbench.errors import XMCBenchError
from xmcbench.errors.secrets import SHORTEST, remember
from xmcbench.trial.budget import Budget, Ledger
from xmcbench.trial.embedder import Embedder
from xmcbench.trial.facts import Choice, Ended, worth
from xmcbench.trial.meter import part_begun
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.trial import Selection

YES, NO = 1, 0
UNPARSED = -1  # the teacher replied, but with neither yes nor no
UNASKED = -2  # the budget was spent before the pair's turn


def secret(name: str) -> str:
    """The value of the environment variable `name`, of which text is stripped from now on.

    Raises XMCBenchError where it is not set, or too short to be told from other text.
    """
    value = os.environ.get(name, "").strip()
    if len(value) < SHORTEST:
        problem = f"has {len(value)} characters, expected a secret of at least {SHORTEST}" if value else "is not set"
        raise XMCBenchError(f"the environment variable {name} {problem}; a method reads it with run.secret({name!r})")
    remember(value)
    return value


@dataclass(frozen=True)
class Judgements:
    """A teacher's answers about N pairs."""

    answers: np.ndarray  # int8 [N]: YES, NO, UNPARSED, or UNASKED
    confidence: np.ndarray  # float32 [N] in 0..1, how sure the teacher was of its answer

    @property
    def yes(self) -> np.ndarray:
        """bool [N]: the answer is yes."""
        return np.asarray(self.answers == YES)

    @property
    def no(self) -> np.ndarray:
        """bool [N]: the answer is no."""
        return np.asarray(self.answers == NO)

    @property
    def asked(self) -> np.ndarray:
        """bool [N]: there is an answer, possibly UNPARSED."""
        return np.asarray(self.answers != UNASKED)


class Judge(Protocol):
    """Asks one teacher about the training documents and labels of a trial. Leaving the `with` block closes it."""

    def __call__(self, document_ids: np.ndarray, label_ids: np.ndarray, /) -> Judgements:
        """Judge N pairs, given as ids [N] of documents and of labels, in the order in which the budget is spent.

        An answer that is in the store is not asked for again, but is charged like a new one. A trial is charged once
        for each distinct pair. Raises an XMCBenchError where the teacher does not answer.
        """

    def write(self, document_ids: np.ndarray, prompt: str, tokens: int) -> list[str | None]:
        """What the teacher writes about each of N documents to `prompt`, a template, in at most `tokens` tokens.

        It is kept and charged as judgements are, one call for each distinct document; None once the budget is spent.
        """

    def close(self) -> None:
        """Release the teacher and the store."""

    def __enter__(self) -> Judge: ...
    def __exit__(self, *problem: object) -> None: ...


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose, a pure function of the base seed: no generator state has to be stored."""
    digest = sha256(repr((seed, *purpose)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


@dataclass(frozen=True)
class Progress:
    """A report of a method while it fits: the stage, the finished fraction of it in 0..1, and metrics to show."""

    stage: str
    fraction: float
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics", MappingProxyType(dict(self.metrics)))


@dataclass(frozen=True)
class TrialProgress(Progress):
    """A method's progress as displays and trackers receive it: with the ledger and the new points of the curve."""

    spent: Mapping[str, Any] = field(default_factory=dict)
    evaluations: tuple[Mapping[str, float], ...] = ()


@dataclass
class TrainingLog:
    """The costs and the curve of fitting. The method fills it in; the harness copies it into the trial's record."""

    ledger: Ledger = field(default_factory=Ledger)
    curve: list[dict[str, float]] = field(default_factory=list)  # held-out metrics along the budget
    chosen_by: Choice = field(default_factory=Choice)  # what chose the weights, where held-out queries did not
    cut_queries: float = 0.0  # share of the training queries that are as long as a text may be
    alike_texts: float = 0.0  # share of the queries or labels that have the tokens of another text
    ended: Ended | None = None  # why training ended before its budget was spent
    # Share of the budget after which the chosen weights were evaluated, where the curve does not say it.
    chosen_at: float | None = None

    def add_point(self, fraction: float, metrics: Mapping[str, float]) -> None:
        """Add the metrics of an evaluation after `fraction` of the budget to the curve, with what was spent so far."""
        names = ("steps", "encoder_tokens", "flops", "device_seconds")
        spent = {name: self.ledger.spent(name) for name in names if name not in self.ledger.not_counted}
        self.curve.append({"fraction": fraction, **spent, **metrics})

    def state(self) -> dict[str, Any]:
        """The ledger and the curve for a checkpoint, as JSON types."""
        return {"ledger": self.ledger.state(), "curve": self.curve}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned; other keys are ignored."""
        self.curve[:] = state["curve"]
        for name, value in state["ledger"].items():
            setattr(self.ledger, name, value)


HELD_OUT_LABELS = 100  # predicted for a held-out query, where a dataset has as many


@dataclass(frozen=True)
class HeldOut:
    """Training queries that a suite sets aside to choose a checkpoint by. Their targets stay with the harness."""

    texts: Texts
    score: Callable[[Predictions], dict[str, float]]  # metrics of predictions for `texts`, by name
    metric: str = "nDCG@5"  # the metric to choose by
    evaluations: int = 4  # how many evaluations to spread over the budget
    patience: int | None = None  # evaluations without progress in the metric that end training; None: the budget does
    lower_is_better: tuple[str, ...] = ()  # evaluators whose lower values are better

    def evaluate(self, predict: Callable[[Texts, int], Predictions], num_labels: int) -> dict[str, float]:
        """The metrics of what `predict(texts, k)` answers, by name; `num_labels` are those of the dataset."""
        return self.score(predict(self.texts, min(HELD_OUT_LABELS, num_labels)))

    def worth(self, metrics: Mapping[str, float]) -> float:
        """How good these metrics are by the one to choose by: more is better, also where lower values of it are."""
        return worth(self.metric, metrics[self.metric], self.lower_is_better)


def held_out_rows(selection: Selection, seed: int, total: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of `total` training queries that a trial holds out, and the rows it trains on, both ascending."""
    order = np.random.default_rng(derive_seed(seed, "selection")).permutation(total)
    return np.sort(order[: selection.queries]), np.sort(order[selection.queries :])


class CheckpointExchange(Protocol):
    """Passes checkpoints between workers that share no folder, through storage that outlives them."""

    def upload(self) -> None:
        """Store the content of this worker's `Run.checkpoint`. All workers call this in the same step."""

    def download(self) -> None:
        """Bring what all workers uploaded last into this worker's `Run.checkpoint`."""


def _no_judge(config: Any) -> Judge:
    raise XMCBenchError(f"teacher {config.name!r} can be asked only within a trial")


@dataclass(frozen=True)
class Run:
    """The inputs of a method to fit one trial."""

    seed: int
    budget: Budget
    checkpoint: Path  # a folder that survives a kill: a resumed trial finds its files again
    cache: Path  # shared by all trials: tokenised texts, trained tokenizers
    log: TrainingLog = field(default_factory=TrainingLog)  # filled in by the method
    held_out: HeldOut | None = None  # None if the suite sets no queries aside
    report: Callable[[Progress], None] = lambda _progress: None
    exchange: CheckpointExchange | None = None  # None if all workers share the folder `checkpoint`
    checkpoint_seconds: float | None = None  # from one checkpoint to the next; None leaves it to the method
    # Makes the judge that asks a teacher, of which it gets the `Teacher.Config`, about training documents and labels.
    judge: Callable[[Any], Judge] = _no_judge
    secrets: tuple[str, ...] | None = None  # the variables that `secret` may read; None outside of a trial: any

    @property
    def ledger(self) -> Ledger:
        """The ledger of `log`, to which the method charges its tokens, operations and seconds."""
        return self.log.ledger

    def embedder(self, config: Any) -> Embedder:
        """Embeds texts by asking the model that `config`, a `teachers.TeacherConfig`, names, within this run's budget.

        It may be kept for `predict`; `xmcbench.Embedder(config)` is one for a loaded model.
        """
        return Embedder(config, self.budget)

    def secret(self, name: str) -> str:
        """The value of the environment variable `name`, as the key of a service. No record, log or message shows it.

        Raises XMCBenchError where it is not set, or the method's `MethodInfo(secrets=...)` does not name it.
        """
        if self.secrets is not None and name not in self.secrets:
            raise XMCBenchError(f"run.secret({name!r}): expected a name of MethodInfo(secrets=({name!r},))")
        return secret(name)

    def reserve(self, share: float) -> Run:
        """This run with `share` of its budget, for a first part of training; the rest stays for what follows.

        Both parts charge the same ledger.
        """
        return replace(
            self,
            budget=self.budget.times(share),
            report=lambda progress: self.report(replace(progress, fraction=share * progress.fraction)),
        )

    @contextmanager
    def part(self, name: str, budget: Budget, begun: float = 0.0, done: float = 1.0) -> Iterator[Run]:
        """A part of training with its own budget, log and checkpoints; its progress is `begun` to `done` of the whole.

        What it spends is added to this run's ledger at the end. No held-out queries choose its weights: the last stay.
        """
        part_begun()
        with self.ledger.part() as ledger:
            of_part = replace(
                self,
                budget=budget,
                checkpoint=self.checkpoint / name,
                log=TrainingLog(ledger),
                held_out=None,
                report=lambda step: self.report(replace(step, fraction=begun + (done - begun) * step.fraction)),
            )
            of_part.checkpoint.mkdir(parents=True, exist_ok=True)
            yield of_part

    def rest(self, epochs: float = math.inf) -> Budget | None:
        """A budget of what is left for training, of at most so many epochs; None if a limit of training is spent."""
        left = {name: rest for name, rest in self.ledger.left(self.budget).items() if not name.startswith("teacher")}
        if min(left.values(), default=1.0) <= 0:
            return None
        limits = left | ({"epochs": min(epochs, left.get("epochs", math.inf))} if epochs < math.inf else {})
        return Budget.model_validate({**limits, "peak_bytes": self.budget.peak_bytes})

    def rng(self, *purpose: str | int) -> np.random.Generator:
        """A generator for one purpose of this trial."""
        return np.random.default_rng(derive_seed(self.seed, *purpose))
