"""Plans the trials of a suite and runs those that the store does not hold yet."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xmcbench.data.dataset import DatasetCard
from xmcbench.data.extent import Extent, extent
from xmcbench.data.prepared import default_cache_dir, load_card
from xmcbench.errors import XMCBenchError, shown
from xmcbench.errors.secrets import redacted
from xmcbench.files.pretrained import UnfitModelError
from xmcbench.plugins.registry import calling, registry
from xmcbench.runs.executor import Executor, InProcess, Task, ThisProcess
from xmcbench.runs.gpus import visible_gpus
from xmcbench.runs.job import Job
from xmcbench.runs.local import LocalExecutor
from xmcbench.runs.plan import Action, Display, PlannedTrial, explain, select
from xmcbench.runs.side_by_side import at_once
from xmcbench.runs.time_left import TimeLeft
from xmcbench.suite.resources import Needs, Share
from xmcbench.suite.suite import Suite, load_suite
from xmcbench.teachers.costs import teachers_of
from xmcbench.trial.budget import PassTooLargeError
from xmcbench.trial.method import build_method
from xmcbench.trial.provenance import CHANGED, OLDER_FORM, plugin_code, plugin_digest
from xmcbench.trial.record import Failure, Record, Status
from xmcbench.trial.run import TrialProgress, secret
from xmcbench.trial.store import Store
from xmcbench.trial.trial import Trial

if TYPE_CHECKING:
    from xmcbench.engine.planning.trials import TrialPlan

_log = logging.getLogger(__name__)
LARGE_DATASET = 100_000  # queries or labels
LOCK_SECONDS = 0.2  # between two looks at trials that another run holds
# The records of trials that are not run: status, and type of the failure.
OUTCOMES = {Action.SKIP: (Status.SKIPPED, "Skipped"), Action.TOO_LARGE: (Status.TOO_LARGE, "TooLarge")}


@dataclass(frozen=True)
class Settings:
    """The settings of a run: the options of `xmcbench run`."""

    suite: Path
    data: Path
    store: Path
    cache: Path = field(default_factory=default_cache_dir)  # of prepared datasets
    sets: Sequence[str] = ()
    datasets: Sequence[str] = ()
    only: Sequence[str] = ()
    retry: bool = False
    changed: bool = False  # train again where the plugin's code changed and its version did not
    debug: bool = False
    encoder: str | None = None  # in place of the suite's
    allow: bool = False  # encoders whose weights are missing or do not fit
    executor: Executor | None = None  # None: subprocesses of this machine
    parallel: int | None = None  # trials at once in subprocesses of this machine; None: one, or one for each GPU
    share: Share = field(default_factory=Share)  # resources of each trial; overrides the suite's
    command: Sequence[str] = ()


class Runner:
    """Runs one suite on one store."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.store = Store(settings.store.absolute())
        self.suite: Suite = load_suite(
            settings.suite,
            settings.data,
            sets=settings.sets,
            datasets=settings.datasets,
            encoder=settings.encoder,
            allow=settings.allow,
        )
        self.chosen: dict[str, dict[str, Any]] = {}  # how tuning chose the configurations of trials, by key
        self._plans: dict[str, TrialPlan | None] = {}  # of the trials that were planned, by key

    def plan(self) -> list[PlannedTrial]:
        """The plan of the suite's trials. Runs nothing, and writes nothing but prepared datasets."""
        return self.plan_trials(select(self.trials(), self.settings.only))

    def trials(self) -> list[Trial]:
        """All trials of the suite, with the settings that follow from data and budget."""
        return self.suite.trials({name: card.content_hash for name, card in self.cards.items()}, self.extents)

    @cached_property
    def extents(self) -> dict[str, Extent | None]:
        """The sizes of the suite's datasets, by name."""
        settings = self.settings
        return {name: extent(name, settings.data, settings.cache) for name in self.suite.datasets}

    @cached_property
    def cards(self) -> dict[str, DatasetCard]:
        """The cards of the suite's datasets, by name."""
        settings = self.settings
        return {name: load_card(name, settings.data, settings.cache) for name in self.suite.datasets}

    def plan_trials(self, trials: Sequence[Trial]) -> list[PlannedTrial]:
        """The plan of `trials`, which are on datasets of the suite."""
        clocked, parallel = [trial.label for trial in trials if _clocked(trial)], self.settings.parallel or 1
        if parallel > 1 and clocked:
            raise XMCBenchError(
                f"--parallel {parallel}: the budget of {clocked[0]} limits device_seconds, and trials "
                "side by side slow each other down; expected another limit"
            )
        first = {trial.key: trial for trial in reversed(trials)}
        return [self._plan_trial(trial, first[trial.key]) for trial in trials]

    def run(self, plan: Sequence[PlannedTrial], display: Display) -> list[Record]:
        """Run the trials of the plan that need it; the records of all, in the plan's order and under its labels."""
        finished = _Schedule(self, plan, display).run()
        records = (finished.get(planned.trial.key) or self.outcome(planned) for planned in plan)
        return [
            record.model_copy(update={"trial": planned.trial}) for planned, record in zip(plan, records, strict=True)
        ]

    @cached_property
    def executor(self) -> Executor:
        """Runs the trials: on this machine, where the settings name no other. A `with` block keeps what it started."""
        if self.settings.executor:
            return self.settings.executor
        if self.settings.debug:
            return InProcess()
        if any(variant.method.thing in registry().sources for variant in self.suite.variants):
            return ThisProcess()  # no other process can import a class of this one
        return LocalExecutor(self.parallel, self.gpus)

    @cached_property
    def gpus(self) -> list[str]:
        """The GPUs of this machine."""
        return visible_gpus()

    @cached_property
    def parallel(self) -> int:
        """Trials at once in subprocesses of this machine."""
        return self._parallel[0]

    @property
    def why_parallel(self) -> str:
        """Why so many trials run at once, where the suite leaves the number to this machine; else empty."""
        return self._parallel[1]

    @cached_property
    def _parallel(self) -> tuple[int, str]:
        """Where the settings say no number, one for each GPU, or what the suite's `resources` say.

        But one where a budget limits seconds, which trials side by side would share.
        """
        if self.settings.parallel or self.settings.debug or self.settings.executor:
            return self.settings.parallel or 1, ""
        trials, of_samples = self.trials(), self.suite.tune.budget if self.suite.tune else None
        if (of_samples is not None and of_samples.device_seconds is not None) or any(map(_clocked, trials)):
            return 1, ""
        if self.gpus or self.suite.resources.parallel != "auto":
            return max(1, len(self.gpus)), ""
        selected = select(trials, self.settings.only)
        first = {(trial.dataset, trial.label): trial for trial in reversed(selected)}
        return at_once(len(selected), map(self._needed, first.values()))

    def _needed(self, trial: Trial) -> float | None:
        """The bytes of memory that all workers of a trial are predicted to need; None if it cannot be planned."""
        with suppress(PassTooLargeError):  # that will be its failure
            if plan := self._predicted(trial):
                return plan.workers * plan.memory.total
        return None

    def _plan_trial(self, trial: Trial, first: Trial) -> PlannedTrial:
        record = self.store.record(trial.key)
        if trial is not first:
            return PlannedTrial(trial, Action.HIT, f"the same trial as {first.label}", record)
        if reason := build_method(trial).skip(self.cards[trial.dataset]):
            return PlannedTrial(trial, Action.SKIP, reason, record)
        ended = record if record is not None and record.status is not Status.SKIPPED else None
        if ended and ended.status is Status.OK:
            changed = ""
            if ended.code_digest and plugin_digest(trial) != ended.code_digest:
                changed = CHANGED if ended.code else OLDER_FORM
            if changed and self.settings.changed:
                return PlannedTrial(trial, Action.RUN, f"again: {changed}", record)
            remark = f"; {changed}: --changed trains it again" if changed else ""
            return PlannedTrial(trial, Action.HIT, f"run {ended.ended[:10]}{remark}", record)
        if ended and not self.settings.retry:
            if ended.status is Status.TOO_LARGE and ended.failure:
                return PlannedTrial(trial, Action.TOO_LARGE, ended.failure.message, record)
            return PlannedTrial(trial, Action.FAILED, f"{explain(ended)}; --retry runs it again", record)
        if reason := self._too_large(trial):
            return PlannedTrial(trial, Action.TOO_LARGE, reason, record)
        if reason := self._too_much(trial):
            return PlannedTrial(trial, Action.SKIP, reason, record)
        if ended:
            return PlannedTrial(trial, Action.RUN, f"again after {ended.status}", record)
        if self.store.in_flight(trial.key):
            return PlannedTrial(trial, Action.RESUME, "started before", record)
        older = self._records_of_any_version.get(trial.key_of_any_version)
        reason = older.older_than(trial.versions) if older else ""
        return PlannedTrial(trial, Action.RUN, f"again: {reason}" if reason else "", record)

    def to_run(self, plan: Sequence[PlannedTrial]) -> list[Trial]:
        """The trials of a plan that are run."""
        return [planned.trial for planned in plan if planned.action in (Action.RUN, Action.RESUME)]

    def predicted_failures(self, plan: Sequence[PlannedTrial]) -> list[str]:
        """A line for each trial to run that is predicted to fail on this machine.

        Raises UnfitModelError where the folder of an encoder or a teacher does not hold what its settings describe.

        It holds out all training queries, its encoder is missing, it will not end within the suite's time limit, or its
        budget of operations is spent before the first step. The last two are predicted for trials of large datasets,
        those whose memory is limited, and those whose operations are limited and begin with a pass over the data:
        planning the others would take as long as running many of them. On Ray only the first is predicted, since this
        machine trains nothing.
        """
        todo = self.to_run(plan)
        first = {(trial.dataset, trial.label): trial for trial in reversed(todo)}
        reasons = [self._predicted_failure(trial) for trial in reversed(first.values())]
        return [reason for reason in reasons if reason]

    def _predicted_failure(self, trial: Trial) -> str | None:
        where, selection = f"{trial.label} on {trial.dataset}", trial.selection
        total = self.cards[trial.dataset].num_train
        if selection is not None and selection.queries >= total:
            few = f"selection.queries is {selection.queries:,}, expected fewer than the {total:,} training queries"
            return f"{where}: fails: {few}"
        if self.settings.executor is not None:
            return None
        try:
            method = build_method(trial)
            for name in method.info.secrets:
                secret(name)  # also so that this process strips what it prints of it
            method.check_machine()
            for teacher in teachers_of(method):
                teacher.check_machine()
        except UnfitModelError:
            raise  # the user's files are not what the suite says: nothing is planned around that
        except XMCBenchError as problem:
            return f"{where}: fails: {problem}"
        if not self._worth_planning(trial):
            return None
        from xmcbench.engine.planning.trials import too_long  # imports torch

        try:
            plan = self._predicted(trial)
        except PassTooLargeError as problem:
            return f"{where}: fails: before the first step {problem}"
        return too_long(plan, self.suite.timeout) if plan else None

    def _predicted(self, trial: Trial) -> TrialPlan | None:
        """What the trial will take on this machine; None if it cannot be planned.

        Raises PassTooLargeError where its budget is spent before the first step.
        """
        from xmcbench.engine.planning.trials import plan_here  # imports torch

        if trial.key not in self._plans:
            workers = self.needs(trial).workers
            self._plans[trial.key] = plan_here(trial, self.settings.data, self.settings.cache, workers)
        return self._plans[trial.key]

    def _worth_planning(self, trial: Trial) -> bool:
        card, limits, data = self.cards[trial.dataset], trial.budget, self.extents[trial.dataset]
        if limits.peak_bytes is not None or max(card.num_train, card.num_labels) > LARGE_DATASET:
            return True
        if limits.flops is None or data is None:
            return False
        return build_method(trial).foreseen(data, limits).get("first_tokens", 0) > 0

    @cached_property
    def _records_of_any_version(self) -> dict[str, Record]:
        """The newest record of each trial in the store, of any version of the code."""
        records = sorted(self.store.records(), key=lambda record: record.ended)
        return {record.trial.key_of_any_version: record for record in records}

    def _too_large(self, trial: Trial) -> str | None:
        """Why a worker of this trial would need more memory than its budget allows, or None."""
        if trial.budget.peak_bytes is None:
            return None
        from xmcbench.engine.planning.trials import too_large  # imports torch

        with suppress(PassTooLargeError):  # that will be its failure
            plan = self._predicted(trial)
            return too_large(plan) if plan else None
        return None

    def _too_much(self, trial: Trial) -> str | None:
        """Why this machine cannot hold a trial of a large dataset, or None. On Ray other machines hold it."""
        if self.settings.executor is not None or not self._worth_planning(trial):
            return None
        from xmcbench.engine.planning.trials import too_much_here  # imports torch

        with suppress(PassTooLargeError):  # that will be its failure
            plan = self._predicted(trial)
            return too_much_here(plan, self.store.root) if plan else None
        return None

    def outcome(self, planned: PlannedTrial) -> Record:
        """The record of a trial that is not run."""
        status, kind = OUTCOMES.get(planned.action, (None, ""))
        if status and (planned.record is None or planned.record.status is not status):
            from xmcbench.runs.attempt import Attempt

            failure = Failure(type=kind, message=planned.reason)
            record = Attempt(self.job(planned.trial)).record(status, failure=failure)
            self.store.write_record(record)
            return record
        known = planned.record or self.store.record(planned.trial.key)
        assert known is not None, "a trial that is not run has a record by now"
        return known

    def needs(self, trial: Trial) -> Needs:
        """The resources of a trial on this run."""
        return self.suite.needs(trial, self.settings.share)

    def task(self, trial: Trial, report: Callable[[TrialProgress], None]) -> Task:
        """The trial as an executor takes it."""
        return Task(self.job(trial), self.needs(trial), self.suite.timeout, report)

    def job(self, trial: Trial) -> Job:
        return Job(
            trial=trial,
            suite=self.suite.name,
            metrics=self.suite.metrics,
            data=self.settings.data.absolute(),
            cache=self.settings.cache.absolute(),
            store=self.store.root,
            chosen=self.chosen.get(trial.key, {}),
            command=redacted(self.settings.command),
            plugin=plugin_code(trial),
            side_by_side=self.parallel,
        )


