"""What a method is to the harness: it fits, it predicts, it saves and loads. Nothing here imports torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict

from xmcbench.data.dataset import DatasetCard, Texts, TrainingData
from xmcbench.errors import XMCBenchError
from xmcbench.plugins.checks import check_config, check_subclass
from xmcbench.trial.budget import Budget, Ledger
from xmcbench.trial.predictions import Predictions

if TYPE_CHECKING:
    from xmcbench.teachers.judge import Judge
    from xmcbench.teachers.teacher import Teacher


@dataclass(frozen=True)
class MethodInfo:
    """What users are told about a method before they run it."""

    summary: str
    citation: str = ""
    needs: tuple[str, ...] = ()  # "label texts", "gpu", a package: shown by `xmcbench methods`


@dataclass(frozen=True)
class Progress:
    """How far a trial is: `fraction` of the stage `stage` in 0..1, with a few figures worth showing."""

    stage: str
    fraction: float
    figures: dict[str, float] = field(default_factory=dict)
    # Filled in on the way to who watches the trial: the ledger, and the points of the curve that are new.
    spent: dict[str, Any] = field(default_factory=dict)
    evaluations: list[dict[str, float]] = field(default_factory=list)


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose, a pure function of the base seed: no generator state has to be stored."""
    digest = sha256(repr((seed, *purpose)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def _no_judge(config: Teacher.Config) -> Judge:
    raise XMCBenchError(f"teacher {config.name!r} was asked for outside of a trial")


class Exchange(Protocol):
    """How workers that share no folder get at each other's checkpoints, and how these outlive them."""

    def give(self) -> None:
        """Called by every worker, in the same step: keep what lies in its `Run.checkpoint`."""

    def take(self) -> None:
        """Bring into this worker's `Run.checkpoint` what all workers gave last."""


@dataclass
class Run:
    """What the harness gives a method for one trial: budget and ledger, seeds, places, and a voice."""

    seed: int
    budget: Budget
    ledger: Ledger
    checkpoint: Path  # a directory that outlives a kill; whatever lies here is there again on resume
    cache: Path  # shared by all trials: tokenised texts, trained tokenizers
    # Figures of predictions for the held-out training queries; None where the suite sets none aside.
    selection_texts: Texts | None = None
    select: Callable[[Predictions], dict[str, float]] | None = None
    selection_metric: str = "nDCG@5"
    selection_evaluations: int = 4
    curve: list[dict[str, float]] = field(default_factory=list)  # quality along the budget, for the record
    chosen_by: str = ""  # what chose the checkpoint where the method itself did, for the record
    report: Callable[[Progress], None] = lambda _progress: None
    exchange: Exchange | None = None  # None: `checkpoint` is one folder for all workers
    # A judge that asks the teacher named in a method's settings about training documents and labels.
    judge: Callable[[Teacher.Config], Judge] = _no_judge

    def rng(self, *purpose: str | int) -> np.random.Generator:
        """A generator for one purpose of this trial."""
        return np.random.default_rng(derive_seed(self.seed, *purpose))

    def add_point(self, fraction: float, figures: dict[str, float]) -> None:
        """Put on the curve what a look after `fraction` of the budget found, and what was spent until then."""
        names = ("steps", "encoder_tokens", "flops", "device_seconds")
        spent = {name: self.ledger.spent(name) for name in names}
        self.curve.append({"fraction": fraction, **spent, **figures})


class Method(ABC):
    """A way to rank labels. The harness builds it from a `Config`, fits it once and asks for predictions."""

    name: ClassVar[str]
    info: ClassVar[MethodInfo]
    many_workers: ClassVar[bool] = False
    """Whether several workers can fit it together, `fit` being called on each; without, a trial has one worker."""

    class Config(BaseModel):
        """Settings of a method: frozen, and a key it does not know is an error."""

        model_config = ConfigDict(frozen=True, extra="forbid")

        def unused(self) -> frozenset[str]:
            """Settings that mean nothing beside the others: a suite may not set them here, and does not sweep them."""
            return frozenset()

    def __init__(self, config: Config) -> None:
        self.config = config

    def skip(self, card: DatasetCard) -> str | None:  # noqa: ARG002
        """Why this method cannot run on this dataset, or None."""
        return None

    @property
    def num_parameters(self) -> int:
        """Trainable parameters of the model that predicts; 0 for a method that trains none."""
        return 0

    @abstractmethod
    def fit(self, train: TrainingData, run: Run) -> None:
        """Learn from `train` within `run.budget`, charging `run.ledger`."""

    @abstractmethod
    def predict(self, texts: Texts, k: int) -> Predictions:
        """The best `k` labels of each text, best first, ties by lower label id."""

    @abstractmethod
    def save(self, directory: Path) -> None:
        """Write all that `predict` needs. No pickle."""

    @abstractmethod
    def load(self, directory: Path) -> None:
        """Read what `save` wrote, so that `predict` answers as before."""


def check_plugin(thing: Any) -> None:
    """Raise TypeError where `thing` cannot be registered as a method."""
    check_subclass(thing, Method)
    if not isinstance(getattr(thing, "info", None), MethodInfo):
        raise TypeError(f"{thing.__name__}.info is not a MethodInfo")
    check_config(thing, Method)
