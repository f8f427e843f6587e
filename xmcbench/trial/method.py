"""The contract of a method: settings, fit, predict, save, load. Nothing here imports torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import ValidationError

from xmcbench.data.dataset import DatasetCard, Texts, TrainingData
from xmcbench.data.extent import Extent
from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.plugins.hookspecs import check_config, check_subclass, check_texts
from xmcbench.plugins.registry import plugin_package, registry
from xmcbench.trial.budget import Budget
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.record_fields import Frozen
from xmcbench.trial.run import Run
from xmcbench.trial.trial import Trial
from xmcbench.trial.versions import charge_part


class Settings(Frozen):
    """Settings of a method, or of a part of one: immutable, and an unknown key is an error."""

    def unused(self) -> frozenset[str]:
        """Settings without effect, given the others: a suite may not set them, and a sweep leaves them out."""
        return frozenset()


NOT_SETTINGS = frozenset({"method", "budget"})  # keys of a method in a suite file that its `Config` does not have


@dataclass(frozen=True)
class MethodInfo:
    """Facts about a method that users can read before they run it."""

    summary: str
    citation: str = ""
    needs: tuple[str, ...] = ()  # "label texts", "gpu", a package: shown by `xmcbench methods`
    network: tuple[str, ...] = ()  # hosts that fit and predict reach by themselves; `run` asks for them once
    secrets: tuple[str, ...] = ()  # environment variables that `run.secret` may read
    version: int = 1  # to be raised by every change that moves the method's results
    # By limit of a budget, above 1: to be raised by a change of what is charged, which moves trials that it can end.
    charges: Mapping[str, int] = field(default_factory=dict)

    @property
    def all_needs(self) -> tuple[str, ...]:
        """The needs, with hosts and secrets, as listings show them."""
        return (*self.needs, *(f"network: {host}" for host in self.network), *(f"${name}" for name in self.secrets))


class Method(ABC):
    """A way to rank labels. The harness builds it from a `Config`, fits it once and asks it for predictions.

    Every method defines `name`, `info`, `fit`, `predict`, `save` and `load`; the rest has defaults. In the order of a
    trial: `following`, `skip` and `check_machine` when it is planned, `fit`, `save`, `predict`, and `load` in a process
    that was not trained.
    """

    name: ClassVar[str]
    info: ClassVar[MethodInfo]
    many_workers: ClassVar[bool] = False
    """Whether several workers can fit the method together; `fit` is then called on each of them."""
    uses_gpu: ClassVar[bool] = True
    """Whether the method computes on a GPU where there is one: trials of others see none, and none waits for them."""
    scoring_settings: ClassVar[frozenset[str]] = frozenset()
    """Settings that change only how a trained model scores: trials that differ in nothing else are trained once.

    `fit` and `save` must then do the same whatever these settings are.
    """

    counted: ClassVar[Mapping[str, tuple[Literal["queries", "labels"], ...]]] = {}
    """Settings that number training queries, labels or both together; a plan says where there are not so many."""

    late_imports: ClassVar[tuple[str, ...]] = ()
    """Modules that the method imports in its functions, so that listing methods does not import them. A trial imports
    them before `fit`; the time is not charged to the budget."""

    class Config(Settings):
        """Settings of a method."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @classmethod
    def versions(cls, config: Config) -> dict[str, int]:  # noqa: ARG003
        """The versions of all code that the result under `config` depends on, by part.

        A method that looks up a registered sampler or teacher by name adds its version, as `"sampler NAME"`.
        """
        return {"method": cls.info.version}

    @classmethod
    def charge_versions(cls, config: Config, limits: Collection[str]) -> dict[str, int]:  # noqa: ARG003
        """The versions of the charges for `limits` under `config`, by part; those that are 1 are left out.

        They are in the key of trials that one of the limits can end, beside `versions`.
        """
        return {charge_part(limit): version for limit, version in cls.info.charges.items() if limit in limits}

    @classmethod
    def needs_annotations(cls, config: Config) -> bool:  # noqa: ARG003
        """Whether `fit` asks for training annotations under `config`: a suite of the zero-shot track refuses it then.

        A method that does not say so ends there with an error once it asks.
        """
        return False

    @classmethod
    def following(cls, given: Mapping[str, Any], data: Extent, budget: Budget) -> dict[str, Any]:  # noqa: ARG003
        """The settings of a suite, with those that it leaves out derived from the data and the budget.

        What is in neither has its default. All of them stand in the trial's configuration, and so in its key.
        """
        return dict(given)

    def skip(self, card: DatasetCard) -> str | None:  # noqa: ARG002
        """Why this method cannot run on this dataset, or None."""
        return None

    def check_machine(self) -> None:  # noqa: B027
        """Raises XMCBenchError if this machine lacks a package or a file that a trial will read.

        It is told before any trial runs.
        """

    def notes(self) -> list[str]:
        """Sentences on what the settings leave unused in the files that they name; shown before any trial runs."""
        return []

    def encoder_training(self, budget: Budget) -> tuple[Method, Budget]:
        """The method that trains the encoder, and its part of `budget`: `xmcbench plan` predicts their costs."""
        return self, budget

    @classmethod
    def search_space(cls, config: Config) -> dict[str, Any]:  # noqa: ARG003
        """The settings that `xmcbench tune` searches around `config`, as in the key `tune.space` of a suite."""
        return {}

    def foreseen(self, data: Extent, budget: Budget) -> dict[str, float]:  # noqa: ARG002
        """An estimate of what a training will spend, by names of the ledger, as far as the budget determines it.

        `first_tokens`, the tokens that are encoded before the first step, do not depend on the budget.
        """
        return {}

    def idle_parts(self, spent: Mapping[str, Any]) -> dict[str, frozenset[str]]:  # noqa: ARG002
        """The parts of the method that never ran in a trial that spent, or will spend, this much of a ledger.

        To each belong the settings that then have no effect.
        """
        return {}

    @property
    def num_parameters(self) -> int:
        """Trainable parameters of the model that predicts; 0 for a method that trains none."""
        return 0

    @abstractmethod
    def fit(self, train: TrainingData, run: Run) -> None:
        """Learn from `train`, charging `run.ledger` for what is spent, until `run.budget` is reached."""

    @abstractmethod
    def predict(self, texts: Texts, k: int) -> Predictions:
        """The `k` best labels of each of N texts, arrays [N, k], best first, ties by lower label id."""

    @property
    def saved_texts(self) -> str:
        """What a saved model contains of the training texts, as in "their words"; empty if it has only weights.

        `xmcbench hub push` says it before it uploads the model.
        """
        return ""

    @property
    def inner_methods(self) -> Sequence[Method]:
        """The methods that `predict` asks, as a fusion asks its parts; none by default."""
        return ()

    @contextmanager
    def resident(self) -> Iterator[None]:
        """A block in which `predict` is called many times with few texts: what each call needs may stay loaded.

        By default it enters the blocks of the inner methods.
        """
        with ExitStack() as blocks:
            for method in self.inner_methods:
                blocks.enter_context(method.resident())
            yield

    def predict_charged(self, texts: Texts, k: int, run: Run) -> Predictions:
        """What `predict` returns, charged to `run`: for a method that asks another one within its own `fit`.

        Raises PassTooLargeError, before anything is charged, where a pass over the texts does not fit into the budget.
        """
        with run.ledger.stage("mine"):
            return self.predict(texts, k)

    def predict_exactly(self, texts: Texts, k: int) -> Predictions | None:  # noqa: ARG002
        """What `predict` would return with an exact search; None if its own search is exact.

        The record of a trial holds the share of these labels that `predict` finds, as `search_recall`.
        """
        return None

    def add_labels(self, texts: Texts) -> None:  # noqa: ARG002
        """Rank labels with these texts from now on, with the ids after those of training. Nothing is trained.

        Raises XMCBenchError where the method cannot, which is the default.
        """
        raise XMCBenchError(f"method {self.name!r} ranks only the labels that it was fitted with")

    @abstractmethod
    def save(self, directory: Path) -> None:
        """Write everything that `predict` needs into an existing folder, as JSON, npz or safetensors, never pickle."""

    @abstractmethod
    def load(self, directory: Path) -> None:
        """Read what `save` wrote into `directory`, so that `predict` returns the same as before."""


