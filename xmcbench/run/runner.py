"""Plan, run, record: what becomes of the trials of a suite."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

from xmcbench.data import DatasetCard, load
from xmcbench.data.prepared import default_cache_dir
from xmcbench.errors import XMCBenchError
from xmcbench.plugins.registry import registry
from xmcbench.run.attempt import Attempt
from xmcbench.run.executor import Executor, InProcess, Task
from xmcbench.run.job import Job
from xmcbench.run.local import LocalExecutor
from xmcbench.suite.resources import Needs, Share
from xmcbench.suite.suite import Suite, load_suite
from xmcbench.trial.method import Method
from xmcbench.trial.record import Failure, Record, Status
from xmcbench.trial.run import TrialProgress
from xmcbench.trial.store import Store
from xmcbench.trial.trial import Trial

PASSED = frozenset({Status.OK, Status.SKIPPED, Status.TOO_LARGE})
LOCK_SECONDS = 0.2  # between two looks at trials that another run holds


class Action(StrEnum):
    """What a run will do about a trial."""

    HIT = "hit"  # its result is in the store
    RUN = "run"
    RESUME = "resume"  # it was begun and has no outcome yet
    SKIP = "skip"  # the method does not apply to the dataset
    TOO_LARGE = "too large"  # a worker would need more memory than the budget allows it
    FAILED = "failed"  # it failed before; only --retry runs it again


OUTCOMES = {Action.SKIP: (Status.SKIPPED, "Skipped"), Action.TOO_LARGE: (Status.TOO_LARGE, "TooLarge")}


@dataclass(frozen=True)
class Step:
    """A trial and what is to be done about it."""

    trial: Trial
    action: Action
    reason: str = ""
    record: Record | None = None  # the outcome that is in the store


@dataclass(frozen=True)
class Settings:
    """How a suite is to be run: everything `xmcbench run` was told."""

    suite: Path
    data: Path
    store: Path
    cache: Path = field(default_factory=default_cache_dir)  # of prepared datasets
    sets: Sequence[str] = ()
    datasets: Sequence[str] = ()
    only: str = "*"
    retry: bool = False
    debug: bool = False
    encoder: str | None = None  # in place of the suite's
    executor: Executor | None = None  # None: subprocesses of this machine
    share: Share = field(default_factory=Share)  # of machine or cluster, for each trial; comes before the suite's
    command: Sequence[str] = ()


class Display(Protocol):
    """Who is told how the run is going. Trials may run side by side: each call says which it is about."""

    def begin(self, step: Step, number: int, total: int) -> None: ...
    def wait(self, step: Step) -> None: ...
    def progress(self, step: Step, progress: TrialProgress) -> None: ...
    def end(self, step: Step, record: Record) -> None: ...


class Runner:
    """One suite on one store."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.store = Store(settings.store.absolute())
        self.suite: Suite = load_suite(
            settings.suite,
            settings.data,
            sets=settings.sets,
            datasets=settings.datasets,
            encoder=settings.encoder,
        )
        self.chosen: dict[str, dict[str, Any]] = {}  # how tuning chose the configurations of trials, by key

    def plan(self) -> list[Step]:
        """What is to be done about each trial of the suite; nothing is run or written but prepared datasets."""
        trials = self.suite.trials({name: card.content_hash for name, card in self.cards.items()})
        return self.steps(select(trials, self.settings.only))

    @cached_property
    def cards(self) -> dict[str, DatasetCard]:
        """The cards of the suite's datasets, by name."""
        settings = self.settings
        return {name: load(name, settings.data, settings.cache).card for name in self.suite.datasets}

    def steps(self, trials: Sequence[Trial]) -> list[Step]:
        """What is to be done about each of these trials, of datasets of the suite."""
        first = {trial.key: trial for trial in reversed(trials)}
        return [self._step(trial, first[trial.key], self.cards) for trial in trials]

    def run(self, plan: Sequence[Step], display: Display) -> list[Record]:
        """Bring every trial of the plan to an outcome; the records, in its order and under its labels."""
        todo = [step for step in plan if step.action in (Action.RUN, Action.RESUME)]
        ran = _Floor(self, todo, display).run()
        records = (ran.get(step.trial.key) or self._outcome(step) for step in plan)
        return [record.model_copy(update={"trial": step.trial}) for step, record in zip(plan, records, strict=True)]

    def _step(self, trial: Trial, first: Trial, cards: Mapping[str, DatasetCard]) -> Step:
        record = self.store.record(trial.key)
        if trial is not first:
            return Step(trial, Action.HIT, f"the same trial as {first.label}", record)
        if reason := self.method(trial).skip(cards[trial.dataset]):
            return Step(trial, Action.SKIP, reason, record)
        ended = record if record is not None and record.status is not Status.SKIPPED else None
        if ended and ended.status is Status.OK:
            return Step(trial, Action.HIT, f"run {ended.ended[:10]}", record)
        if ended and not self.settings.retry:
            if ended.status is Status.TOO_LARGE and ended.failure:
                return Step(trial, Action.TOO_LARGE, ended.failure.message, record)
            return Step(trial, Action.FAILED, f"{explain(ended)}; --retry runs it again", record)
        if reason := self._too_large(trial):
            return Step(trial, Action.TOO_LARGE, reason, record)
        if ended:
            return Step(trial, Action.RUN, f"again after {ended.status}", record)
        begun = self.store.in_flight(trial.key)
        return Step(trial, Action.RESUME if begun else Action.RUN, "begun before" if begun else "", record)

    def method(self, trial: Trial) -> Method:
        """The trial's method with its settings, not fitted."""
        found = registry().method(trial.method).thing
        method: Method = found(found.Config.model_validate(trial.config))
        return method

    def _too_large(self, trial: Trial) -> str | None:
        """Why a worker of this trial would need more memory than its budget allows, or None."""
        if trial.budget.peak_bytes is None:
            return None
        from xmcbench.engine.planning.limits import predicted_too_large  # which imports torch

        settings, workers = self.settings, self.needs(trial).workers
        return predicted_too_large(trial, settings.data, settings.cache, workers)

    def _outcome(self, step: Step) -> Record:
        """The record of a trial that is not to be run."""
        status, kind = OUTCOMES.get(step.action, (None, ""))
        if status and (step.record is None or step.record.status is not status):
            record = Attempt(self._job(step.trial)).record(status, failure=Failure(type=kind, message=step.reason))
            self.store.write_record(record)
            return record
        known = step.record or self.store.record(step.trial.key)
        assert known is not None, "a trial that is not run has a record by now"
        return known

    def needs(self, trial: Trial) -> Needs:
        """What a trial may take; a method that knows nothing of workers has one."""
        needs = self.suite.resources.of(trial, self.settings.share)
        return needs if registry().method(trial.method).thing.many_workers else needs.alone

    def task(self, step: Step, display: Display) -> Task:
        """The trial, ready to be started: an old outcome is forgotten, and what is asked is written down."""
        job = self._job(step.trial)
        self.store.drop_record(step.trial.key)
        self.store.write_json(step.trial.key, "trial.json", job)
        return Task(job, self.needs(step.trial), self.suite.timeout, partial(display.progress, step))

    def _job(self, trial: Trial) -> Job:
        return Job(
            trial=trial,
            suite=self.suite.name,
            metrics=self.suite.metrics,
            data=self.settings.data.absolute(),
            cache=self.settings.cache.absolute(),
            store=self.store.root,
            chosen=self.chosen.get(trial.key, {}),
            command=list(self.settings.command),
        )


