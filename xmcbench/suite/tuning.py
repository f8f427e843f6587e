"""Choosing settings by short trials: every method gets as many samples of as large a budget.

A sample is a trial like any other: the same runner runs it and the same store keeps it, so that a rerun finds it. It is
as good as its best look at held-out training queries. What is chosen, by what, and at what cost is in the record.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from xmcbench.errors import XMCBenchError
from xmcbench.plugins.extras import import_extra
from xmcbench.trial.budget import Budget
from xmcbench.trial.record import SCORED, Record
from xmcbench.trial.run import derive_seed
from xmcbench.trial.trial import Trial

COSTS = ("encoder_tokens", "flops", "device_seconds", "steps", "teacher_calls")
Carry = Callable[[Sequence[Trial]], Sequence[Record]]  # brings trials to their outcomes
Check = Callable[[dict[str, Any]], dict[str, Any]]  # a whole configuration, resolved


class Range(BaseModel):
    """Numbers from `low` to `high`, whole ones where both are; `log` draws their logarithm."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    low: int | float
    high: int | float
    log: bool = False

    @model_validator(mode="after")
    def _makes_sense(self) -> Range:
        if not self.low < self.high:
            raise ValueError(f"expected low below high, found {self.low} and {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"a logarithm needs numbers above 0, found low {self.low}")
        return self

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)


Space = dict[str, Range | list[Any]]  # by setting


class Tune(BaseModel):
    """How the settings of a suite's methods are chosen."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    space: dict[str, Space] = Field(min_length=1, description="by method label: setting: values, or low and high")
    num_samples: int = Field(gt=0, description="of each method")
    budget: Budget | None = Field(None, description="of a sample; null: that of the trial itself")
    metric: str | None = Field(None, description="to choose by; null: the selection's")
    scheduler: Literal["none", "asha"] = Field("none", description="asha stops most samples early")
    reduction: int = Field(3, gt=1, description="of asha: one in so many goes on, with so many times the budget")
    searcher: Literal["random", "optuna"] = Field("random", description="what proposes samples")
    seed: int = Field(0, description="of the searcher")


class Searcher(ABC):
    """Proposes settings; a pure function of its seed and of what it was told."""

    @abstractmethod
    def ask(self, number: int) -> dict[str, Any]:
        """The settings of sample `number`."""

    @abstractmethod
    def tell(self, number: int, quality: float) -> None:
        """How good they were, the larger the better."""


class RandomSearch(Searcher):
    """Each setting drawn on its own; samples differ as long as the space has others."""

    def __init__(self, space: Space, seed: int) -> None:
        self.space, self.seed = space, seed
        self._seen: list[dict[str, Any]] = []

    def ask(self, number: int) -> dict[str, Any]:
        while len(self._seen) <= number:
            rng = Random(derive_seed(self.seed, "sample", len(self._seen)))
            drawn = [{name: _draw(values, rng) for name, values in self.space.items()} for _ in range(100)]
            self._seen.append(next((one for one in drawn if one not in self._seen), drawn[0]))
        return self._seen[number]

    def tell(self, number: int, quality: float) -> None:
        """Nothing is learnt."""


class OptunaSearch(Searcher):
    """Optuna's tree-structured Parzen estimator, seeded."""

    def __init__(self, space: Space, seed: int) -> None:
        optuna = import_extra("optuna", "tune", "searcher: optuna")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(seed=derive_seed(seed, "optuna") % 2**31)
        self.space, self._study = space, optuna.create_study(direction="maximize", sampler=sampler)
        self._asked: dict[int, Any] = {}

    def ask(self, number: int) -> dict[str, Any]:
        trial = self._asked[number] = self._study.ask()
        return {name: self._suggest(trial, name, values) for name, values in self.space.items()}

    def _suggest(self, trial: Any, name: str, values: Range | list[Any]) -> Any:
        if isinstance(values, list):
            return values[trial.suggest_categorical(name, list(range(len(values))))]
        if values.whole:
            return trial.suggest_int(name, values.low, values.high, log=values.log)
        return _short(trial.suggest_float(name, values.low, values.high, log=values.log))

    def tell(self, number: int, quality: float) -> None:
        self._study.tell(self._asked[number], quality)


SEARCHERS: dict[str, Callable[[Space, int], Searcher]] = {"random": RandomSearch, "optuna": OptunaSearch}


@dataclass(frozen=True)
class Sample:
    """A configuration that was tried, with the largest budget it got."""

    number: int
    settings: dict[str, Any]
    record: Record
    quality: float  # -inf where it has none

    @property
    def told(self) -> dict[str, Any]:
        """The sample as a record keeps it."""
        quality = self.quality if math.isfinite(self.quality) else None
        budget = self.record.trial.budget.limits()
        return {"settings": self.settings, "quality": quality, "trial": self.record.key, "budget": budget}


@dataclass(frozen=True)
class Chosen:
    """The best sample of a method, and all that it took to find it."""

    best: Sample
    samples: tuple[Sample, ...]
    records: tuple[Record, ...]
    tune: Tune
    metric: str

    def told(self) -> dict[str, Any]:
        """As a record keeps it: how the configuration was chosen, and what that cost beside the trial's own budget."""
        spent = {name: sum(float(record.spent.get(name, 0)) for record in self.records) for name in COSTS}
        return {
            "by": f"{self.tune.searcher}, scheduler {self.tune.scheduler}",
            "metric": self.metric,
            "on": self.best.record.selection_split,
            "settings": self.best.settings,
            "quality": self.best.quality,
            "samples": [sample.told for sample in self.samples],
            "spent": {name: cost for name, cost in spent.items() if cost},
        }


