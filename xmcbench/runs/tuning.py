"""Chooses the settings of methods by short trials, in a suite with the key `tune`. Optuna proposes samples, and its
pruner or Ray Tune's scheduler decides which of them continue.

A sample is a trial like any other: the same runner runs it and the same store keeps it, so that a rerun finds it. Its
quality is that of its best evaluation on held-out training queries; it never sees the test split. The first sample has
the settings that the suite states without tuning, if the search space contains them. The best samples are trained again
with other seeds, and the sample with the best mean is chosen. With successive halving (Li et al., 2020) a sample starts
with a part of the budget; while it is among the best, it is trained again with `reduction` times as much.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from xmcbench.errors import XMCBenchError, import_extra, shown
from xmcbench.files.atomic import atomic_write
from xmcbench.files.regular import read_regular
from xmcbench.runs.plan import Display, PlannedTrial
from xmcbench.runs.runner import Runner
from xmcbench.suite.tuning import REPEATS, Range, Tune
from xmcbench.trial.alike import code_name
from xmcbench.trial.facts import worth
from xmcbench.trial.method import build_method
from xmcbench.trial.record import SCORED, Record
from xmcbench.trial.run import derive_seed
from xmcbench.trial.trial import Trial

COSTS = ("encoder_tokens", "flops", "device_seconds", "steps", "teacher_calls")
ATTEMPTS = 100  # at a sample that differs from all before it; a small space may hold no other
Resolve = Callable[[dict[str, Any]], dict[str, Any]]  # a configuration with its defaults filled in
RunTrials = Callable[[Sequence[Trial]], Sequence[Record]]
FOLDER = "tunings"  # of journals, in the store
JOURNAL_BYTES = 50_000_000  # the largest journal that is read: thousands of samples take a few megabytes


class Sample(BaseModel):
    """A configuration that is tried: what the journal keeps of it, and the records of its trials in this run."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    settings: dict[str, Any]
    trials: list[str] = []  # keys, from the smallest budget to the largest; empty until the sample has ended
    repeats: list[str] = []  # keys of the trials with other seeds, of a finalist
    number: int = Field(0, exclude=True)
    records: list[Record] = Field([], exclude=True)
    again: list[Record] = Field([], exclude=True)  # with other seeds
    asked: Any = Field(None, exclude=True)  # Optuna's trial

    def qualities(self, metric: str) -> list[float]:
        """Its quality with the largest budget that it got, and those with other seeds; nan where it has none."""
        return [quality(record, metric) for record in (self.records[-1], *self.again)]

    def as_dict(self, metric: str) -> dict[str, Any]:
        """The sample as a record keeps it."""
        first, *again = (abs(value) if math.isfinite(value) else None for value in self.qualities(metric))
        last = self.records[-1]
        told = {"settings": self.settings, "quality": first, "trial": last.key, "budget": last.trial.budget.limits()}
        return told | ({"again": [value for value in again if value is not None]} if again else {})


class Journal(BaseModel):
    """The samples of one method on one dataset, in the order of their proposal, and the trials that each of them took.

    A tuning that was killed goes on with the same samples: how samples that run side by side finish is left to chance,
    and so is what a searcher proposes after them.
    """

    model_config = ConfigDict(extra="forbid", defer_build=True)

    samples: list[Sample] = []
    digest: str = ""  # of the samples as they were written; empty in a journal of an older xmcbench

    def own_digest(self) -> str:
        """The digest of the samples as they are."""
        return hashlib.sha256(self.model_dump_json(include={"samples"}).encode()).hexdigest()

    def ended(self, num_samples: int) -> bool:
        """Whether all samples of a tuning have ended."""
        return len(self.samples) == num_samples and all(sample.trials for sample in self.samples)

    def write(self, path: Path) -> None:
        self.digest = self.own_digest()
        with atomic_write(path) as file:
            file.write(self.model_dump_json(indent=1).encode() + b"\n")


def journal_path(store: Path, base: Trial, tune: Tune, entry: str) -> Path:
    """The journal's place in a store: it changes with everything that the samples depend on."""
    depends_on = [base.key, tune.model_dump(mode="json"), entry]
    name = hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()[:16]
    return store / FOLDER / f"{name}.json"


def read_journal(path: Path) -> Journal:
    """The journal at `path`, which is empty where nothing was proposed yet."""
    anew = "delete it to propose samples anew"
    if not path.exists():
        return Journal()
    try:
        journal = Journal.model_validate_json(read_regular(path, JOURNAL_BYTES))
    except ValidationError as problem:
        raise XMCBenchError(f"{path}: not the journal of a tuning; {anew}") from problem
    if journal.digest not in ("", journal.own_digest()):
        raise XMCBenchError(f"{path}: edited after it was written, its digest does not match its samples; {anew}")
    return journal


