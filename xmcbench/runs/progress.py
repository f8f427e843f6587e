"""Progress of a run: bars on a terminal and in a notebook, plain lines elsewhere; trackers beside them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from xmcbench.runs.plan import Display, PlannedTrial, explain
from xmcbench.runs.terminal import Silence, echo, escaped, every_second
from xmcbench.suite.tables import ranking_metric
from xmcbench.tracking.tracker import Listener, Point, Tracker
from xmcbench.trial.record import Record
from xmcbench.trial.run import TrialProgress

PATIENCE = 60.0  # seconds until the first reminder of a trial: most trials have one line
LONGEST = 600.0  # seconds between two reminders


@contextmanager
def display() -> Iterator[Display]:
    """A display on standard output: bars on a terminal and in a notebook, else lines."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if hasattr(shell, "kernel"):  # of Jupyter
        yield NotebookBars()
        return
    if not sys.stdout.isatty():
        lines = Lines()
        with every_second(lines.remind):
            yield lines
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[note]}", markup=False), console=Console()) as bars:
        yield Bars(bars)


class Lines:
    """Prints a line when a trial ends; a trial that takes longer has reminders of its state, ever more rarely."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._running: dict[str, _Shown] = {}  # by key
        self._left = ""

    def begin(self, planned: PlannedTrial, number: int, total: int) -> None:
        name = f"[{number}/{total}] {_name(planned)}: "
        self._running[planned.trial.key] = _Shown(name, number == total, self._clock)

    def wait(self, planned: PlannedTrial) -> None:
        echo(f"{_name(planned)}: waiting for another run that holds it")

    def expect(self, seconds: float | None) -> None:
        self._left = "" if seconds is None else f" (run: {_about(seconds)} left)"

    def progress(self, planned: PlannedTrial, progress: TrialProgress) -> None:
        self._running[planned.trial.key].take(progress)

    def remind(self) -> None:
        """Print the state of each trial that has had no line for a while."""
        for shown in list(self._running.values()):
            if shown.silence.is_due():
                echo(f"{shown.name}{shown.line}, after {shown.seconds:.0f} s{self._left}")

    def end(self, planned: PlannedTrial, record: Record) -> None:
        shown = self._running.pop(planned.trial.key)
        echo(f"{shown.name}{_outcome(record)}{_found(record)}{'' if shown.last else self._left}")


class _Shown:
    """A running trial and its last state."""

    def __init__(self, name: str, last: bool, clock: Callable[[], float]) -> None:
        self.name, self.last, self._clock, self.silence = name, last, clock, Silence(clock, PATIENCE, LONGEST)
        self.line, self._began = "start", clock()

    def take(self, progress: TrialProgress) -> None:
        """Take the new state."""
        self.line = f"{progress.stage} {progress.fraction:4.0%} {_figures(progress)}".rstrip()

    @property
    def seconds(self) -> float:
        """How long the trial has run; stages take turns, so that the time in one of them would say little."""
        return self._clock() - self._began


class Bars:
    """One bar per running trial; a finished trial becomes a line above the bars."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, tuple[TaskID, str]] = {}  # of running trials, by key
        self._run = bars.add_task("run", total=None, visible=False, note="")

    def begin(self, planned: PlannedTrial, number: int, total: int) -> None:
        name = f"[{number}/{total}] {_name(planned)}"
        self._bars.update(self._run, completed=number - 1, total=total)
        task = self._bars.add_task(name, total=1.0, note=str(planned.action))
        self._tasks[planned.trial.key] = task, name
        self.draw()

    def wait(self, planned: PlannedTrial) -> None:
        self.say(f"{_name(planned)}: waiting for another run that holds it")

    def expect(self, seconds: float | None) -> None:
        note = "" if seconds is None else f"{_about(seconds)} left"
        self._bars.update(self._run, visible=True, note=note)

    def progress(self, planned: PlannedTrial, progress: TrialProgress) -> None:
        task, _ = self._tasks[planned.trial.key]
        note = f"{escaped(progress.stage)} {_figures(progress)}"
        self._bars.update(task, completed=progress.fraction, note=note)
        self.draw()

    def end(self, planned: PlannedTrial, record: Record) -> None:
        task, name = self._tasks.pop(planned.trial.key)
        self._bars.remove_task(task)
        self.say(f"{name}: {_outcome(record)}")

    def say(self, line: str) -> None:
        """Print a line above the bars."""
        self._bars.console.print(Text(line))

    def draw(self) -> None:
        """Show the bars as they are now; on a terminal, rich does so by itself."""