def choose(base: Trial, tune: Tune, entry: str, check: Check, carry: Carry) -> Chosen:
    """Tune the trial `base` of the method that the suite calls `entry`. `check` resolves a whole configuration.

    Raises XMCBenchError where no sample has a figure to be chosen by.
    """
    assert base.selection is not None
    metric = tune.metric or base.selection.metric
    searcher = SEARCHERS[tune.searcher](tune.space[entry], derive_seed(tune.seed, entry, base.dataset))
    search = _Search(base, tune, metric, searcher, check, carry)
    samples = tuple(search.halving() if tune.scheduler == "asha" else search.plain())
    best = max(samples, key=lambda sample: (_size(sample), sample.quality, -sample.number))
    if not math.isfinite(best.quality):
        raise XMCBenchError(f"tune: no sample of {base.label} on {base.dataset} has {metric} on held-out queries")
    return Chosen(best, samples, tuple(search.records), tune, metric)


class _Search:
    """The samples of one trial."""

    def __init__(
        self,
        base: Trial,
        tune: Tune,
        metric: str,
        searcher: Searcher,
        check: Check,
        carry: Carry,
    ) -> None:
        self.base, self.tune, self.metric, self.searcher = base, tune, metric, searcher
        self.check, self.carry = check, carry
        self.budget = tune.budget or base.budget
        self.records: list[Record] = []

    def plain(self) -> Iterator[Sample]:
        """All samples with the whole budget; those of a searcher that learns one after another."""
        numbers = range(self.tune.num_samples)
        if self.tune.searcher == "random":
            yield from self._try({number: self.searcher.ask(number) for number in numbers}, 1.0)
            return
        for number in numbers:
            yield from self._told(self._try({number: self.searcher.ask(number)}, 1.0))

    def halving(self) -> list[Sample]:
        """Asynchronous successive halving (Li et al., 2020, Algorithm 2), one trial at a time.

        Whichever sample is among the best part of its rung, and has not gone on, goes on; else a new one begins.
        """
        factor, count = self.tune.reduction, self.tune.num_samples
        top = int(math.log(count, factor) + 1e-9)
        rungs: list[list[Sample]] = [[] for _ in range(top + 1)]
        gone_on: list[set[int]] = [set() for _ in rungs]
        while True:
            ready = ((k, sample) for k in reversed(range(top)) for sample in _promotable(rungs[k], gone_on[k], factor))
            if found := next(ready, None):
                k, sample = found
                gone_on[k].add(sample.number)
                rungs[k + 1] += self._try({sample.number: sample.settings}, factor ** (k + 1 - top))
            elif len(rungs[0]) < count:
                number = len(rungs[0])
                rungs[0] += self._told(self._try({number: self.searcher.ask(number)}, float(factor**-top)))
            else:
                return list({sample.number: sample for rung in rungs for sample in rung}.values())

    def _told(self, samples: Sequence[Sample]) -> Sequence[Sample]:
        for sample in samples:
            self.searcher.tell(sample.number, sample.quality if math.isfinite(sample.quality) else 0.0)
        return samples

    def _try(self, asked: Mapping[int, dict[str, Any]], share: float) -> list[Sample]:
        """Run samples with a share of the budget."""
        limits = {name: _part(limit, share) for name, limit in self.budget.spending().items()}
        budget = self.budget.model_copy(update=limits)
        trials = [
            self.base.changed(
                label=f"{self.base.label}/sample-{number}",
                config=self.check({**self.base.config, **settings}),
                budget=budget,
            )
            for number, settings in asked.items()
        ]
        records = self.carry(trials)
        known = {record.key for record in self.records}
        self.records += [record for record in records if record.key not in known]
        return [
            Sample(number, settings, record, _quality(record, self.metric))
            for (number, settings), record in zip(asked.items(), records, strict=True)
        ]


def _promotable(rung: Sequence[Sample], gone_on: set[int], factor: int) -> list[Sample]:
    """The best of a rung, one in `factor`, that have not gone on."""
    best = sorted(rung, key=lambda sample: (-sample.quality, sample.number))[: len(rung) // factor]
    return [sample for sample in best if sample.number not in gone_on and math.isfinite(sample.quality)]


def _quality(record: Record, metric: str) -> float:
    """That of the checkpoint that was chosen: the best along the way."""
    seen = [point[metric] for point in record.curve if metric in point]
    return max(seen) if seen and record.status in SCORED else -math.inf


def _size(sample: Sample) -> float:
    """The budget a sample got: quality is compared among the largest."""
    return max(sample.record.trial.budget.spending().values())


def _part(limit: float, share: float) -> float:
    return max(1, round(limit * share)) if isinstance(limit, int) else limit * share


def _draw(values: Range | list[Any], rng: Random) -> Any:
    if isinstance(values, list):
        return values[rng.randrange(len(values))]
    if values.whole and not values.log:
        return rng.randint(int(values.low), int(values.high))
    ends = (math.log(values.low), math.log(values.high)) if values.log else (values.low, values.high)
    drawn = rng.uniform(*ends)
    number = math.exp(drawn) if values.log else drawn
    return round(number) if values.whole else min(max(_short(number), values.low), values.high)


def _short(number: float) -> float:
    """Three digits: what people read, and what a rerun proposes again."""
    return float(f"{number:.3g}")
