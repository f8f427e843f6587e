"""Chooses the settings of a method by short trials. Optuna proposes samples and decides which of them continue.

A sample is a trial like any other: the same runner runs it and the same store keeps it, so that a rerun finds it. Its
quality is that of its best evaluation on held-out training queries. With successive halving (Li et al., 2020) a sample
starts with a part of the budget; while it is among the best, it is trained again with `reduction` times as much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from xmcbench.errors import XMCBenchError
from xmcbench.plugins.extras import import_extra
from xmcbench.suite.tuning import Range, Tune
from xmcbench.trial.record import SCORED, Record
from xmcbench.trial.run import derive_seed
from xmcbench.trial.trial import Trial

COSTS = ("encoder_tokens", "flops", "device_seconds", "steps", "teacher_calls")
ATTEMPTS = 100  # at a sample that differs from all before it; a small space may hold no other
RunTrials = Callable[[Sequence[Trial]], Sequence[Record]]
Resolve = Callable[[dict[str, Any]], dict[str, Any]]  # a configuration with its defaults filled in


@dataclass(frozen=True)
class Sample:
    """A configuration that was tried, with the record of its largest budget."""

    number: int
    settings: dict[str, Any]
    record: Record
    quality: float  # nan if it has none

    def as_dict(self) -> dict[str, Any]:
        """The sample as a record keeps it."""
        quality = self.quality if math.isfinite(self.quality) else None
        budget = self.record.trial.budget.limits()
        return {"settings": self.settings, "quality": quality, "trial": self.record.key, "budget": budget}


@dataclass(frozen=True)
class Chosen:
    """The best sample of a method, and the trials that it took to find it."""

    best: Sample
    samples: tuple[Sample, ...]
    records: tuple[Record, ...]
    tune: Tune
    metric: str

    def as_dict(self) -> dict[str, Any]:
        """The entry of a record: how the configuration was chosen, and what all samples spent."""
        spent = {name: sum(float(record.spent.get(name, 0)) for record in self.records) for name in COSTS}
        return {
            "by": f"{self.tune.searcher}, scheduler {self.tune.scheduler}",
            "metric": self.metric,
            "on": self.best.record.selection_split,
            "settings": self.best.settings,
            "quality": self.best.quality,
            "samples": [sample.as_dict() for sample in self.samples],
            "spent": {name: cost for name, cost in spent.items() if cost},
        }


def choose(base: Trial, tune: Tune, entry: str, resolve: Resolve, run_trials: RunTrials) -> Chosen:
    """Tune the trial `base` of the method that the suite calls `entry`.

    Raises XMCBenchError if no sample has a metric to choose by.
    """
    assert base.selection is not None
    metric = tune.metric or base.selection.metric
    search = _Search(base, tune, metric, entry, resolve, run_trials)
    samples = search.samples()
    scored = [sample for sample in samples if math.isfinite(sample.quality)]
    if not scored:
        raise XMCBenchError(f"tune: no sample of {base.label} on {base.dataset} has {metric} on held-out queries")
    # Qualities are compared among the samples with the largest budget.
    best = max(scored, key=lambda sample: (_size(sample), sample.quality, -sample.number))
    return Chosen(best, tuple(samples), tuple(search.records.values()), tune, metric)


class _Search:
    """The samples of one method on one dataset."""

    def __init__(self, base: Trial, tune: Tune, metric: str, entry: str, resolve: Resolve, run: RunTrials) -> None:
        self._base, self._tune, self._metric, self._resolve, self._run = base, tune, metric, resolve, run
        self._budget = tune.budget or base.budget  # the largest that a sample gets
        self._space = tune.space[entry]
        self._optuna = import_extra("optuna", "tune", "the key 'tune' of a suite")
        self._study = _study(self._optuna, tune, derive_seed(tune.seed, entry, base.dataset) % 2**32)
        self._proposed: list[dict[str, Any]] = []
        self.records: dict[str, Record] = {}  # of the trials of all samples, by key

    def samples(self) -> list[Sample]:
        """Run all samples. Random ones without halving depend on no result: they may run side by side."""
        numbers = range(self._tune.num_samples)
        if self._tune.searcher == "random" and self._tune.scheduler == "none":
            return self._train({number: self._propose()[1] for number in numbers}, 1.0)
        return [self._sample(number) for number in numbers]

    def _propose(self) -> tuple[Any, dict[str, Any]]:
        """Optuna's next trial and its settings, which differ from those before as long as the space has others."""
        distributions = {name: _distribution(self._optuna, values) for name, values in self._space.items()}
        for attempt in range(1, ATTEMPTS + 1):
            trial = self._study.ask(distributions)
            settings = {name: _setting(values, trial.params[name]) for name, values in self._space.items()}
            if settings not in self._proposed or attempt == ATTEMPTS:
                break
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        self._proposed.append(settings)
        return trial, settings

    def _sample(self, number: int) -> Sample:
        """Run a sample with growing budgets until Optuna's pruner stops it, and tell the searcher its quality."""
        trial, settings = self._propose()
        factor, state = self._tune.reduction, self._optuna.trial.TrialState
        last = int(math.log(self._tune.num_samples, factor) + 1e-9) if self._tune.scheduler == "halving" else 0
        for rung in range(last + 1):
            (sample,) = self._train({number: settings}, float(factor) ** (rung - last))
            trial.report(sample.quality, factor**rung)
            if not math.isfinite(sample.quality):
                self._study.tell(trial, state=state.FAIL)
                return sample
            if rung < last and trial.should_prune():
                self._study.tell(trial, state=state.PRUNED)
                return sample
        self._study.tell(trial, sample.quality)
        return sample

    def _train(self, samples: dict[int, dict[str, Any]], share: float) -> list[Sample]:
        """Run samples, given by number, with a share of the budget."""
        limits = {name: _part(limit, share) for name, limit in self._budget.spending().items()}
        trials = [
            self._base.changed(
                label=f"{self._base.label}/sample-{number}",
                config=self._resolve({**self._base.config, **settings}),
                budget=self._budget.model_copy(update=limits),
            )
            for number, settings in samples.items()
        ]
        records = self._run(trials)
        self.records |= {record.key: record for record in records}
        return [
            Sample(number, settings, record, _quality(record, self._metric))
            for (number, settings), record in zip(samples.items(), records, strict=True)
        ]