def check_plugin(thing: Any) -> None:
    """Raise TypeError if `thing` cannot be registered as a method."""
    check_subclass(thing, Method, "xmcbench.Method")
    if not isinstance(getattr(thing, "info", None), MethodInfo):
        raise TypeError(f"{thing.__name__}.info is not a MethodInfo")
    info, called = thing.info, thing.__name__
    if not isinstance(info.summary, str):
        raise TypeError(f"{called}.info.summary is {info.summary!r}, expected a text")
    for name in ("needs", "network", "secrets"):
        check_texts(getattr(info, name), f"{called}.info.{name}")
    check_texts(thing.late_imports, f"{called}.late_imports")
    check_texts(thing.scoring_settings, f"{called}.scoring_settings")
    numbers = {"info.version": info.version}
    for name, limits in (("info.charges", info.charges), ("counted", thing.counted)):
        if not isinstance(limits, Mapping):
            raise TypeError(f"{called}.{name} is {limits!r}, expected a dictionary")
    numbers |= {f"info.charges[{limit!r}]": version for limit, version in info.charges.items()}
    for name, number in numbers.items():
        if type(number) is not int:
            raise TypeError(f"{called}.{name} is {number!r}, expected a whole number")
    package = plugin_package(thing.__module__)
    if late := [name for name in thing.late_imports if plugin_package(name) == package]:
        raise TypeError(f"{thing.__name__}.late_imports names {late[0]!r}, its own module: import it in fit")
    check_config(thing, Method)
    if taken := sorted(NOT_SETTINGS & thing.Config.model_fields.keys()):
        raise TypeError(f"{thing.__name__}.Config has the setting {taken[0]!r}, which is a key of suite files")


