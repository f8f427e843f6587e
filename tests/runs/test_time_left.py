"""The estimate of how long a run still takes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from fakes.bench import Bench

from xmcbench.runs.plan import Action, PlannedTrial
from xmcbench.runs.progress import Lines, NotebookBars, display
from xmcbench.runs.time_left import TimeLeft
from xmcbench.trial.budget import Budget
from xmcbench.trial.record import Record, Status
from xmcbench.trial.run import TrialProgress
from xmcbench.trial.trial import Trial


def trial(label: str, method: str = "dexml", seed: int = 0) -> Trial:
    return Trial(
        label=label, method=method, distribution="xmcbench", version="1", config={"label": label}, dataset="d",
        dataset_hash="h", seed=seed, budget=Budget(steps=1),
    )  # fmt: skip


def record(of: Trial, seconds: float, steps: int = 1, status: Status = Status.OK) -> Record:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    end = start + timedelta(seconds=seconds)
    return Record(
        key=of.key, suite="s", trial=of, status=status, spent={"steps": steps}, started=start.isoformat(),
        ended=end.isoformat(),
    )  # fmt: skip


def hit(of: Trial, seconds: float, **outcome: int) -> PlannedTrial:
    return PlannedTrial(of, Action.HIT, "", record(of, seconds, **outcome))


def training(fraction: float) -> TrialProgress:
    return TrialProgress("train", fraction)


def left(known: list[PlannedTrial], waiting: list[Trial]) -> float | None:
    return TimeLeft(known).seconds(waiting)


def test_the_most_similar_trial_that_ended_tells() -> None:
    known = [
        hit(trial("a"), 10),
        hit(trial("b"), 30),
        hit(trial("o", "ova"), 80),
        hit(trial("p", "popular"), 1, steps=0),
    ]
    assert left(known, [trial("a", seed=1)]) == 10  # the same settings
    assert left(known, [trial("c")]) == 20  # the same method
    assert left(known, [trial("n", "ngame")]) == 40  # all that trained
    assert left(known, [trial("q", "popular", seed=1), trial("a", seed=1)]) == 11
    assert left(known, []) == 0


def test_no_estimate_without_anything_alike() -> None:
    baseline = hit(trial("p", "popular"), 1, steps=0)
    failed = PlannedTrial(trial("a"), Action.FAILED, "", record(trial("a"), 50, status=Status.ERROR))
    assert left([baseline, failed], [trial("a", seed=1)]) is None


def test_a_trial_that_trains_is_projected_from_its_budget() -> None:
    clock: Iterator[float] = iter([0.0, 100.0, 102.0, 102.0, 120.0, 120.0, 130.0])
    estimate, running = TimeLeft([], clock=lambda: next(clock)), trial("a")
    estimate.begin(running)  # at 0 s
    estimate.progress(running, training(0.0))  # at 100 s: it opened its data
    assert estimate.seconds([]) is None
    estimate.progress(running, TrialProgress("embed labels", 0.9))
    assert estimate.seconds([]) is None
    estimate.progress(running, training(0.1))  # at 102 s: 120 s in all
    assert estimate.seconds([trial("b")]) == pytest.approx(18 + 120)
    estimate.progress(running, training(0.5))  # at 120 s: 140 s in all
    assert estimate.seconds([trial("b")]) == pytest.approx(20 + 140)
    estimate.end(record(running, 132))
    assert estimate.seconds([trial("b")]) == 132


def test_what_a_resumed_trial_had_spent_before_took_no_time() -> None:
    clock: Iterator[float] = iter([0.0, 10.0, 30.0, 30.0])
    estimate, running = TimeLeft([], clock=lambda: next(clock)), trial("a")
    estimate.begin(running)
    estimate.progress(running, training(0.5))
    assert estimate.seconds([]) is None  # nothing was trained yet
    estimate.progress(running, training(0.7))  # 20 s for a fifth
    assert estimate.seconds([]) == pytest.approx(30)


def test_a_small_part_of_a_budget_projects_nothing() -> None:
    """A second stage reports first when much is spent, and then a little more after a long search."""
    clock: Iterator[float] = iter([0.0, 90.0, 150.0, 150.0])
    estimate, running = TimeLeft([hit(trial("a", seed=1), 400.0)], clock=lambda: next(clock)), trial("a")
    estimate.begin(running)
    estimate.progress(running, training(0.26))
    estimate.progress(running, training(0.265))
    assert estimate.seconds([]) == 250.0


def test_a_trial_that_takes_longer_than_expected_ends_the_estimate() -> None:
    clock: Iterator[float] = iter([0.0, 4.0, 10.0])
    estimate, running = TimeLeft([hit(trial("a"), 5)], clock=lambda: next(clock)), trial("a", seed=1)
    estimate.begin(running)  # at 0 s
    assert estimate.seconds([]) == 1
    assert estimate.seconds([]) is None  # at 10 s


def test_trials_side_by_side_share_the_rest() -> None:
    estimate = TimeLeft([hit(trial("a", seed=9), 10)], clock=lambda: 0.0)
    for seed in range(2):
        estimate.begin(trial("a", seed=seed))
    assert estimate.seconds([trial("a", seed=seed) for seed in range(2, 5)]) == pytest.approx(25)
    assert estimate.seconds([]) == 10  # both end together


def test_a_run_tells_how_long_it_still_takes(bench: Bench) -> None:
    bench.run(bench.suite(["fake-ok"], seeds=[0, 1, 2]))
    assert bench.heard.expected  # from the first seed on
    assert bench.heard.expected[-1] == 0


def test_a_trial_is_a_line_with_its_metric_and_what_is_left_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(lambda: 0.0)
    for number, seconds in enumerate((29.0, 600.0, 9000.0, 10.0), start=1):
        planned = PlannedTrial(trial("a", seed=number), Action.RUN)
        lines.begin(planned, number, 4)
        for stage in ("open", "train", "predict"):
            lines.progress(planned, TrialProgress(stage, 0.5))
        lines.expect(seconds)
        lines.end(planned, record(planned.trial, 10))
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 4
    assert all(line.startswith(f"[{n}/4] d/a seed {n}: ok") for n, line in enumerate(shown, start=1))
    assert [line.partition(" (run: ")[2] for line in shown] == [
        "about 30 s left)",
        "about 10 min left)",
        "about 2.5 h left)",
        "",
    ]


def test_lines_remind_of_a_trial_that_takes_long(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = 0.0
    lines, planned = Lines(lambda: seconds), PlannedTrial(trial("a"), Action.RUN)
    lines.begin(planned, 1, 1)
    lines.progress(planned, TrialProgress("open", 0.0))
    for seconds in range(200):
        if seconds == 130:
            lines.progress(planned, training(0.12))
        lines.remind()
    assert capsys.readouterr().out.splitlines() == [
        "[1/1] d/a seed 0: open   0%, after 60 s",
        "[1/1] d/a seed 0: train  12%, after 180 s",
    ]


class Shell:
    """IPython in a notebook, as far as a display asks it: it keeps what each update shows."""

    kernel = None

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.display = SimpleNamespace(display=lambda *_, **__: SimpleNamespace(update=self.update))

    def get_ipython(self) -> Shell:
        return self

    def update(self, bars: NotebookBars) -> None:
        self.shown.append(bars._repr_html_())


def test_a_notebook_shows_a_bar_for_each_running_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    shell, planned = Shell(), [PlannedTrial(trial(label), Action.RUN) for label in ("a", "<b>")]
    monkeypatch.setitem(sys.modules, "IPython", shell)
    with display() as bars:
        assert isinstance(bars, NotebookBars)
        for number, one in enumerate(planned, start=1):
            bars.begin(one, number, 2)
        bars.expect(600.0)
        bars.progress(planned[1], training(0.25))
        assert shell.shown[-1] == (
            '<pre><progress value="0.000"></progress> [1/2] d/a seed 0 run<br>'
            '<progress value="0.250"></progress> [2/2] d/&lt;b&gt; seed 0 train <br>run: about 10 min left</pre>'
        )
        first = planned[0].trial
        bars.end(planned[0], Record(key=first.key, suite="s", trial=first, status=Status.OK))
        assert shell.shown[-1].startswith('<pre>[1/2] d/a seed 0: ok<br><progress value="0.250">')


def test_a_terminal_of_ipython_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    with display() as lines:
        assert isinstance(lines, Lines)