def _clocked(trial: Trial) -> bool:
    """Whether the trial's budget limits seconds."""
    return trial.budget.device_seconds is not None


def _calling(executor: Executor) -> AbstractContextManager[None]:
    """A block that calls a method of an executor."""
    return calling("executor", executor.name)


class _Schedule:
    """The trials of a plan that wait to be started, and those that run: as many as the executor has room for, each
    under its lock in the store.
    """

    def __init__(self, runner: Runner, plan: Sequence[PlannedTrial], display: Display) -> None:
        self._runner, self._display, self._time_left = runner, display, TimeLeft(plan)
        self._waiting = [planned for planned in plan if planned.action in (Action.RUN, Action.RESUME)]
        self._total = len(self._waiting)
        self._running: dict[str, tuple[PlannedTrial, ExitStack]] = {}  # by key, with the trial's lock
        self._records: dict[str, Record] = {}

    def run(self) -> dict[str, Record]:
        """Run all trials; their records by key."""
        if not self._waiting:
            return {}
        with ExitStack() as locks, self._runner.executor as executor:
            for planned in self._waiting:
                with _calling(executor):
                    executor.check(self._runner.needs(planned.trial))
            announced = False
            while self._waiting or self._running:
                started = [self._start(planned, locks) for planned in list(self._waiting)]
                if self._running:
                    for record in self._finished(executor):
                        self._end(record)
                elif not any(started):  # another run holds every trial that is left
                    if not announced:
                        self._display.wait(self._waiting[0])
                    announced = True
                    time.sleep(LOCK_SECONDS)
        return self._records

    def _start(self, planned: PlannedTrial, locks: ExitStack) -> bool:
        """Start a trial if there is room for it and no other run holds it. False if it still waits."""
        trial, store, executor = planned.trial, self._runner.store, self._runner.executor
        lock = ExitStack()
        with _calling(executor):
            has_room = executor.has_room(self._runner.needs(trial))
        if not has_room:
            return False
        if not lock.enter_context(store.lock(trial.key, wait=False)):
            return False
        if not self._records and not self._running and not store.lock_holds(trial.key):
            _log.warning(
                "warning: %s: the locks of this file system keep no other run out: start one run at a time", store.root
            )
        locks.callback(lock.close)
        self._waiting.remove(planned)
        self._running[trial.key] = planned, lock
        self._time_left.begin(trial)
        self._expect()
        self._display.begin(planned, self._total - len(self._waiting), self._total)
        record = store.record(trial.key)
        if record is not None and record != planned.record:  # another run finished it after this run was planned
            self._end(record)
        else:
            task = self._runner.task(trial, partial(self._progress, planned))
            store.drop_record(trial.key)
            store.write_job(trial.key, task.job)
            with _calling(executor):
                executor.start(task)
        return True

    def _finished(self, executor: Executor) -> list[Record]:
        """The records of trials that ended, each once."""
        with _calling(executor):
            records = list(executor.finished())
            if wrong := [each for each in records if not isinstance(each, Record) or each.key not in self._running]:
                raise TypeError(f"finished returned {shown(wrong[0])}, expected records of trials that were running")
        return list({record.key: record for record in records}.values())

    def _progress(self, planned: PlannedTrial, progress: TrialProgress) -> None:
        self._time_left.progress(planned.trial, progress)
        self._expect()
        self._display.progress(planned, progress)

    def _end(self, record: Record) -> None:
        planned, lock = self._running.pop(record.key)
        lock.close()
        self._records[record.key] = record
        self._time_left.end(record)
        self._display.end(planned, record)
        self._expect()

    def _expect(self) -> None:
        """Tell the display how long the run still takes."""
        self._display.expect(self._time_left.seconds(planned.trial for planned in self._waiting))