def choose(
    base: Trial, tune: Tune, entry: str, resolve: Resolve, run: Callable[[Search], None], journal: Path
) -> Search:
    """Tune the trial `base` of the method that the suite calls `entry`; `run` runs the samples.

    Raises XMCBenchError if no sample has a metric to choose by, and if samples are of several codes of the method.
    """
    search = Search(base, tune, entry, resolve, journal)
    run(search)
    search.check_codes()
    search.choose()
    return search


class Search:
    """The samples of one method on one dataset: Optuna proposes them, and is told how they ended."""

    best: Sample  # once it is chosen

    def __init__(self, base: Trial, tune: Tune, entry: str, resolve: Resolve, journal: Path) -> None:
        assert base.selection is not None
        self.base, self.tune = base, tune
        self.metric = tune.metric or base.selection.metric
        self._resolve, self._path, self.journal = resolve, journal, read_journal(journal)
        self._budget = tune.budget or base.budget  # the largest that a sample gets
        self._space = tune.space[entry]
        self._optuna = import_extra("optuna", "tune", "the key 'tune' of a suite")
        self._distributions = {name: _distribution(self._optuna, values) for name, values in self._space.items()}
        self._study = _study(self._optuna, tune, derive_seed(tune.seed, entry, base.dataset) % 2**32)
        self._proposed: list[Sample] = []
        for number, sample in enumerate(self.journal.samples):
            sample.number = number
        if problem := self._unfit():
            raise XMCBenchError(f"{journal}: {problem}; delete it to propose samples anew")
        untuned = {name: self._untuned(name, values) for name, values in self._space.items()}
        if None not in untuned.values():
            self._study.enqueue_trial(untuned)

    def _unfit(self) -> str:
        """Why the journal is of another tuning; empty where it is not."""
        if (count := len(self.journal.samples)) > self.tune.num_samples:
            return f"found {count} samples, expected at most {self.tune.num_samples}"
        for sample in self.journal.samples:
            where = f"sample {sample.number}"
            if sample.settings.keys() != self._space.keys():
                return f"{where} has the settings {shown(sorted(sample.settings))}, expected {sorted(self._space)}"
            for name, value in sample.settings.items():
                if not _holds(self._space[name], value):
                    return f"{where} has {name} = {shown(value)}, which the space of the suite does not hold"
        return ""

    def propose(self) -> Sample:
        """The next sample. It differs from those before as long as the space has others."""
        number, known = len(self._proposed), self.journal.samples
        asked, settings = self._ask()
        if number == len(known):
            known.append(Sample(settings=settings, number=number))
            self.journal.write(self._path)
        sample = known[number]
        if settings != sample.settings:  # of a tuning that was killed
            self._study.tell(asked, state=self._optuna.trial.TrialState.FAIL)
            drawn = {name: _drawn(self._space[name], value) for name, value in sample.settings.items()}
            self._study.enqueue_trial(drawn)
            asked = self._study.ask(self._distributions)
        sample.asked = asked
        self._proposed.append(sample)
        return sample

    def trial(self, sample: Sample, rung: int) -> Trial:
        """A sample's trial with the budget of a rung; the last rung has the whole budget."""
        share = float(self.tune.reduction) ** (rung - self.tune.rungs + 1)
        limits = {name: _part(limit, share) for name, limit in self._budget.spending().items()}
        return self.base.changed(
            held_out_only=True,
            label=f"{self.base.label}/sample-{sample.number}",
            config=self._resolve({**self.base.config, **sample.settings}),
            budget=self._budget.model_copy(update=limits),
        )

    def goes_on(self, sample: Sample, record: Record) -> bool:
        """Tell Optuna how a sample's trial ended; whether its pruner lets the sample go on, which otherwise ends."""
        value = self.report(sample, record)
        if math.isfinite(value) and len(sample.records) < self.tune.rungs and not sample.asked.should_prune():
            return True
        self.end(sample)
        return False

    def report(self, sample: Sample, record: Record) -> float:
        """Tell Optuna how a sample's trial ended; the sample's quality with the budget of that trial."""
        value = quality(record, self.metric)
        sample.asked.report(value, self.tune.reduction ** len(sample.records))
        sample.records.append(record)
        return value

    def end(self, sample: Sample) -> None:
        """Tell Optuna and the journal that a sample has ended."""
        state, value = self._optuna.trial.TrialState, quality(sample.records[-1], self.metric)
        if not math.isfinite(value):
            self._study.tell(sample.asked, state=state.FAIL)
        elif len(sample.records) < self.tune.rungs:
            self._study.tell(sample.asked, state=state.PRUNED)
        else:
            self._study.tell(sample.asked, value)
        sample.trials = [record.key for record in sample.records]
        self.journal.write(self._path)

    def ranked(self) -> list[Sample]:
        """The samples that have a quality, the best first: compared among the samples with the largest budget."""

        def rank(sample: Sample) -> tuple[float, float]:  # equals stay in the order of their proposal
            return -max(sample.records[-1].trial.budget.spending().values()), -sample.qualities(self.metric)[0]

        return sorted((sample for sample in self.journal.samples if math.isfinite(rank(sample)[1])), key=rank)

    def run_finals(self, run_trials: RunTrials) -> None:
        """Train the best samples again with other seeds, where there are several samples."""
        best = self.ranked()[: self.tune.finalists]
        if len(best) < 2:
            return
        seeds = range(self.base.seed + 1, self.base.seed + 1 + REPEATS)
        finals = [(sample, sample.records[-1].trial.changed(seed=seed)) for sample in best for seed in seeds]
        for (sample, _), record in zip(finals, run_trials([trial for _, trial in finals]), strict=True):
            sample.again.append(record)
        for sample in self.journal.samples:
            sample.repeats = [record.key for record in sample.again]
        self.journal.write(self._path)

    def check_codes(self) -> None:
        """Raise XMCBenchError where the method's code changed between samples: their order says nothing then."""
        every = (record for sample in self.journal.samples for record in (*sample.records, *sample.again))
        codes = sorted({code_name(record) for record in every if record.status in SCORED})
        if len(codes) > 1:
            raise XMCBenchError(
                f"tune: samples of {self.base.label} on {self.base.dataset} are of {' and '.join(codes)}: "
                "`xmcbench run --changed --retry` trains the older ones again"
            )

    def choose(self) -> None:
        """Choose the best sample: the best mean among those that were trained again."""
        ranked, base = self.ranked(), self.base
        if not ranked:
            raise XMCBenchError(
                f"tune: no sample of {base.label} on {base.dataset} has {self.metric} on held-out queries"
            )
        means = {sample.number: fmean(sample.qualities(self.metric)) for sample in ranked if sample.again}
        final = [sample for sample in ranked if math.isfinite(means.get(sample.number, math.nan))]
        self.best = max(final, key=lambda sample: (means[sample.number], -sample.number)) if final else ranked[0]

    def as_dict(self) -> dict[str, Any]:
        """The entry of a record: how the configuration was chosen, and what all samples spent."""
        samples = self.journal.samples
        records = {record.key: record for sample in samples for record in (*sample.records, *sample.again)}.values()
        spent = {name: sum(float(record.spent.get(name, 0)) for record in records) for name in COSTS}
        return {
            "by": f"{self.tune.searcher}, scheduler {self.tune.scheduler}",
            "metric": self.metric,
            "on": self.best.records[-1].selection_split,
            "settings": self.best.settings,
            "quality": abs(self.best.qualities(self.metric)[0]),
            "samples": [sample.as_dict(self.metric) for sample in samples],
            "spent": {name: cost for name, cost in spent.items() if cost},
        }

    def _ask(self) -> tuple[Any, dict[str, Any]]:
        before = [sample.settings for sample in self._proposed]
        for attempt in range(1, ATTEMPTS + 1):
            asked = self._study.ask(self._distributions)
            settings = {name: _setting(values, asked.params[name]) for name, values in self._space.items()}
            if attempt == ATTEMPTS or settings not in before:
                break
            self._study.tell(asked, state=self._optuna.trial.TrialState.FAIL)
        return asked, settings

    def _untuned(self, name: str, values: Range | list[Any]) -> Any:
        """What Optuna draws for the setting that the trial has without tuning; None if that is not in the space."""
        untuned = self._resolve(self.base.config)
        if isinstance(values, list):
            same = (
                position for position, value in enumerate(values) if self._resolve({**untuned, name: value}) == untuned
            )
            return next(same, None)
        value = untuned.get(name)
        return value if isinstance(value, int | float) and values.low <= value <= values.high else None


