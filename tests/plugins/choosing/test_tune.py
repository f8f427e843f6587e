"""`xmcbench tune`: which method a dataset needs, chosen on held-out training queries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import call
from fakes.bench import Bench

from xmcbench.data import TrainingData, load
from xmcbench.evaluation import drop_ignored
from xmcbench.evaluation.calibration import fit_calibration
from xmcbench.plugins.registry import registry
from xmcbench.runs.executor import InProcess
from xmcbench.runs.runner import Runner
from xmcbench.runs.saved_model import load_calibration
from xmcbench.trial.record import Status
from xmcbench.trial.run import Run, held_out_rows
from xmcbench_plugins.choosing import choice

ASKED = ("--methods", "fake-ok,fake-rare", "--budget", "steps=9", "--samples", "3")


@pytest.fixture
def space(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    thing = registry().method("fake-ok").thing
    monkeypatch.setattr(thing, "search_space", classmethod(lambda *_: {"strength": {"low": 0.5, "high": 2.0}}))


def files(root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if path.is_file() and "cache" not in path.parts}


def tuned(bench: Bench, *more: Any) -> int:
    return call("tune", "fake-20", *ASKED, *bench.places, "--out", bench.root / "found.yaml", *more)


@pytest.mark.usefixtures("space")
def test_the_best_on_held_out_queries_is_trained_on_all_and_scored_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("xmcbench.evaluation.calibration.FEWEST", 3)
    before = files(bench.root)
    assert tuned(bench, "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "training queries are held out; nDCG@5 on them decides" in shown
    assert files(bench.root) == before, "a dry run writes nothing"
    assert tuned(bench) == 0
    shown = capsys.readouterr().out
    records = bench.store.records()
    samples = [record for record in records if record.trial.held_out_only]
    quality = max(sample.curve[0]["nDCG@5"] for sample in samples)
    scored = [record for record in records if record.metrics]
    assert len(scored) == 1
    final = scored[0]
    assert final.trial.selection is None, "no query is held out of the last training"
    final_code = final.trial.method, final.trial.config
    best = next(sample for sample in samples if (sample.trial.method, sample.trial.config) == final_code)
    assert f"Use {best.trial.method}." in shown
    assert "On the test split, scored once after the choice: P@1" in shown
    assert final.chosen["settings"]["method"] == best.trial.method
    assert final.chosen["quality"] == best.curve[0]["nDCG@5"] == quality
    assert len(final.chosen["samples"]) == len(samples)
    assert not any(bench.store.directory(each.key).joinpath("model").exists() for each in records if each != final)
    assert f"xmcbench predict {final.key} --text" in shown
    assert call("predict", final.key, "--text", "a b", *bench.places) == 0
    train, answers = load("fake-20", bench.root / "data").training_data(), bench.store.held_out(best)
    assert best.trial.selection is not None
    held_out = train.rows(held_out_rows(best.trial.selection, best.trial.seed, len(train.texts))[0])
    wanted = fit_calibration(drop_ignored(answers, held_out.ignore, answers.k), held_out.targets)
    assert wanted is not None
    assert load_calibration(bench.store, final) == wanted
    found = yaml.safe_load((bench.root / "found.yaml").read_text())
    assert list(found["methods"]) == [best.trial.method]
    capsys.readouterr()
    assert call("run", bench.root / "found.yaml", *bench.places, "--dry-run") == 0
    assert [line.split()[4] for line in capsys.readouterr().out.splitlines()[2:3]] == ["hit"]
    assert tuned(bench) == 0
    assert len(bench.store.records()) == len(records), "a second call runs nothing"


def test_a_budget_of_minutes_leaves_out_what_does_not_fit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow, run = registry().method("fake-rare").thing, Runner.run
    limits: list[float] = []
    monkeypatch.setattr(slow, "foreseen", lambda *_: {"device_seconds": 36_000.0})

    def noted(self: Runner, *given: Any) -> Any:
        limits.append(self.suite.timeout)
        return run(self, *given)

    monkeypatch.setattr(Runner, "run", noted)
    assert tuned(bench, "--minutes", "5") == 0
    shown = capsys.readouterr().out
    *trainings, last = limits
    assert last > 300, "the last one is not cut"
    assert trainings
    assert all(limit * (1 + choice.AGAIN) <= 300 for limit in trainings), "each leaves time for the last one"
    assert "ends within 5 minutes" in shown
    assert "fake-rare was not tried: it needs about 1380.0 minutes with the last training" in shown
    assert "Use fake-ok." in shown


def test_no_time_at_all_is_said_in_a_line_and_nothing_is_planned_or_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(choice.Choosing, "elapsed", property(lambda _: 301.0))
    monkeypatch.setattr(choice, "plan_here", lambda *_: pytest.fail("it takes time"))
    assert tuned(bench, "--minutes", "5") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(
        f"{name}: the last training needs the 0.0 minutes that are left" in line for name in ("fake-ok", "fake-rare")
    )
    assert not bench.store.records()


@pytest.mark.parametrize(("best", "steps"), [(0.2, [10, 2]), (0.5, [10])])
def test_a_best_evaluation_that_came_early_asks_for_a_shorter_schedule(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], best: float, steps: list[int]
) -> None:
    thing = registry().method("fake-ok").thing
    own = thing.fit

    def fit(self: Any, train: TrainingData, run: Run) -> None:
        own(self, train, run)
        if run.held_out is not None:
            [point] = run.log.curve
            later = {name: 0.5 * value for name, value in point.items()}
            run.log.curve[:] = [{**point, "fraction": best}, {**later, "fraction": 1.0}]

    monkeypatch.setattr(thing, "fit", fit)
    asked = ("--methods", "fake-ok", "--budget", "steps=10", "--samples", "1")
    monkeypatch.setattr(Runner, "executor", InProcess())
    assert call("tune", "fake-20", *asked, *bench.places, "--out", bench.root / "found.yaml") == 0
    shown = capsys.readouterr().out
    assert ("best at an early evaluation: a shorter schedule was tried too" in shown) is (len(steps) > 1)
    records = bench.store.records()
    tried = [record.trial.budget.steps for record in records if record.trial.held_out_only]
    assert sorted(tried, reverse=True) == steps
    final = next(record for record in records if record.metrics)
    assert final.trial.budget.steps in {round(best * own_steps) or 1 for own_steps in steps}


def test_second_stages_and_fusions_need_no_suite() -> None:
    for name in ("sparse-ranker", "memory", "classifier", "fuse"):
        config = registry().method(name).thing.Config()
        assert "dexml" in config.model_dump_json()


def test_a_method_that_fails_is_said_and_costs_no_result(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--methods", "fake-ok,fake-crash", "--budget", "steps=9", "--samples", "1")
    assert call("tune", "fake-20", *asked, *bench.places, "--out", bench.root / "found.yaml") == 0
    assert "fake-crash was not tried:" in capsys.readouterr().out
    assert {record.status for record in bench.store.records()} >= {Status.OK, Status.ERROR}


def test_a_budget_that_is_none_is_an_error_in_a_line(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("tune", "fake-20", "--budget", "much", "--data", bench.root / "data") == 2
    assert "--budget much: expected a limit and a number, as in epochs=10" in capsys.readouterr().err


@pytest.mark.parametrize("out", ["", "."])
def test_a_folder_is_no_place_for_a_suite(bench: Bench, capsys: pytest.CaptureFixture[str], out: str) -> None:
    assert call("tune", "fake-20", "--out", out, "--data", bench.root / "data") == 2
    assert "--out .: found a folder, expected the name of a file" in capsys.readouterr().err
