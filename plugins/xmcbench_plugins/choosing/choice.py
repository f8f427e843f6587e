"""Chooses a method for a dataset: which ones are tried, for how long, and which is best on held-out training queries.

Each candidate is trained with its own settings first, the quickest ones before the others. The curve of its training is
read: where an early evaluation was the best one, it is trained again with a shorter schedule. Then the settings of the
best candidates are searched while there is time, and the best two of different kinds are fused. No test query is seen:
the method that is chosen is trained again on all training queries, for as long as the chosen training ran, and that
trial alone is scored on the test split.

Seconds are of the wall clock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from xmcbench.data import load
from xmcbench.engine.planning.trials import plan_here
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.calibration import Calibration
from xmcbench.evaluation.significance import Estimate, Sample, difference
from xmcbench.plugins.registry import registry
from xmcbench.runs.held_out import Judge
from xmcbench.runs.plan import Display, PlannedTrial
from xmcbench.runs.runner import Runner
from xmcbench.runs.tuning import Search, choose, journal_path, quality, run_in_order
from xmcbench.suite.expansion import Variant
from xmcbench.suite.tuning import Tune
from xmcbench.trial.budget import Budget, PassTooLargeError
from xmcbench.trial.facts import Choice, ChosenBy, chosen_share
from xmcbench.trial.method import build_method
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.record import SCORED, Record
from xmcbench.trial.run import held_out_rows
from xmcbench.trial.trial import Trial

EARLY = 0.3  # share of the budget: a best evaluation up to here asks for a shorter schedule
SMALLEST = 0.1  # share of its budget that a training gets, at least, where minutes are limited
PLANNED = 0.2  # share of the minutes within which the durations of trainings are predicted
SEARCHED = 3  # candidates whose settings are searched
AGAIN = 1.3  # times the seconds of a training that the last one, on all queries, may take
OWN = "own-settings"  # ends the name of a candidate's first training
FUSED = "fuse"  # the candidate that is made of two others


class Left(StrEnum):
    """Why a candidate was not tried."""

    SKIPPED = "skipped"  # it does not apply, or its environment is missing
    NO_TIME = "no time"
    FAILED = "failed"


@dataclass
class Candidate:
    """A method that could be chosen, with what is known of it so far."""

    label: str
    trial: Trial  # of its settings without a search, on held-out queries
    seconds: float | None  # that its training is predicted to take; None: nothing is known
    left: Left | None = None
    reason: str = ""
    records: list[Record] = field(default_factory=list)  # of its trainings, the best one first
    early: bool = False  # whether the best evaluation was early, so that a shorter schedule was tried
    parts: tuple[Candidate, ...] = ()  # of a fusion
    sample: Sample | None = None  # its metric, with replicates
    answers: Predictions | None = None  # of a fusion, for the held-out queries
    value: float = math.nan

    @property
    def best(self) -> Record:
        return self.records[0]

    @property
    def took(self) -> float:
        """The seconds of its best training, from the record's clock."""
        return sum(part.took for part in self.parts) if self.parts else seconds_of(self.best)

    @property
    def late(self) -> bool:
        """Whether the last evaluation was the best one, of several."""
        return not self.parts and len(self.best.curve) > 1 and self.share >= 1 - 1e-6

    @property
    def share(self) -> float:
        """The share of the budget after which the chosen weights were evaluated."""
        return best_share(self.best, self.trial.selection.metric if self.trial.selection else "")


@dataclass(frozen=True)
class Final:
    """The method that is trained on all training queries: its entry in a suite, and its budget."""

    entry: dict[str, Any]
    budget: Budget


