"""Bases of second stages: a first method with its share of the budget and its vectors; rankers of its best labels.

Legend: N queries, D dimensions, K labels of a shortlist.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import scipy
from pydantic import Field, ValidationError, field_validator

from xmcbench import (
    Budget,
    DualEncoder,
    Ended,
    Method,
    PassTooLargeError,
    Predictions,
    Progress,
    Run,
    XMCBenchError,
    data,
    evaluation,
    files,
    registry,
    sampling,
)

if TYPE_CHECKING:
    from torch import Tensor

SHARE = 0.8  # of the budget for the first method
EQUAL = 1e-6  # scores with a smaller deviation count as equal
FIRST_METHOD = {"method": "dexml"}
FIRST = "first"  # in a model's directory: a folder of its own, which opens without the second stage


class SecondStage(Method):
    """Fits the dual encoder `first` within a share of the budget, then trains on its vectors within the rest."""

    many_workers: ClassVar[bool] = True
    late_imports = DualEncoder.late_imports
    searches: ClassVar[bool] = True  # `learn` searches the labels near each training query
    multiplies: ClassVar[bool] = False  # scores of the first method have to be inner products

    @classmethod
    def following(cls, given: Mapping[str, Any], data: data.Extent, budget: Budget) -> dict[str, Any]:
        """The first method's settings follow its share of the budget."""
        return {
            **given,
            "first": follow(given.get("first", FIRST_METHOD), data, budget.times(given.get("share", SHARE))),
        }

    class Config(Method.Config):
        first: dict[str, Any] = Field(
            FIRST_METHOD,
            validate_default=True,
            description="a method and its settings: `{method: dexml, batch_size: 512}`",
        )
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

    @classmethod
    def charge_versions(cls, config: Method.Config, limits: Collection[str]) -> dict[str, int]:
        """What it and the first method are charged, as "first charge of LIMIT"."""
        assert isinstance(config, SecondStage.Config)
        kind, settings = resolve(config.first, DualEncoder)
        first = {f"first {part}": version for part, version in kind.charge_versions(settings, limits).items()}
        return {**super().charge_versions(config, limits), **first}

    @classmethod
    def needs_annotations(cls, config: Method.Config) -> bool:  # noqa: ARG003
        return True

    def skip(self, card: data.DatasetCard) -> str | None:
        return self.first.skip(card)

    @property
    def inner_methods(self) -> list[Method]:
        return [self.first]

    def check_machine(self) -> None:
        if self.multiplies and self.first.own_score is not None:
            found = f"{self.first.name!r} defines its own score"
            raise XMCBenchError(
                f"method {self.name!r}: expected a first method whose scores are inner products: {found}"
            )
        self.first.check_machine()

    def foreseen(self, data: data.Extent, budget: Budget) -> dict[str, float]:
        return self.first.foreseen(data, budget.times(self.config.share))

    def idle_parts(self, spent: Mapping[str, Any]) -> dict[str, frozenset[str]]:
        own = {"the second stage": frozenset[str]()} if spent.get("ended") == Ended.STAGE_TOO_LARGE else {}
        return self.first.idle_parts(spent) | own

    def encoder_training(self, budget: Budget) -> tuple[Method, Budget]:
        return self.first, budget.times(self.config.share)

    def fit(self, train: data.TrainingData, run: Run) -> None:
        self.first.fit(train, run.reserve(self.config.share))
        try:
            queries_ND = self._embed(train, run)
        except PassTooLargeError:
            queries_ND = None
            run.log.ended = Ended.STAGE_TOO_LARGE
        try:
            self.learn(train, queries_ND, run)
        except PassTooLargeError:  # a search took longer than predicted
            run.log.ended = Ended.STAGE_TOO_LARGE
            self.learn(train, None, run)
        self._evaluate(run)

    def _evaluate(self, run: Run) -> None:
        """Leave one evaluation on held-out queries: of both stages. Those before were of the first one alone."""
        curve, held_out = list(run.log.curve), run.held_out
        run.log.curve.clear()
        if held_out is not None:
            if curve:
                best = max(curve, key=held_out.worth)
                run.log.chosen_at = min(1.0, best["fraction"])
            with run.ledger.uncharged():
                metrics = held_out.evaluate(self.predict, len(self.first.index_LD))
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
            score=first.own_score,
            search_flops=first.search_flops,
            progress=lambda share: run.report(Progress("mine", share)),
        )

    def predict(self, texts: data.Texts, k: int) -> Predictions:
        return self.first.predict(texts, k)

    def predict_charged(self, texts: data.Texts, k: int, run: Run) -> Predictions:
        with self.first.answering(texts, run, self.num_vectors):
            return self.predict(texts, k)

    @property
    def num_vectors(self) -> int:
        """The number of vectors that `predict` searches for a query."""
        return len(self.first.index_LD)

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
        with charging.counted("mine"):
            tokens = first.encoder.tokenizer.tokens(train.texts, first.query_length, run.cache)
            operations = first.search_flops(len(tokens.lengths), *first.index_LD.shape) if self.searches else 0
            charging.require(tokens.lengths, scoring_flops=operations)
            charging.encoding(tokens.lengths)
            return first.all_query_vectors(tokens)