def quality(record: Record, metric: str) -> float:
    """The best value of `metric` in the trial's curve, that of the chosen checkpoint; NaN if the curve is empty.

    Where lower values are better it is the negative of the lowest one, so that more is better.
    """
    values = [worth(metric, point[metric], record.lower_is_better) for point in record.curve if metric in point]
    return max(values) if values and record.status in SCORED else math.nan


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


def _holds(values: Range | list[Any], setting: Any) -> bool:
    """Whether a space holds a setting."""
    if isinstance(values, list):
        return setting in values
    return isinstance(setting, int | float) and values.low <= setting <= values.high


def _drawn(values: Range | list[Any], setting: Any) -> Any:
    """What Optuna draws for a setting: the reverse of `_setting`."""
    return values.index(setting) if isinstance(values, list) else setting


def _part(limit: float, share: float) -> float:
    return max(1, round(limit * share)) if isinstance(limit, int) else limit * share


QUERIES = 1000  # held out for a sample
SPARE = 0.2  # of the training queries, at most


def tuned_trials(runner: Runner, run: Callable[[Runner, Search], None]) -> list[Trial]:
    """The suite's trials with chosen settings; `run` runs the samples. Each method is tuned once per dataset, for all
    its seeds.

    How the settings were chosen is noted in `runner.chosen`, from which the records are made.
    """
    suite = runner.suite
    assert suite.tune is not None
    entries = {variant.label: variant.entry for variant in suite.variants}
    tuned: dict[tuple[str, str], Search] = {}
    trials = []
    for trial in (planned.trial for planned in runner.plan()):
        entry, which = entries[trial.label], (trial.dataset, trial.label)
        if not suite.tune.space[entry]:
            trials.append(trial)
            continue
        if which not in tuned:
            base = _with_queries(trial, runner)
            journal = journal_path(runner.store.root, base, suite.tune, entry)
            tuned[which] = choose(base, suite.tune, entry, _resolver(trial), partial(run, runner), journal)
        trials.append(trial.changed(config=tuned[which].best.records[-1].trial.config))
        runner.chosen[trials[-1].key] = tuned[which].as_dict()
    return trials


