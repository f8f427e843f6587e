"""Base of second stages: a first method, its share of the budget, and its vectors of the training queries.

Legend: N training queries, D dimensions.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, ValidationError, field_validator

from xmcbench import (
    Budget,
    DualEncoder,
    Method,
    PassTooLargeError,
    Predictions,
    Progress,
    Run,
    XMCBenchError,
    data,
    files,
    registry,
    sampling,
    search,
)

if TYPE_CHECKING:
    from torch import Tensor

SHARE = 0.8  # of the budget for the first method
NOTHING_LEARNT = "the vectors of the training queries did not fit into the budget: the second stage learnt nothing"
FIRST = "first"  # in a model's directory: a folder of its own, which opens without the second stage


class SecondStage(Method):
    """Fits the dual encoder `first` within a share of the budget, then trains on its vectors within the rest."""

    many_workers: ClassVar[bool] = True
    late_imports = DualEncoder.late_imports
    searches: ClassVar[bool] = True  # `learn` searches the labels near each training query

    @classmethod
    def following(cls, given: Mapping[str, Any], data: data.Extent, budget: Budget) -> dict[str, Any]:
        """The first method's settings follow its share of the budget."""
        return {**given, "first": follow(given["first"], data, budget.times(given.get("share", SHARE)))}

    class Config(Method.Config):
        first: dict[str, Any] = Field(description="a method and its settings: `{method: dexml, batch_size: 512}`")
        share: float = Field(SHARE, gt=0, lt=1, description="share of every limit of the budget for the first method")

        @field_validator("first")
        @classmethod
        def _with_defaults(cls, given: dict[str, Any]) -> dict[str, Any]:
            return spelt_out(given, DualEncoder)

    config: SecondStage.Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        kind, settings = resolve(config.first, DualEncoder)
        self.first: DualEncoder = kind(settings)

    @classmethod
    def versions(cls, config: Method.Config) -> dict[str, int]:
        """Its own versions, and the first method's as "first method" and "first engine"."""
        assert isinstance(config, SecondStage.Config)
        kind, settings = resolve(config.first, DualEncoder)
        first = {f"first {part}": version for part, version in kind.versions(settings).items()}
        return {**super().versions(config), **first}

    def skip(self, card: data.DatasetCard) -> str | None:
        return self.first.skip(card)

    def check_machine(self) -> None:
        self.first.check_machine()

    def foreseen(self, data: data.Extent, budget: Budget) -> dict[str, float]:
        return self.first.foreseen(data, budget.times(self.config.share))

    def idle_parts(self, spent: Mapping[str, Any]) -> dict[str, frozenset[str]]:
        own = {"the second stage": frozenset[str]()} if spent.get("ended") == NOTHING_LEARNT else {}
        return self.first.idle_parts(spent) | own

    def encoder_training(self, budget: Budget) -> tuple[Method, Budget]:
        return self.first, budget.times(self.config.share)

    def fit(self, train: data.TrainingData, run: Run) -> None:
        self.first.fit(train, run.reserve(self.config.share))
        try:
            queries_ND = self._embed(train, run)
        except PassTooLargeError:
            queries_ND = None
            run.log.ended = NOTHING_LEARNT
        self.learn(train, queries_ND, run)
        self._evaluate(run)

    def _evaluate(self, run: Run) -> None:
        """Leave one evaluation on held-out queries: of both stages. Those before were of the first one alone."""
        run.log.curve.clear()
        if run.held_out is not None:
            with run.ledger.uncharged():
                metrics = run.held_out.evaluate(self.predict, len(self.first.index_LD))
            run.log.add_point(min(1.0, run.ledger.fraction(run.budget)), metrics)

    @abstractmethod
    def learn(self, train: data.TrainingData, queries_ND: Tensor | None, run: Run) -> None:
        """Learn from the first method's vectors of the training queries, until the budget is spent or it is done.

        They are None if computing them did not fit into the budget: then nothing is learnt, and the first method
        answers.
        """

    def spent(self, run: Run) -> float:
        """The spent share of the budget; the fastest clock of all workers counts, so that they stop together."""
        return self.first.shard.workers.largest(run.ledger.fraction(run.budget))

    def steps(self, total: int, run: Run) -> Iterator[tuple[int, float]]:
        """The numbers of steps until `total` or the budget end, each with its place in the second stage, in 0..1."""
        start = self.spent(run)
        for step in range(total):
            if (spent := self.spent(run)) >= 1:
                return
            yield step, max(step / total, (spent - start) / (1 - start))

    def report(self, run: Run, place: float, **metrics: float) -> None:
        """Report the place in the second stage, in 0..1, as progress of the whole."""
        share = self.config.share
        run.report(Progress("train", share + (1 - share) * place, metrics))

    def vectors(self, queries_ND: Tensor, run: Run) -> sampling.Embeddings:
        """The first method's vectors of training queries and labels, in which shortlists are searched."""
        first = self.first
        return sampling.Embeddings(
            lambda: queries_ND,
            lambda: first.index_LD,
            workers=first.shard.workers,
            note_recall=run.ledger.note_recall,
            progress=lambda share: run.report(Progress("mine", share)),
        )

    def predict(self, texts: data.Texts, k: int) -> Predictions:
        return self.first.predict(texts, k)

    def predict_exactly(self, texts: data.Texts, k: int) -> Predictions | None:
        return self.first.predict_exactly(texts, k)

    def save(self, directory: Path) -> None:
        (directory / FIRST).mkdir()
        self.first.save(directory / FIRST)

    def load(self, directory: Path) -> None:
        self.first.load(directory / FIRST)

    def _embed(self, train: data.TrainingData, run: Run) -> Tensor:
        """[N, D] the vectors that training queries are scored with; charged.

        Raises PassTooLargeError unless they fit into the budget, with the search that follows where there is one.
        """
        first, charging = self.first, self.first.charging_to(run.ledger, run.budget)
        with run.ledger.stage("mine"):
            tokens = first.encoder.tokenizer.tokens(train.texts, first.query_length, run.cache)
            operations = search.search_flops(len(tokens.lengths), *first.index_LD.shape) if self.searches else 0
            charging.require(tokens.lengths, scoring_flops=operations)
            charging.encoding(tokens.lengths)
            return first.all_query_vectors(tokens)