class Reranker(SecondStage):
    """Both scores are scaled to mean 0 and variance 1 within a query's shortlist and added, whatever their scales.

    A label without a score of the second stage (NaN) gets the mean there.
    """

    counted: ClassVar = {"shortlist": ("labels",)}

    class Config(SecondStage.Config):
        shortlist: int = Field(
            100,
            gt=0,
            description="number of the first method's best labels that are ranked; labels below keep their order",
        )
        weight: float = Field(1.0, ge=0, description="weight of the ranker's score; 0: the first method's order")

    config: Reranker.Config

    def listed(self, queries_ND: Tensor, exclude: scipy.sparse.csr_array, run: Run) -> np.ndarray:
        """[N, K] the first method's best labels of the training queries, without the pairs `exclude`; charged."""
        k = min(self.config.shortlist, len(self.first.index_LD))
        with self.first.charging_to(run.ledger, run.budget).counted("mine"):
            return self.vectors(queries_ND, run).nearest(k, exclude=exclude)

    @abstractmethod
    def scores(self, texts: data.Texts, labels_NK: np.ndarray) -> np.ndarray:
        """[N, K] the second stage's scores of each query's labels, NaN where it has none."""

    @abstractmethod
    def charge_scores(self, texts: data.Texts, labels_NK: np.ndarray, run: Run) -> None:
        """Charge what `scores` computes. Raises PassTooLargeError where it does not fit into the budget."""

    def predict(self, texts: data.Texts, k: int) -> Predictions:
        return self._rank(texts, self._exact_first.predict(texts, self._candidates(k)), k)

    def predict_charged(self, texts: data.Texts, k: int, run: Run) -> Predictions:
        with self.first.answering(texts, run, self.num_vectors):
            found = self._exact_first.predict(texts, self._candidates(k))
        with run.ledger.stage("mine"):
            self.charge_scores(texts, found.indices[:, : self._listed], run)
            return self._rank(texts, found, k)

    def predict_exactly(self, texts: data.Texts, k: int) -> Predictions | None:
        found = self._exact_first.predict_exactly(texts, self._candidates(k))
        return None if found is None else self._rank(texts, found, k)

    @property
    def _exact_first(self) -> DualEncoder:
        """The first method, answering in float32.

        In bf16 a query's vector depends on the texts beside it, and so would the labels at the end of its shortlist.
        """
        first = copy(self.first)
        first.config = first.config.model_copy(update={"precision": "float32"})
        return first

    @property
    def _listed(self) -> int:
        """How many labels of a query are ranked."""
        return min(self.config.shortlist, len(self.first.index_LD))

    def _candidates(self, k: int) -> int:
        """How many labels the first method is asked for."""
        return min(len(self.first.index_LD), max(k, self.config.shortlist))

    def _rank(self, texts: data.Texts, found: Predictions, k: int) -> Predictions:
        """The `k` best of the labels that the first method found."""
        listed = self._listed
        head_NK = found.indices[:, :listed]
        own_NK = standardised(self.scores(texts, head_NK))
        scores_NK = standardised(found.scores[:, :listed]) + self.config.weight * own_NK
        # Labels beyond the shortlist stay below, in the first method's order.
        below = scores_NK.min(axis=1, keepdims=True) - 1 - np.arange(found.k - listed, dtype=np.float32)
        return evaluation.rank(found.indices, np.concatenate([scores_NK, below], axis=1), k)


def standardised(scores_NK: np.ndarray) -> np.ndarray:
    """Each row scaled to mean 0 and variance 1, ignoring NaN; NaN becomes 0, and so does a row of equal scores."""
    known = ~np.isnan(scores_NK)
    count_N1 = np.maximum(known.sum(axis=1, keepdims=True), 1)
    centred = np.where(known, scores_NK - np.nansum(scores_NK, axis=1, keepdims=True) / count_N1, 0.0)
    spread_N1 = np.sqrt((centred**2).sum(axis=1, keepdims=True) / count_N1)
    return np.asarray(centred / np.maximum(spread_N1, EQUAL), np.float32)


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