def _study(optuna: Any, tune: Tune, seed: int) -> Any:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    samplers, pruners = optuna.samplers, optuna.pruners
    sampler = (samplers.TPESampler if tune.searcher == "optuna" else samplers.RandomSampler)(seed=seed)
    halving = pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=tune.reduction)
    pruner = halving if tune.scheduler == "halving" else pruners.NopPruner()
    return optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)


def _distribution(optuna: Any, values: Range | list[Any]) -> Any:
    """The distribution of a setting for Optuna. For a list it is over positions: values may be lists or mappings."""
    if isinstance(values, list):
        return optuna.distributions.CategoricalDistribution(range(len(values)))
    kind = optuna.distributions.IntDistribution if values.whole else optuna.distributions.FloatDistribution
    return kind(values.low, values.high, log=values.log)


def _setting(values: Range | list[Any], drawn: Any) -> Any:
    """The setting that Optuna drew; fractions are rounded to three digits, which people can read."""
    if isinstance(values, list):
        return values[drawn]
    return drawn if values.whole else min(max(float(f"{drawn:.3g}"), values.low), values.high)


def _quality(record: Record, metric: str) -> float:
    """The best value of `metric` in the trial's curve, that of the chosen checkpoint; NaN if the curve is empty."""
    values = [point[metric] for point in record.curve if metric in point]
    return max(values) if values and record.status in SCORED else math.nan


def _size(sample: Sample) -> float:
    return max(sample.record.trial.budget.spending().values())


def _part(limit: float, share: float) -> float:
    return max(1, round(limit * share)) if isinstance(limit, int) else limit * share
