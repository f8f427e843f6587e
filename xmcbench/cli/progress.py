"""Progress of a run: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

if TYPE_CHECKING:
    from xmcbench import method
    from xmcbench.record import Record
    from xmcbench.runner import Display, Step

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
        self._last = ("", -1)

    def begin(self, step: Step, number: int, total: int) -> None:
        self._last = ("", -1)
        print(f"[{number}/{total}] {_name(step)}: {step.action}", flush=True)

    def wait(self, step: Step) -> None:
        print(f"  {_name(step)}: another run has it, waiting", flush=True)

    def progress(self, progress: method.Progress) -> None:
        now = (progress.stage, int(progress.fraction * TENTHS))
        if now != self._last:
            self._last = now
            print(f"  {progress.stage} {progress.fraction:4.0%} {_figures(progress)}".rstrip(), flush=True)

    def end(self, record: Record) -> None:
        print(f"  {_outcome(record)}", flush=True)


class Bars:
    """A bar for the trial that runs; a trial that ended stays as a line above it."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._name = ""
        self._task = bars.add_task("", total=1.0, note="", visible=False)

    def begin(self, step: Step, number: int, total: int) -> None:
        self._name = f"[{number}/{total}] {_name(step)}"
        self._bars.reset(self._task, description=self._name, visible=True, note=str(step.action))

    def wait(self, step: Step) -> None:
        self._bars.update(self._task, note=f"another run has {_name(step)}, waiting")

    def progress(self, progress: method.Progress) -> None:
        note = f"{progress.stage} {_figures(progress)}"
        self._bars.update(self._task, completed=progress.fraction, note=note)

    def end(self, record: Record) -> None:
        self._bars.update(self._task, visible=False)
        self._bars.console.print(Text(f"{self._name}: {_outcome(record)}"))


def _name(step: Step) -> str:
    return f"{step.trial.dataset}/{step.trial.label} seed {step.trial.seed}"


def _figures(progress: method.Progress) -> str:
    return " ".join(f"{name}={value:.4g}" for name, value in progress.figures.items())


def _outcome(record: Record) -> str:
    """How it ended and, for a failure, where the log is."""
    from xmcbench.runner import explain

    return explain(record) + (f" (log: trials/{record.key}/log.txt)" if record.failure else "")