class NotebookBars(Bars):
    """Bars in the output of a cell, as HTML: those of rich need widgets."""

    def __init__(self) -> None:
        super().__init__(Progress(disable=True))
        self._lines: list[str] = []
        self._shown = sys.modules["IPython"].display.display(self, display_id=True)

    def say(self, line: str) -> None:
        self._lines.append(line)
        self.draw()

    def draw(self) -> None:
        self._shown.update(self)

    def __repr__(self) -> str:
        return "\n".join([*self._lines, *(f"{name} {part:.0%} {note}" for name, part, note in self._running())])

    def _repr_html_(self) -> str:
        bars = [
            f'<progress value="{part:.3f}"></progress> {escape(name)} {escape(note)}'
            for name, part, note in self._running()
        ]
        left = self._bars.tasks[0].fields["note"]
        shown = [*map(escape, self._lines), *bars, *([f"run: {left}"] if bars and left else [])]
        return f"<pre>{'<br>'.join(shown)}</pre>"

    def _running(self) -> list[tuple[str, float, str]]:
        """Name, fraction and note of each running trial."""
        return [(task.description, task.completed, task.fields["note"]) for task in self._bars.tasks[1:]]


def _name(planned: PlannedTrial) -> str:
    return escaped(f"{planned.trial.dataset}/{planned.trial.label} seed {planned.trial.seed}")


def _about(seconds: float) -> str:
    """A duration that is an estimate, in words."""
    if seconds < 90:
        return f"about {max(10, round(seconds, -1)):.0f} s"
    minutes = round(seconds / 60)
    return f"about {minutes} min" if minutes < 90 else f"about {seconds / 3600:.1f} h"


def _figures(progress: TrialProgress) -> str:
    return escaped(" ".join(f"{name}={value:.4g}" for name, value in progress.metrics.items()))


def _outcome(record: Record) -> str:
    """The status of the trial and, for a failure, the path of its log."""
    return escaped(explain(record)) + (f" (log: trials/{record.key}/log.txt)" if record.failure else "")


def _found(record: Record) -> str:
    """The metric of a scored trial that ranks, and the seconds that its budget covers."""
    seconds = record.spent.get("device_seconds")
    parts = [f"{name} {100 * record.metrics[name]:.2f}" for name in [ranking_metric(record.metrics)] if name]
    return "".join(
        f", {part}" for part in [*parts, *([f"{seconds:.0f} s"] if seconds and seconds >= 1 and parts else [])]
    )


@contextmanager
def tracked(display: Display, trackers: Sequence[Tracker]) -> Iterator[Display]:
    """A display that forwards its events to `trackers` too. They are closed at the end of the block."""
    listeners = [Listener(tracker) for tracker in trackers]
    try:
        yield TrackedDisplay(display, listeners) if listeners else display
    finally:
        for listener in listeners:
            listener.close()


class TrackedDisplay:
    """A display whose events also reach the listeners."""

    def __init__(self, display: Display, listeners: Sequence[Listener]) -> None:
        self._display, self._listeners = display, listeners
        self.wait, self.expect = display.wait, display.expect

    def begin(self, planned: PlannedTrial, number: int, total: int) -> None:
        self._send("begin", planned.trial)
        self._display.begin(planned, number, total)

    def progress(self, planned: PlannedTrial, progress: TrialProgress) -> None:
        self._send("step", planned.trial, progress)
        for point in progress.evaluations:
            self._send("evaluation", planned.trial, Point.of(point))
        self._display.progress(planned, progress)

    def end(self, planned: PlannedTrial, record: Record) -> None:
        self._send("end", planned.trial, record)
        self._display.end(planned, record)

    def _send(self, event: str, *arguments: Any) -> None:
        for listener in self._listeners:
            listener.send(event, *arguments)