def follow(given: Mapping[str, Any], data: data.Extent, budget: Budget) -> dict[str, Any]:
    """A first method or a part, with the settings that follow from data and from its own budget."""
    named = {key: value for key, value in given.items() if key in ("method", "origin")}
    settings = {key: value for key, value in given.items() if key not in named}
    return named | registry().method(named["method"]).thing.following(settings, data, budget)


def spelt_out(given: dict[str, Any], kind: type[Method]) -> dict[str, Any]:
    """All settings of a method of that kind, and its distribution: both determine the result."""
    method, config = resolve(given, kind)
    origin = registry().method(method.name).origin.distribution
    return {"method": method.name, "origin": origin, **config.model_dump(mode="json")}


def resolve(given: dict[str, Any], kind: type[Method]) -> tuple[type[Any], Any]:
    """A method of that kind, and its settings (its own `Config`).

    Raises ValueError or XMCBenchError for an unknown one.
    """
    settings = dict(given)
    name, origin = settings.pop("method", None), settings.pop("origin", None)
    if not isinstance(name, str):
        raise ValueError("missing key 'method'")
    plugin = registry().method(name)
    method: type[Method] = plugin.thing
    if not issubclass(method, kind):
        raise ValueError(f"method {name!r} is not a dual encoder")
    distribution = plugin.origin.distribution
    if origin is not None and str(origin).split()[0] != distribution:  # older records contain the release too
        raise XMCBenchError(f"method {name!r} is of {distribution}, expected {origin}")
    try:
        config = method.Config.model_validate_json(json.dumps(settings), strict=True)
    except ValidationError as invalid:
        raise ValueError(files.explained(method.Config, settings, invalid)) from None
    # Defaults are allowed: a resolved configuration spells all of them out.
    fields = method.Config.model_fields
    idle = [key for key in config.unused() & settings.keys() if getattr(config, key) != fields[key].get_default()]
    if idle:
        raise ValueError(f"{', '.join(sorted(idle))}: has no effect with the other settings here")
    return method, config