def code_versions(kind: type[Method], config: Method.Config, budget: Budget) -> dict[str, int]:
    """The versions of all code of a method that the result under `config` and `budget` depends on, by part."""
    return kind.versions(config) | kind.charge_versions(config, budget.spending())


def installed_versions(trial: Trial, limits: Collection[str]) -> dict[str, int]:
    """The versions that the installed code has for the settings of a stored trial within `limits`, by part.

    Empty if its method is not here. Settings of an older version, which the code no longer takes, say nothing of parts
    beside the method.
    """
    try:
        kind: type[Method] = registry().method(trial.method, trial.distribution).thing
    except UnknownNameError:
        return {}
    try:
        config = kind.Config.model_validate(trial.config)
    except ValidationError:
        charges = {charge_part(limit): version for limit, version in kind.info.charges.items() if limit in limits}
        return {"method": kind.info.version, **charges}
    return kind.versions(config) | kind.charge_versions(config, limits)


def build_method(trial: Trial) -> Method:
    """The trial's method with its settings, not fitted. Raises XMCBenchError if another version is installed."""
    plugin = registry().method(trial.method, trial.distribution)
    if plugin.origin.distribution != trial.distribution:
        raise XMCBenchError(f"method {trial.method!r} is of {plugin.origin}, expected {trial.distribution}")
    config = plugin.thing.Config.model_validate(trial.config)
    for part, version in code_versions(plugin.thing, config, trial.budget).items():
        if (wanted := trial.versions.get(part, version)) != version:
            raise XMCBenchError(f"method {trial.method!r}: found version {version} of {part}, expected {wanted}")
    method: Method = plugin.thing(config)
    return method