@dataclass
class Chosen:
    """What was chosen, and how the others compare: the best first."""

    best: Candidate
    ranked: list[Candidate]
    metric: str
    differences: dict[str, Estimate]  # of the others from the best one, by label; below 0: worse
    final: Final
    calibration: Calibration | None  # of the best one's answers for held-out queries

    def as_dict(self) -> dict[str, Any]:
        """The entry of a record."""
        selection = self.best.trial.selection
        tried = [record for each in self.ranked for record in each.records]
        spent = sum(float(record.spent.get("device_seconds", 0.0)) for record in tried)
        return {
            "by": f"xmcbench tune, {len(self.ranked)} methods",
            "metric": self.metric,
            "on": Choice(by=ChosenBy.HELD_OUT, queries=selection.queries if selection else 0),
            "settings": self.final.entry,
            "quality": self.best.value,
            "samples": [
                {
                    "settings": {"method": record.trial.method, **record.trial.config},
                    "quality": value if math.isfinite(value := quality(record, self.metric)) else None,
                    "trial": record.key,
                    "budget": record.trial.budget.limits(),
                }
                for record in tried
            ],
            "spent": {"device_seconds": spent},
        }


def seconds_of(record: Record) -> float:
    """The seconds that a trial took, from its start to its record."""
    if not (record.started and record.ended):
        return 0.0
    return (datetime.fromisoformat(record.ended) - datetime.fromisoformat(record.started)).total_seconds()


def best_share(record: Record, metric: str) -> float:
    """The share of the budget at which the best evaluation of a training was; 1 where there was no other."""
    return chosen_share(record.curve, metric, record.spent.get("chosen_at"), record.lower_is_better)


