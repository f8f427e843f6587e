"""Plan, run, record: what becomes of the trials of a suite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

from xmcbench.data import DatasetCard, load
from xmcbench.errors import XMCBenchError
from xmcbench.execution.job import Job
from xmcbench.execution.local import run_in_subprocess
from xmcbench.execution.stages import Attempt
from xmcbench.method import Method, Progress
from xmcbench.plugins import Registry
from xmcbench.record import Failure, Record, Status
from xmcbench.store import Store
from xmcbench.suite import Suite, load_suite
from xmcbench.trial import Trial

PASSED = frozenset({Status.OK, Status.SKIPPED})


class Action(StrEnum):
    """What a run will do about a trial."""

    HIT = "hit"  # its result is in the store
    RUN = "run"
    RESUME = "resume"  # it was begun and has no outcome yet
    SKIP = "skip"  # the method does not apply to the dataset
    FAILED = "failed"  # it failed before; only --retry runs it again


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
    cache: Path
    sets: Sequence[str] = ()
    datasets: Sequence[str] = ()
    only: str = "*"
    retry: bool = False
    debug: bool = False
    command: Sequence[str] = ()


class Display(Protocol):
    """Who is told how the run is going."""

    def begin(self, step: Step, number: int, total: int) -> None: ...
    def wait(self, step: Step) -> None: ...
    def progress(self, progress: Progress) -> None: ...
    def end(self, record: Record) -> None: ...


class Runner:
    """One suite on one store."""

    def __init__(self, settings: Settings, registry: Registry) -> None:
        self.settings = settings
        self.store = Store(settings.store.absolute())
        self.suite: Suite = load_suite(
            settings.suite, registry, settings.data, sets=settings.sets, datasets=settings.datasets
        )
        self._registry = registry

    def plan(self) -> list[Step]:
        """What is to be done about each trial of the suite; nothing is run or written but prepared datasets."""
        cards = {
            name: load(name, self.settings.data, self.settings.cache, self._registry).card
            for name in self.suite.datasets
        }
        trials = self.suite.trials({name: card.content_hash for name, card in cards.items()})
        wanted = select(trials, self.settings.only)
        first = {trial.key: trial for trial in reversed(wanted)}
        return [self._step(trial, first[trial.key], cards) for trial in wanted]

    def run(self, plan: Sequence[Step], display: Display) -> list[Record]:
        """Bring every trial of the plan to an outcome; the records, in its order and under its labels."""
        records = []
        total = sum(step.action in (Action.RUN, Action.RESUME) for step in plan)
        number = 0
        for step in plan:
            if step.action in (Action.RUN, Action.RESUME):
                number += 1
                display.begin(step, number, total)
                record = self._run(step, display)
                display.end(record)
            else:
                record = self._outcome(step)
            records.append(record.model_copy(update={"trial": step.trial}))
        return records

    def _step(self, trial: Trial, first: Trial, cards: Mapping[str, DatasetCard]) -> Step:
        record = self.store.record(trial.key)
        if trial is not first:
            return Step(trial, Action.HIT, f"the same trial as {first.label}", record)
        if reason := self._method(trial).skip(cards[trial.dataset]):
            return Step(trial, Action.SKIP, reason, record)
        begun = self.store.in_flight(trial.key)
        if record is None or record.status is Status.SKIPPED:
            return Step(trial, Action.RESUME if begun else Action.RUN, "begun before" if begun else "", record)
        if record.status is Status.OK:
            return Step(trial, Action.HIT, f"run {record.ended[:10]}", record)
        if self.settings.retry:
            return Step(trial, Action.RUN, f"again after {record.status}", record)
        return Step(trial, Action.FAILED, f"{explain(record)}; --retry runs it again", record)

    def _method(self, trial: Trial) -> Method:
        found = self._registry.method(trial.method).thing
        method: Method = found(found.Config.model_validate(trial.config))
        return method

    def _outcome(self, step: Step) -> Record:
        """The record of a trial that is not to be run."""
        if step.action is Action.SKIP and (step.record is None or step.record.status is not Status.SKIPPED):
            record = Attempt(self._job(step.trial)).record(
                Status.SKIPPED, failure=Failure(type="Skipped", message=step.reason)
            )
            self.store.write_record(record)
            return record
        known = step.record or self.store.record(step.trial.key)
        assert known is not None, "a trial that is not run has a record by now"
        return known

    def _run(self, step: Step, display: Display) -> Record:
        """Carry one trial out, unless another run on this store has done so by the time its lock is free."""
        key = step.trial.key
        with ExitStack() as held:
            if not held.enter_context(self.store.lock(key, wait=False)):
                display.wait(step)
                held.enter_context(self.store.lock(key))
            record = self.store.record(key)
            if record is not None and record != step.record:
                return record
            self.store.drop_record(key)
            job = self._job(step.trial)
            self.store.write_json(key, "trial.json", job)
            if self.settings.debug:
                return Attempt(job, display.progress).perform()
            return run_in_subprocess(job, self.suite.timeout, display.progress)

    def _job(self, trial: Trial) -> Job:
        return Job(
            trial=trial,
            suite=self.suite.name,
            metrics=self.suite.metrics,
            data=self.settings.data.absolute(),
            cache=self.settings.cache.absolute(),
            store=self.store.root,
            command=list(self.settings.command),
        )


def select(trials: Sequence[Trial], only: str) -> list[Trial]:
    """The trials whose label, or `dataset/label`, is `only` or matches it as a shell pattern."""

    def wanted(trial: Trial) -> bool:
        names = (trial.label, f"{trial.dataset}/{trial.label}")
        return only in names or any(fnmatchcase(name, only) for name in names)

    found = [trial for trial in trials if wanted(trial)]
    if not found:
        labels = ", ".join(dict.fromkeys(trial.label for trial in trials))
        raise XMCBenchError(f"--only {only}: no trial matches (labels: {labels})")
    return found


def exit_code(records: Sequence[Record]) -> int:
    """0 where every trial is ok or skipped, else 1."""
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
