"""Runs the trials of a plan, as many side by side as the executor has room for, each under its lock in the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

from xmcbench.runs.executor import Executor
from xmcbench.runs.plan import Display, PlannedTrial
from xmcbench.runs.running_trial import Task
from xmcbench.runs.time_left import TimeLeft
from xmcbench.suite.resources import Needs
from xmcbench.trial.record import Record
from xmcbench.trial.run import TrialProgress
from xmcbench.trial.store import Store
from xmcbench.trial.trial import Trial

LOCK_SECONDS = 0.2  # between two looks at trials that another run holds


class Schedule:
    """The trials that wait to be started, and those that run."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        display: Display,
        needs: Callable[[Trial], Needs],
        make_task: Callable[[PlannedTrial, Callable[[TrialProgress], None]], Task],
        time_left: TimeLeft,
    ) -> None:
        self._store, self._executor, self._display = store, executor, display
        self._needs, self._make_task, self._time_left = needs, make_task, time_left
        self._waiting: list[PlannedTrial] = []
        self._running: dict[str, tuple[PlannedTrial, ExitStack]] = {}  # by key, with the trial's lock
        self._records: dict[str, Record] = {}
        self._total = 0

    def run(self, trials: Sequence[PlannedTrial]) -> dict[str, Record]:
        """Run all trials; their records by key."""
        if not trials:
            return {}
        self._waiting, self._total = list(trials), len(trials)
        with ExitStack() as locks, self._executor as executor:
            for planned in trials:
                executor.check(self._needs(planned.trial))
            announced = False
            while self._waiting or self._running:
                started = [self._start(planned, locks) for planned in list(self._waiting)]
                if self._running:
                    for record in executor.finished():
                        self._end(record)
                elif not any(started):  # another run holds every trial that is left
                    if not announced:
                        self._display.wait(self._waiting[0])
                    announced = True
                    time.sleep(LOCK_SECONDS)
        return self._records

    def _start(self, planned: PlannedTrial, locks: ExitStack) -> bool:
        """Start a trial if there is room for it and no other run holds it. False if it still waits."""
        key = planned.trial.key
        if not self._executor.has_room(self._needs(planned.trial)):
            return False
        lock = ExitStack()
        if not lock.enter_context(self._store.lock(key, wait=False)):
            return False
        locks.callback(lock.close)
        self._waiting.remove(planned)
        self._running[key] = planned, lock
        self._time_left.begin(planned.trial)
        self._display.begin(planned, self._total - len(self._waiting), self._total)
        record = self._store.record(key)
        if record is not None and record != planned.record:  # another run finished it after this run was planned
            self._end(record)
        else:
            self._executor.start(self._make_task(planned, partial(self._progress, planned)))
        return True

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
        """Tell the display how long the run still takes, where that can be estimated."""
        seconds = self._time_left.seconds(planned.trial for planned in self._waiting)
        if seconds is not None:
            self._display.expect(seconds)