class Choosing:
    """One choice: the candidates of a suite on its only dataset, within `minutes` where these are limited."""

    def __init__(
        self,
        runner: Runner,
        minutes: float | None = None,
        samples: int = 9,
        started: float | None = None,
    ) -> None:
        self.runner, self.samples = runner, samples
        self._start = time.monotonic() if started is None else started
        self._seconds = math.inf if minutes is None else 60 * minutes
        self._variants = {variant.label: variant for variant in runner.suite.variants}
        trials = [trial.changed(held_out_only=True, label=f"{trial.label}/{OWN}") for trial in runner.trials()]
        assert trials[0].selection is not None
        self.metric = trials[0].selection.metric
        # Methods that train no encoder come first: a prediction does not count how long a process takes to start.
        self.candidates = sorted(
            map(self._candidate, trials), key=lambda each: (not _reads_words(each), each.seconds or 0.0)
        )

    @property
    def elapsed(self) -> float:
        """The seconds since the choice began."""
        return time.monotonic() - self._start

    @property
    def left(self) -> float:
        """The seconds that are left."""
        return self._seconds - self.elapsed

    def planned_seconds(self) -> float:
        """What the candidates are predicted to take with their own settings, and the last training: about."""
        known = [each.seconds or 0.0 for each in self.candidates if each.left is None]
        return sum(known) + AGAIN * max(known, default=0.0)

    def run(self, display: Display) -> Chosen:
        """Try all candidates and choose one. Raises XMCBenchError where none has a metric to choose by."""
        self._display = display
        train = load(self.candidates[0].trial.dataset, self.runner.settings.data, self.runner.settings.cache)
        self._judge_on(train.training_data())
        for candidate in self.candidates:
            if candidate.left is None:
                self._try(candidate)
        if not (tried := self._ranked()):
            reasons = "; ".join(f"{each.label}: {each.reason}" for each in self.candidates)
            raise XMCBenchError(f"tune: no method has {self.metric} on held-out queries ({reasons})")
        for candidate in tried[:SEARCHED]:
            self._search(candidate)
        self._fuse()
        return self._choose()

    def _candidate(self, trial: Trial) -> Candidate:
        planned = self.runner.plan_trials([trial])[0]
        candidate = Candidate(trial.label.removesuffix(f"/{OWN}"), trial, self._predicted(trial))
        if planned.action == "skip":
            candidate.left, candidate.reason = Left.SKIPPED, planned.reason
        return candidate

    def _predicted(self, trial: Trial) -> float | None:
        """The seconds that a training is predicted to take on this machine; None where nothing is known."""
        runner, method = self.runner, build_method(trial)
        data = runner.extents[trial.dataset]
        if data is not None and (seconds := method.foreseen(data, trial.budget).get("device_seconds")):
            return seconds
        if self.elapsed > PLANNED * self._seconds:
            return None
        try:
            plan = plan_here(trial, runner.settings.data, runner.settings.cache, runner.needs(trial).workers)
        except PassTooLargeError:
            return None
        return plan.seconds if plan else None

    def _judge_on(self, train: Any) -> None:
        trial = self.candidates[0].trial
        assert trial.selection is not None
        rows, _ = held_out_rows(trial.selection, trial.seed, len(train.texts))
        self._judge = Judge(train, rows, [self.metric])

    def _reserve(self, training: float) -> float:
        """The seconds that stay for the last training: of a candidate that takes so long, or of the best so far."""
        ranked = self._ranked()
        return AGAIN * max(training, ranked[0].took if ranked else 0.0)

    def _try(self, candidate: Candidate) -> None:
        """Train a candidate with its own settings, and with a shorter schedule where the curve asks for it."""
        trial = candidate.trial
        needed, left = (candidate.seconds or 0.0) * (1 + AGAIN), max(0.0, self.left)
        share = 1.0 if needed <= left else math.floor(10 * left / needed) / 10
        if left <= self._reserve(0.0):
            candidate.left = Left.NO_TIME
            candidate.reason = f"the last training needs the {left / 60:.1f} minutes that are left"
            return
        if share < SMALLEST:
            candidate.left = Left.NO_TIME
            wanted = f"it needs about {needed / 60:.1f} minutes with the last training"
            candidate.reason = f"{wanted}, {left / 60:.1f} are left"
            return
        if share < 1:
            trial = self._shorter(candidate, trial, share)
        record = self._run(trial)
        if not math.isfinite(quality(record, self.metric)):
            candidate.left, candidate.reason = Left.FAILED, _why(record)
            return
        self._add(candidate, record)
        share = best_share(record, self.metric)
        if share <= EARLY and self._affordable(share * seconds_of(record)):
            candidate.early = True
            self._add(candidate, self._run(self._shorter(candidate, trial, share)))

    def _affordable(self, training: float) -> bool:
        return training + self._reserve(training) < self.left

    def _shorter(self, candidate: Candidate, trial: Trial, share: float) -> Trial:
        """The trial with a share of its budget; settings that follow the budget follow the smaller one."""
        budget = trial.budget.times(share)
        config = self._config(self._variants[candidate.label], budget)
        return trial.changed(budget=budget, config=config, label=f"{candidate.label}/shorter")

    def _config(self, variant: Variant, budget: Budget) -> dict[str, Any]:
        return replace(variant, budget=budget).config_for(self.runner.extents[self.runner.suite.datasets[0]])

    def _run(self, trial: Trial) -> Record:
        return self._run_all([trial])[0]

    def _run_all(self, trials: Sequence[Trial]) -> list[Record]:
        """Run trials that are not in the store; each leaves the time for the last training, its own or the best one."""
        runner, left = self.runner, self.left
        if left < math.inf:
            most = min(left - self._reserve(0.0), left / (1 + AGAIN))
            runner.suite = runner.suite.model_copy(update={"timeout": max(1.0, most)})
        plan: list[PlannedTrial] = runner.plan_trials(trials)
        return runner.run(plan, self._display)

    def _add(self, candidate: Candidate, record: Record) -> None:
        """Enter a training of a candidate; the best one comes first."""
        if math.isfinite(quality(record, self.metric)):
            candidate.records.append(record)
            candidate.records.sort(key=lambda each: -quality(each, self.metric))
            candidate.value = quality(candidate.best, self.metric)

    def _search(self, candidate: Candidate) -> None:
        """Search the settings of a candidate by as many samples as there is time for."""
        trial = candidate.best.trial.changed(label=candidate.label)
        space = build_method(trial).search_space(build_method(trial).config)
        points = math.prod(len(values) if isinstance(values, list) else math.inf for values in space.values())
        each = max(seconds_of(candidate.best), 1e-3)
        time_left = self.left - self._reserve(seconds_of(candidate.best))
        count = min(self.samples, points, time_left / each / SEARCHED)
        if not space or count < 2:
            return
        tune = Tune(space={candidate.label: space}, num_samples=int(count), finalists=1)
        kind = type(build_method(trial))

        def resolve(settings: dict[str, Any]) -> dict[str, Any]:
            return kind.Config.model_validate(settings).model_dump(mode="json")

        def run(search: Search) -> None:
            run_in_order(self._run_all, search)

        journal = journal_path(self.runner.store.root, trial, tune, candidate.label)
        search = choose(trial, tune, candidate.label, resolve, run, journal)
        for sample in search.journal.samples:
            if sample.records and sample.records[-1].key not in {record.key for record in candidate.records}:
                self._add(candidate, sample.records[-1])

    def _fuse(self) -> None:
        """Add the fusion of the best two candidates of different kinds, by their stored answers: nothing is trained."""
        if FUSED in self._variants or not (ranked := self._ranked()):
            return
        other = next((each for each in ranked[1:] if _reads_words(each) != _reads_words(ranked[0])), None)
        if other is None:
            return
        parts = (ranked[0], other)
        answers = self._judge.fused([self._answers(part) for part in parts], self.metric)
        fused = Candidate(FUSED, parts[0].trial, None, parts=parts, answers=answers)
        fused.sample = self._judge.sample(answers, self.metric)
        fused.value = fused.sample.mean
        self.candidates.append(fused)

    def _answers(self, candidate: Candidate) -> Predictions:
        return candidate.answers or self.runner.store.held_out(candidate.best)

    def _ranked(self) -> list[Candidate]:
        """The candidates that were tried, the best first."""
        tried = [each for each in self.candidates if math.isfinite(each.value)]
        return sorted(tried, key=lambda each: -each.value)

    def _choose(self) -> Chosen:
        """The best candidate; a fusion only where it is better than its better part beyond noise."""
        ranked = self._ranked()
        for each in ranked:
            each.sample = each.sample or self._judge.sample(self._answers(each), self.metric)
        best = ranked[0]
        if best.parts and not self._difference(best, best.parts[0]).significant:
            best = best.parts[0]
        ranked = [best, *(each for each in ranked if each is not best)]
        differences = {each.label: self._difference(each, best) for each in ranked[1:]}
        calibration = self._judge.calibration(self._answers(best))
        return Chosen(best, ranked, self.metric, differences, self._final(best), calibration)

    def _difference(self, first: Candidate, second: Candidate) -> Estimate:
        assert first.sample is not None
        assert second.sample is not None
        return difference(first.sample, second.sample)

    def _final(self, best: Candidate) -> Final:
        """What is trained on all training queries: as long as the chosen training ran until its best evaluation.

        Both parts of a fusion get the budget of the part that needed more.
        """
        if best.parts:
            parts = [self._final(part) for part in best.parts]
            share = (
                registry().method(FUSED).thing.Config.model_validate({"parts": [part.entry for part in parts]}).share
            )
            longest = max((part.budget for part in parts), key=lambda budget: sorted(budget.spending().values()))
            return Final({"method": FUSED, "parts": [part.entry for part in parts]}, longest.times(len(parts) / share))
        trial, method = best.best.trial, build_method(best.best.trial)
        used = {name: value for name, value in trial.config.items() if name not in method.config.unused()}
        budget = trial.budget.times(best.share) if best.share < 1 else trial.budget
        return Final({"method": trial.method, **used}, budget)


def _reads_words(candidate: Candidate) -> bool:
    """Whether a method compares words on processors, and trains no encoder."""
    return not build_method(candidate.trial).uses_gpu


def _why(record: Record) -> str:
    if record.failure:
        return record.failure.message.splitlines()[0]
    return "no evaluation" if record.status in SCORED else str(record.status)
