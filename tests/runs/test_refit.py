"""`refit`: held-out queries choose how long to train, and the model is trained on all training queries."""

from __future__ import annotations

from typing import Any

import pytest
from commands import call
from fakes.bench import Bench

from xmcbench.data import TrainingData
from xmcbench.plugins.registry import registry
from xmcbench.trial.record import Record, Status
from xmcbench.trial.run import Run
from xmcbench.trial.trial import Selection

SELECTION = {"queries": 5, "metric": "P@1"}
Fits = list[tuple[int, int | None, bool]]


@pytest.fixture
def fits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Fits:  # noqa: ARG001
    """What each fit of `fake-ok` got: rows, steps, and whether queries were held out. The best evaluation is early."""
    thing, seen = registry().method("fake-ok").thing, Fits()
    own = thing.fit

    def fit(self: Any, train: TrainingData, run: Run) -> None:
        seen.append((len(train.texts), run.budget.steps, run.held_out is not None))
        own(self, train, run)
        if run.held_out is not None:
            run.log.curve[:] = [{"fraction": share, "P@1": value} for share, value in ((0.2, 0.5), (1.0, 0.1))]
        (run.checkpoint / "weights").write_text("of this training")

    monkeypatch.setattr(thing, "fit", fit)
    return seen


def run(bench: Bench, selection: dict[str, Any], **more: Any) -> Record:
    return bench.run(bench.suite(["fake-ok"], budget={"steps": 10}, selection=selection), debug=True, **more)["ok"]


def test_the_model_sees_all_queries_for_as_long_as_was_best(bench: Bench, fits: Fits) -> None:
    record = run(bench, SELECTION | {"refit": True})
    assert record.status is Status.OK, record.failure
    assert fits == [(25, 10, True), (30, 2, False)]
    assert record.spent["steps"] == 2
    assert record.spent["choice"]["steps"] == 10
    assert record.spent["chosen_at"] == record.curve[0]["fraction"] == 0.2
    assert record.metrics
    plain = run(bench, SELECTION)
    assert fits[2:] == [(25, 10, True)]
    assert plain.key != record.key
    assert not {"choice", "chosen_at"} & plain.spent.keys()


def test_it_is_shown(bench: Bench, fits: Fits, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: ARG001
    record = run(bench, SELECTION | {"refit": True})
    assert call("show", record.key, "--all", "--store", bench.root / "results") == 0
    assert "then trained anew on all training queries with 20% of the budget" in capsys.readouterr().out


def test_a_failure_of_the_second_training_does_not_repeat_the_first(
    bench: Bench, fits: Fits, monkeypatch: pytest.MonkeyPatch
) -> None:
    thing = registry().method("fake-ok").thing
    whole = thing.fit

    def fit(self: Any, train: TrainingData, run: Run) -> None:
        if len(fits) == 1:
            assert [path.name for path in run.checkpoint.iterdir()] == ["length.json"], "nothing of the first is left"
            fits.append((0, 0, False))
            raise KeyboardInterrupt
        whole(self, train, run)

    monkeypatch.setattr(thing, "fit", fit)
    with pytest.raises(KeyboardInterrupt):
        run(bench, SELECTION | {"refit": True})
    record = run(bench, SELECTION | {"refit": True})
    assert fits == [(25, 10, True), (0, 0, False), (30, 2, False)]
    assert record.spent["choice"]["steps"] == 10


def test_keys_of_selections_without_it_stay() -> None:
    assert "refit" not in Selection(queries=5).model_dump()
    assert Selection(queries=5, refit=True).model_dump()["refit"] is True