def note_chosen(runner: Runner, records: Sequence[Record]) -> None:
    """Write how the configurations were chosen into the records, also into records that were in the store before."""
    for record in records:
        how = runner.chosen.get(record.key)
        if how and runner.store.record(record.key) != (noted := record.model_copy(update={"chosen": how})):
            runner.store.write_record(noted)


def run_samples(display: Display, runner: Runner, search: Search) -> None:
    """Run the samples that are not in the store yet, as many at once as the executor takes."""
    with runner.executor as executor:
        if executor.run_samples(display, runner, search):
            return
        at_once = executor.samples_at_once(runner.needs(search.base))
        run_in_order(lambda trials: runner.run(runner.plan_trials(trials), display), search, at_once)


def run_plan(runner: Runner, plan: Sequence[PlannedTrial], display: Display) -> list[Record]:
    """Tune where the suite asks for it, and run the plan; its records."""
    with runner.executor:
        if runner.suite.tune:
            plan = runner.plan_trials(tuned_trials(runner, partial(run_samples, display)))
        records = runner.run(plan, display)
    note_chosen(runner, records)
    return records


def run_in_order(run_trials: RunTrials, search: Search, at_once: int = 1) -> None:
    """Run samples in the order of their proposal, then train the best again with other seeds.

    `at_once` samples advance together: each is proposed and pruned without the results of the others. Random ones
    without halving depend on no result: all of them may run side by side.
    """
    left, going = search.tune.num_samples, list[Sample]()
    most = left if search.tune.searcher == "random" and search.tune.scheduler == "none" else at_once
    while left or going:
        fresh = min(left, most - len(going))
        left -= fresh
        going += [search.propose() for _ in range(fresh)]
        records = run_trials([search.trial(sample, len(sample.records)) for sample in going])
        going = [one for one, record in zip(going, records, strict=True) if search.goes_on(one, record)]
    search.run_finals(run_trials)


def stored_samples(runner: Runner, search: Search) -> None:
    """Take samples from the store. Raises XMCBenchError if one is missing."""
    samples, store, base = search.journal.samples, runner.store, search.base
    stored = {key: store.record(key) for sample in samples for key in (*sample.trials, *sample.repeats)}
    records = {key: record for key, record in stored.items() if record is not None}
    if not search.journal.ended(search.tune.num_samples) or len(records) < len(stored):
        raise XMCBenchError(f"{base.label} on {base.dataset} was not tuned to the end: `xmcbench run` does it")
    for sample in samples:
        sample.records = [records[key] for key in sample.trials]
        sample.again = [records[key] for key in sample.repeats]


def queries_of_sample(num_train: int) -> int:
    """The held-out queries that tell samples apart: `QUERIES`, or what small data can spare."""
    return min(QUERIES, max(1, int(SPARE * num_train)))


def _with_queries(trial: Trial, runner: Runner) -> Trial:
    """The trial with held-out queries enough to tell samples apart."""
    assert trial.selection is not None
    queries = max(trial.selection.queries, queries_of_sample(runner.cards[trial.dataset].num_train))
    return trial.changed(selection=trial.selection.model_copy(update={"queries": queries}))


def _resolver(trial: Trial) -> Resolve:
    config = type(build_method(trial)).Config
    return lambda settings: config.model_validate(settings).model_dump(mode="json")
