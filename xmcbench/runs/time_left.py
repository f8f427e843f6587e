"""Estimates how long a run still takes, from trials that ended and those that train now."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean

from xmcbench.runs.plan import PlannedTrial
from xmcbench.trial.record import SCORED, Record
from xmcbench.trial.run import TrialProgress
from xmcbench.trial.trial import Trial

ENOUGH = 0.1  # of a budget, spent while it was watched: less says little about the rest


@dataclass
class _Running:
    trial: Trial
    start: float
    trained: tuple[float, float] | None = None  # the time of its first step, and the share of the budget spent then
    projected: float | None = None  # seconds from start to end, once enough of the budget is spent


class TimeLeft:
    """The seconds until all trials of a plan have ended.

    A trial is expected to take as long as the same trial with another seed; otherwise as long as the trials of its
    method on the dataset; otherwise as long as all trials that trained, on average. Where none of these has ended,
    trials count that train and have spent a tenth of their budget. There is no estimate before that, nor while a trial
    takes longer than expected.
    """

    def __init__(self, plan: Sequence[PlannedTrial], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._running: dict[str, _Running] = {}  # by key
        self._seconds: dict[Hashable, list[float]] = defaultdict(list)  # of trials that ended, by what they share
        for planned in plan:
            if planned.record:
                self._learn(planned.record)

    def begin(self, trial: Trial) -> None:
        """A trial starts."""
        self._running[trial.key] = _Running(trial, self._clock())

    def progress(self, trial: Trial, progress: TrialProgress) -> None:
        """A trial advanced. While it trains, the fraction is the share of its budget; opening its data takes none."""
        running = self._running[trial.key]
        if progress.stage != "train":
            return
        now, share = self._clock(), progress.fraction
        first, spent = running.trained = running.trained or (now, share)
        if share - spent >= ENOUGH:
            running.projected = now - running.start + (now - first) * (1 - share) / (share - spent)

    def end(self, record: Record) -> None:
        """A trial ended, well or badly."""
        del self._running[record.key]
        self._learn(record)

    def seconds(self, waiting: Iterable[Trial]) -> float | None:
        """Until the running trials and then those of `waiting` have ended; None where nothing is known."""
        left = []
        for running in self._running.values():
            expected = running.projected or self._expected(running.trial)
            if expected is None or expected < (taken := self._clock() - running.start):
                return None
            left.append(expected - taken)
        expectations = [self._expected(trial) for trial in waiting]
        known = [seconds for seconds in expectations if seconds is not None]
        if len(known) < len(expectations):
            return None
        return max([(sum(left) + sum(known)) / max(1, len(left)), *left])

    def _expected(self, trial: Trial) -> float | None:
        """Seconds of a trial that has not started, or has not spent enough to tell."""
        for group in _groups(trial):
            if seconds := self._seconds.get(group):
                return fmean(seconds)
        projected = [running.projected for running in self._running.values() if running.projected]
        return fmean(projected) if projected else None

    def _learn(self, record: Record) -> None:
        if record.status not in SCORED or not (record.started and record.ended):
            return
        seconds = (datetime.fromisoformat(record.ended) - datetime.fromisoformat(record.started)).total_seconds()
        *same, all_trained = _groups(record.trial)
        for group in [*same, all_trained] if record.spent.get("steps") else same:
            self._seconds[group].append(seconds)


def _groups(trial: Trial) -> tuple[Hashable, ...]:
    """The groups of trials that a trial resembles, the most similar first. Labels differ where settings do."""
    return (trial.dataset, trial.label), (trial.dataset, trial.method, ""), "trained"
