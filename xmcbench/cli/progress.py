"""Progress of a run: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

if TYPE_CHECKING:
    from xmcbench.run.runner import Display, Step
    from xmcbench.trial.record import Record
    from xmcbench.trial.run import TrialProgress

TENTHS = 10  # a plain line for every tenth of a stage


@contextmanager
def display() -> Iterator[Display]:
    """What shows the progress of a run on standard output."""
    if not sys.stdout.isatty():
        yield Lines()
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[note]}", markup=False), console=Console()) as bars:
        yield Bars(bars)


class Lines:
    """A line when a trial begins, at each tenth of a stage, and when it ends."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[str, int]] = {}  # stage and tenth told last of each trial that runs, by key

    def begin(self, step: Step, number: int, total: int) -> None:
        self._last[step.trial.key] = ("", -1)
        print(f"[{number}/{total}] {_name(step)}: {step.action}", flush=True)

    def wait(self, step: Step) -> None:
        print(f"  {_name(step)}: another run has it, waiting", flush=True)

    def progress(self, step: Step, progress: TrialProgress) -> None:
        now = (progress.stage, int(progress.fraction * TENTHS))
        if now != self._last[step.trial.key]:
            self._last[step.trial.key] = now
            told = f"{progress.stage} {progress.fraction:4.0%} {_figures(progress)}".rstrip()
            print(f"  {self._which(step)}{told}", flush=True)

    def end(self, step: Step, record: Record) -> None:
        print(f"  {self._which(step)}{_outcome(record)}", flush=True)
        del self._last[step.trial.key]

    def _which(self, step: Step) -> str:
        """The name of the trial, where several run."""
        return f"{_name(step)}: " if len(self._last) > 1 else ""


class Bars:
    """A bar for each trial that runs; a trial that ended stays as a line above them."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, tuple[TaskID, str]] = {}  # of the trials that run, by key

    def begin(self, step: Step, number: int, total: int) -> None:
        name = f"[{number}/{total}] {_name(step)}"
        task = self._bars.add_task(name, total=1.0, note=str(step.action))
        self._tasks[step.trial.key] = task, name

    def wait(self, step: Step) -> None:
        self._bars.console.print(Text(f"{_name(step)}: another run has it, waiting"))

    def progress(self, step: Step, progress: TrialProgress) -> None:
        task, _ = self._tasks[step.trial.key]
        self._bars.update(task, completed=progress.fraction, note=f"{progress.stage} {_figures(progress)}")

    def end(self, step: Step, record: Record) -> None:
        task, name = self._tasks.pop(step.trial.key)
        self._bars.remove_task(task)
        self._bars.console.print(Text(f"{name}: {_outcome(record)}"))


def _name(step: Step) -> str:
    return f"{step.trial.dataset}/{step.trial.label} seed {step.trial.seed}"


def _figures(progress: TrialProgress) -> str:
    return " ".join(f"{name}={value:.4g}" for name, value in progress.metrics.items())


def _outcome(record: Record) -> str:
    """How it ended and, for a failure, where the log is."""
    from xmcbench.run.runner import explain

    return explain(record) + (f" (log: trials/{record.key}/log.txt)" if record.failure else "")
