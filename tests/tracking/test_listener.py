"""Trackers hear of a run in its order, and nothing they do harms it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from fakes.bench import Bench, Heard

from xmcbench.runs.progress import tracked
from xmcbench.tracking import Tracker, tracker
from xmcbench.trial.record import Record, Status
from xmcbench.trial.run import TrialProgress
from xmcbench.trial.trial import Trial

from .scripted import play


class Diary(Tracker):
    """Writes down what it is told."""

    name = "diary"
    summary = "a list"

    def __init__(self, store: Path) -> None:
        super().__init__(store)
        self.told: list[tuple[str, Any]] = []

    def begin(self, trial: Trial) -> None:
        self.told.append(("begin", trial.label))

    def step(self, trial: Trial, progress: TrialProgress) -> None:
        self.told.append(("step", (trial.label, progress)))

    def evaluation(self, trial: Trial, point: Mapping[str, float]) -> None:
        self.told.append(("evaluation", (trial.label, dict(point))))

    def end(self, trial: Trial, record: Record) -> None:
        self.told.append(("end", (trial.label, record)))

    def close(self) -> None:
        self.told.append(("close", None))


class Broken(Diary):
    """Fails at the event that its name says."""

    def __init__(self, store: Path, at: str) -> None:
        super().__init__(store)
        self.name = f"broken-{at}"
        setattr(self, at, self._fail)

    def _fail(self, *_: Any) -> None:
        self.told.append(("failed", None))
        raise RuntimeError("no\nserver")


def test_a_tracker_hears_begin_steps_evaluations_and_end_of_each_trial(bench: Bench) -> None:
    suite = bench.suite(["fake-ok", "fake-crash"], selection={"queries": 5})
    diary, broken = Diary(bench.store.root), Broken(bench.store.root, "step")
    runner = bench.runner(suite)
    with tracked(Heard(), [broken, diary]) as told:
        records = {record.trial.label: record for record in runner.run(runner.plan(), told)}
    assert [record.status for record in records.values()] == [Status.OK, Status.ERROR]
    assert diary.told[-1] == ("close", None)
    for label, record in records.items():
        own = [(event, facts) for event, facts in diary.told if facts == label or (facts and facts[0] == label)]
        assert own[0] == ("begin", label)
        assert own[-1] == ("end", (label, record))
        steps = [facts[1] for event, facts in own if event == "step"]
        assert "fit" in {step.stage for step in steps}
    points = [facts for event, facts in diary.told if event == "evaluation"]
    assert points == [("ok", point) for point in records["ok"].curve]
    (point,) = map(tracker.Point.of, records["ok"].curve)
    assert {*point.metrics} == {name for name in point if "@" in name}
    fields = ("fraction", "steps", "encoder_tokens", "flops", "device_seconds")
    assert [getattr(point, name) for name in fields] == [point.get(name) for name in fields]
    assert len(points) == 1
    (trained,) = (f[1] for e, f in diary.told if e == "step" and f[0] == "ok" and f[1].stage == "train")
    assert trained.metrics == {"loss": 0.5}
    assert trained.spent["steps"] == 5


@pytest.mark.parametrize("at", ["begin", "step", "evaluation", "end", "close"])
def test_a_tracker_that_fails_is_one_warning_and_the_others_hear_everything(
    bench: Bench, capsys: pytest.CaptureFixture[str], at: str
) -> None:
    broken, diary, alone = Broken(bench.root, at), Diary(bench.root), Diary(bench.root)
    play(bench, [broken, diary])
    warnings = capsys.readouterr().err.splitlines()
    assert warnings == [
        f"warning: tracker 'broken-{at}' failed and receives no further events: RuntimeError: no server"
    ]
    assert [event for event, _ in broken.told].count("failed") == 1
    play(bench, [alone])
    assert diary.told == alone.told
    assert [event for event, _ in diary.told] == [
        *("begin", "step", "step", "evaluation", "end"),
        *("begin", "step", "end"),
        "close",
    ]


def test_a_tracker_that_hangs_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    never, warnings = Event(), []
    hanging = Diary(Path())
    hanging.begin = lambda _: never.wait(20)  # type: ignore[method-assign, assignment]
    monkeypatch.setattr(tracker, "QUEUE_SIZE", 3)
    listening = tracker.Listener(hanging, warnings.append)
    for _ in range(8):
        listening.send("begin", None)
    listening.close(seconds=0.1)
    never.set()
    assert "did not finish within 0.1 seconds" in warnings[0]
    assert "missed" in warnings[1]


def test_without_trackers_the_display_is_as_it_was() -> None:
    display = Heard()
    with tracked(display, []) as told:
        assert told is display
