"""What becomes of trials of methods that behave well or badly, each in a worker of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fakes.bench import Bench

from xmcbench.data import load
from xmcbench.evaluation import truth_hash
from xmcbench.plugins.registry import registry
from xmcbench.reporting.ranked_groups import leaderboard
from xmcbench.runs.plan import exit_code
from xmcbench.trial.facts import Choice, ChosenBy
from xmcbench.trial.record import Status
from xmcbench.trial.store import Store
from xmcbench.trial.trial import Trial

OUTCOMES = {
    "ok": Status.OK,
    "crash": Status.ERROR,
    "oom": Status.OOM,
    "killed": Status.OOM,
    "nan": Status.INVALID,
    "overspender": Status.OVER_BUDGET,
    "cheater": Status.OK,
    "order": Status.INVALID,
    "picky": Status.SKIPPED,
}


@pytest.mark.long
def test_every_ending_is_a_record_and_none_stops_the_run(bench: Bench) -> None:
    suite = bench.suite([f"fake-{name}" for name in OUTCOMES])
    records = bench.run(suite)
    assert {label: record.status for label, record in records.items()} == OUTCOMES
    assert exit_code(list(records.values())) == 1
    assert exit_code([records["ok"], records["picky"]]) == 0

    crash = records["crash"].failure
    assert crash is not None
    assert (crash.type, crash.message, crash.stage) == ("ValueError", "no way on", "fit")
    assert "about to divide" in crash.log_tail
    assert "Traceback" in crash.log_tail
    killed = records["killed"].failure
    assert killed is not None
    assert "most likely out of memory" in killed.message

    # What has no valid predictions has no figures; what spent too much has, and is not ok.
    assert records["nan"].metrics == {}
    assert records["overspender"].metrics["P@1"] == records["ok"].metrics["P@1"]
    assert records["overspender"].spent["steps"] == 50

    # A second run runs nothing, and says why.
    plan = bench.plan(suite)
    assert {label: action for label, (action, _) in plan.items()} == {
        label: {"ok": "hit", "skipped": "skip"}.get(status, "failed") for label, status in OUTCOMES.items()
    }
    assert "no way on" in plan["crash"][1]
    assert plan["overspender"][1].startswith("over_budget: steps 50 of 5;")
    assert plan["picky"][1] == "needs a million labels"
    again = bench.run(suite)
    assert bench.heard.begun == []
    assert again == records

    # --retry runs what failed, and only that.
    bench.run(suite, only=["oo*", "o[krv]*"], retry=True)
    assert bench.heard.begun == ["oom", "overspender", "order"]


def test_a_raised_version_runs_a_trial_again_and_says_why(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = bench.suite(["fake-ok"])
    bench.run(suite)
    method = registry().method("fake-ok").thing
    monkeypatch.setattr(method, "info", replace(method.info, version=2))
    assert bench.plan(suite) == {"ok": ("run", "again: method 1, now 2")}


def test_a_finished_trial_leaves_what_the_store_promises(bench: Bench) -> None:
    record = bench.run(bench.suite(["fake-ok"], selection={"queries": 6, "metric": "P@1"}))["ok"]
    directory = bench.store.directory(record.key)
    assert {path.name for path in directory.iterdir() if not path.name.startswith(".")} == {
        "trial.json", "record.json", "predictions.npz", "resampled.safetensors", "log.txt", "model",
        "fits.txt"
    }  # fmt: skip
    predictions, answered = bench.store.predictions(record)
    dataset = load("fake-20", bench.root / "data", bench.root / "cache")
    assert answered == record.truth_hash == truth_hash(dataset)
    assert predictions.indices.shape == (40, 20)
    assert predictions.indices.dtype == np.int32
    assert 0 not in predictions.indices[3]  # the ignored pair is dropped, the row is padded
    assert predictions.indices[3, -1] == -1
    assert record.selection_split == Choice(by=ChosenBy.HELD_OUT, queries=6)
    assert set(record.curve[0]) >= {"P@1"}
    assert record.spent["stage_seconds"].keys() >= {"prepare", "predict"}
    assert record.spent["peak_bytes"] > 1e6
    assert record.provenance["versions"]["numpy"] == np.__version__
    assert record.started <= record.ended


def test_only_a_patience_that_is_given_is_in_key_and_record(bench: Bench) -> None:
    plain, waits = (
        bench.run(bench.suite(["fake-ok"], selection={"queries": 6, "metric": "P@1"} | patience))["ok"]
        for patience in ({}, {"patience": 3})
    )
    assert plain.key != waits.key
    assert plain.trial.model_dump(mode="json")["selection"] == {"queries": 6, "metric": "P@1", "evaluations": 4}
    assert waits.trial.model_dump(mode="json")["selection"]["patience"] == 3


def test_what_it_costs_to_answer_is_recorded_and_shown(bench: Bench) -> None:
    record = bench.run(bench.suite(["fake-ok"]))["ok"]
    files = [path for path in (bench.store.directory(record.key) / "model").iterdir() if path.is_file()]
    spent = record.spent
    assert (spent["predicted_queries"], spent["model_bytes"]) == (40, sum(path.stat().st_size for path in files))
    assert 0 < spent["predict_bytes"] <= spent["peak_bytes"]
    (group,) = leaderboard([record]).groups
    expected = 1000 * spent["stage_seconds"]["predict"] / 40
    assert group.rows[0].facts["query_ms"] == pytest.approx(expected, rel=0.1)
    assert "query_ms" in group.columns


def test_a_full_disk_stops_the_run_and_loses_nothing(bench: Bench) -> None:
    from xmcbench.trial.store import StoreError

    with pytest.raises(StoreError, match=r"checkpoint/state: No space left on device") as caught:
        bench.run(bench.suite(["fake-ok", "fake-full-disk"]))
    assert "\n" not in str(caught.value)
    assert bench.plan(bench.suite(["fake-ok", "fake-full-disk"]))["ok"][0] == "hit"
    assert bench.plan(bench.suite(["fake-full-disk"]))["full-disk"][0] == "resume"


def test_debug_runs_here_and_lets_exceptions_through(bench: Bench) -> None:
    with pytest.raises(ValueError, match="no way on"):
        bench.run(bench.suite(["fake-crash"]), debug=True)
    assert bench.run(bench.suite(["fake-ok"]), debug=True)["ok"].status is Status.OK


def test_two_methods_on_one_store_keep_their_own_predictions(bench: Bench) -> None:
    """One is never served what the other predicted (lm-eval #4063)."""
    records = bench.run(bench.suite(["fake-ok", "fake-rare"]), debug=True)
    popular, rare = (bench.store.predictions(records[name])[0] for name in ("ok", "rare"))
    assert not np.array_equal(popular.indices, rare.indices)


def test_the_cheater_is_able_to_cheat(bench: Bench) -> None:
    """It finds nothing in a trial because nothing is there: with the dataset in the process it finds it."""
    dataset = load("fake-20", bench.root / "data", bench.root / "cache")
    with pytest.raises(PermissionError, match="found test targets while fitting"):
        bench.run(bench.suite(["fake-cheater"]), debug=True)
    assert dataset.test.targets.nnz == 40


def test_a_wrong_figure_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """P@1 and nDCG@1 are one figure for binary relevance (mteb #5228)."""
    from xmcbench.evaluation import InvalidPredictions, evaluator
    from xmcbench.evaluation.metrics import Hits, MetricTerms

    def quarter(hits: Hits, _: int) -> MetricTerms:
        return MetricTerms(0.25 * hits.ones, hits.ones)

    figures = [replace(f, definition=quarter) if f.name == "P" else f for f in evaluator.EVALUATORS]
    monkeypatch.setattr(evaluator, "EVALUATORS", tuple(figures))
    with pytest.raises(InvalidPredictions, match=r"P@1 is 0\.25"):
        bench.run(bench.suite(["fake-ok"]), debug=True)


def test_a_trial_that_takes_too_much_memory_is_recorded_as_that(bench: Bench) -> None:
    suite = bench.suite(["fake-ok"], budget={"steps": 5, "peak_bytes": 1e6})
    record = bench.run(suite)["ok"]
    assert record.status is Status.TOO_LARGE
    assert record.failure is not None
    assert "the budget allows 0.00 GB" in record.failure.message
    assert record.metrics == {}
    assert exit_code([record]) == 0  # that it does not fit is what was asked
    action, reason = bench.plan(suite)["ok"]
    assert (action, reason) == ("too large", record.failure.message)


def test_a_time_limit_that_is_predicted_too_short_is_told_before_anything_runs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xmcbench.engine.planning.trials.plan_here", lambda trial, *_: trial)
    monkeypatch.setattr("xmcbench.engine.planning.trials.too_large", lambda _: None)
    monkeypatch.setattr("xmcbench.engine.planning.trials.too_much_here", lambda *_: None)
    asked: list[float] = []

    def predicted(trial: Trial, timeout: float) -> str | None:
        asked.append(timeout)
        return f"{trial.label} takes years" if trial.method == "fake-ok" else None

    monkeypatch.setattr("xmcbench.engine.planning.trials.too_long", predicted)

    def told(budget: dict[str, Any]) -> list[str]:
        runner = bench.runner(bench.suite(["fake-ok", "fake-slow"], budget=budget, seeds=[0, 1], timeout=50.0))
        return runner.predicted_failures(runner.plan())

    assert told({"steps": 5, "peak_bytes": 1e12}) == ["ok takes years"]
    assert asked == [50.0, 50.0]  # once for all seeds of a method
    assert told({"steps": 5}) == []  # small, and its memory is not limited: nobody plans it
    monkeypatch.setattr("xmcbench.runs.runner.LARGE_DATASET", 1)
    assert told({"steps": 5}) == ["ok takes years"]


def test_a_trial_that_this_machine_cannot_hold_is_left_out_until_it_can(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xmcbench.engine.planning.trials.plan_here", lambda trial, *_: trial)
    monkeypatch.setattr("xmcbench.engine.planning.trials.too_large", lambda _: None)
    monkeypatch.setattr("xmcbench.engine.planning.trials.too_long", lambda *_: None)
    needs: dict[str, str] = {"fake-ok": "needs about 31 GB of memory"}
    monkeypatch.setattr("xmcbench.engine.planning.trials.too_much_here", lambda trial, _: needs.get(trial.method))
    monkeypatch.setattr("xmcbench.runs.runner.LARGE_DATASET", 1)
    suite = bench.suite(["fake-ok", "fake-slow"], budget={"steps": 5})
    assert bench.plan(suite)["ok"] == ("skip", "needs about 31 GB of memory")
    assert bench.plan(suite)["slow"][0] == "run"
    record = bench.run(suite, only=["ok"])["ok"]
    assert (record.status, record.spent["steps"]) == (Status.SKIPPED, 0)
    needs.clear()
    assert bench.run(suite, only=["ok"])["ok"].status is Status.OK


def test_a_trial_that_is_predicted_too_large_is_not_run(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xmcbench.engine.planning.trials.plan_here", lambda trial, *_: trial)
    monkeypatch.setattr("xmcbench.engine.planning.trials.too_large", lambda _: "predicted to take 9 GB")
    monkeypatch.setattr("xmcbench.engine.planning.trials.too_much_here", lambda *_: None)
    suite = bench.suite(["fake-ok"], budget={"steps": 5, "peak_bytes": 1e12})
    assert bench.plan(suite)["ok"] == ("too large", "predicted to take 9 GB")
    record = bench.run(suite)["ok"]
    assert (record.status, record.spent["steps"]) == (Status.TOO_LARGE, 0)
    assert record.failure is not None
    assert record.failure.message == "predicted to take 9 GB"
    assert bench.run(bench.suite(["fake-ok"]))["ok"].status is Status.OK  # without the limit nobody asks


def test_locks_that_keep_no_other_run_out_are_told_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    suite = bench.suite(["fake-ok", "fake-rare"], seeds=[0, 1])
    monkeypatch.setattr(Store, "lock_holds", lambda *_: False)
    bench.run(suite)
    told = f"warning: {bench.store.root}: the locks of this file system keep no other run out: start one run at a time"
    assert caplog.messages.count(told) == 1