class _Floor:
    """The trials of a run that have no outcome yet: those that wait, and those that run while their locks are held."""

    def __init__(self, runner: Runner, todo: Sequence[Step], display: Display) -> None:
        settings = runner.settings
        self._runner, self._todo, self._display = runner, todo, display
        self._executor = settings.executor or (InProcess() if settings.debug else LocalExecutor())
        self._waiting = list(todo)
        self._running: dict[str, tuple[Step, ExitStack]] = {}
        self._records: dict[str, Record] = {}

    def run(self) -> dict[str, Record]:
        """Carry all out, as many side by side as there is room for; the records by key."""
        if not self._todo:
            return {}
        with ExitStack() as locks, self._executor as executor:
            for step in self._todo:
                executor.check(self._runner.needs(step.trial))
            told = False
            while self._waiting or self._running:
                begun = [self._begin(step, locks) for step in list(self._waiting)]
                if self._running:
                    for record in executor.ended():
                        self._end(record)
                elif not any(begun):  # another run has all that is left
                    if not told:
                        self._display.wait(self._waiting[0])
                    told = True
                    time.sleep(LOCK_SECONDS)
        return self._records

    def _begin(self, step: Step, locks: ExitStack) -> bool:
        """Start a trial if there is room for it and no other run has it; whether it waits no more."""
        key, store = step.trial.key, self._runner.store
        if not self._executor.takes(self._runner.needs(step.trial)):
            return False
        lock = ExitStack()
        if not lock.enter_context(store.lock(key, wait=False)):
            return False
        locks.callback(lock.close)
        self._waiting.remove(step)
        self._running[key] = step, lock
        self._display.begin(step, len(self._todo) - len(self._waiting), len(self._todo))
        record = store.record(key)
        if record is not None and record != step.record:  # another run has had it since the plan was made
            self._end(record)
        else:
            self._executor.start(self._runner.task(step, self._display))
        return True

    def _end(self, record: Record) -> None:
        step, lock = self._running.pop(record.key)
        lock.close()
        self._records[record.key] = record
        self._display.end(step, record)


def select(trials: Sequence[Trial], only: str) -> list[Trial]:
    """The trials whose label, or `dataset/label`, is `only` or matches it as a shell pattern."""
    found = [trial for trial in trials if trial.matches(only)]
    if not found:
        labels = ", ".join(dict.fromkeys(trial.label for trial in trials))
        raise XMCBenchError(f"--only {only}: no trial matches (labels: {labels})")
    return found


def exit_code(records: Sequence[Record]) -> int:
    """0 where every trial is ok, skipped or too large for its budget, else 1."""
    return 0 if all(record.status in PASSED for record in records) else 1


def explain(record: Record) -> str:
    """How a trial ended, in a line: its status, and why where it is not ok."""
    if record.failure:
        return f"{record.status}: {record.failure.message.splitlines()[0]}"
    if record.status is not Status.OVER_BUDGET:
        return str(record.status)
    limits = record.trial.budget.limits().items()
    over = [f"{name} {record.spent[name]:g} of {limit:g}" for name, limit in limits if record.spent[name] > limit]
    return f"{record.status}: {', '.join(over)}"
