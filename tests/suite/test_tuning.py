"""Choosing settings: what is tried, what is chosen, what it costs, and that all methods get the same."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from fakes.bench import Bench
from hypothesis import given
from hypothesis import strategies as st
from reporting.made import record

from xmcbench.errors import XMCBenchError
from xmcbench.reporting.ranked_groups import leaderboard
from xmcbench.runs.plan import Action
from xmcbench.runs.tuning import Search, choose, note_chosen, run_in_order, run_samples, stored_samples, tuned_trials
from xmcbench.suite.tuning import Range, Tune
from xmcbench.trial.budget import Budget
from xmcbench.trial.record import Record, Status
from xmcbench.trial.trial import Selection, Trial

BEST = 0.3
SPACE = {"rate": Range(low=0.01, high=1.0, log=True), "width": [1, 2, 4]}


class Hill:
    """Trials whose quality falls with the distance of `rate` from `BEST`, and that note what they were asked."""

    def __init__(self) -> None:
        self.trials: list[Trial] = []

    def __call__(self, trials: Sequence[Trial]) -> list[Record]:
        self.trials += trials
        return [self.record(trial) for trial in trials]

    def record(self, trial: Trial) -> Record:
        quality = 1 / (1 + abs(trial.config["rate"] - BEST))
        spent = {"encoder_tokens": trial.budget.encoder_tokens, "steps": 2}
        curve = [{"fraction": 0.5, "nDCG@5": quality / 2}, {"fraction": 1.0, "nDCG@5": quality}]
        return record().model_copy(update={"key": trial.key, "trial": trial, "spent": spent, "curve": curve})


def base(**changes: Any) -> Trial:
    fields = {"config": {"rate": 1e-9, "width": 0, "depth": 7}, "budget": Budget(encoder_tokens=900)}
    return record(selection=Selection(queries=5), **fields | changes).trial


def tuned(carry: Any = None, **settings: Any) -> Search:
    tune = Tune.model_validate({"space": {"a": SPACE}, "num_samples": 9} | settings)
    with TemporaryDirectory() as folder:
        return choose(base(), tune, "a", dict, partial(run_in_order, carry or Hill()), Path(folder) / "journal.json")


def test_the_best_sample_is_chosen_and_only_the_space_is_changed() -> None:
    hill = Hill()
    chosen = tuned(hill)
    assert len(hill.trials) == len({trial.key for trial in hill.trials}) == 9 + 2 * 2  # two finalists, two seeds each
    assert {trial.config["depth"] for trial in hill.trials} == {7}
    assert {trial.budget.encoder_tokens for trial in hill.trials} == {900}
    assert {trial.held_out_only for trial in hill.trials} == {True}
    nearest = min(hill.trials[:9], key=lambda trial: abs(trial.config["rate"] - BEST))
    assert chosen.best.records[-1].trial == nearest
    told = chosen.as_dict()
    assert told["settings"] == {name: nearest.config[name] for name in SPACE}
    assert told["spent"] == {"encoder_tokens": 13 * 900, "steps": 26}
    assert (told["metric"], len(told["samples"])) == ("nDCG@5", 9)


@pytest.mark.parametrize("scheduler", ["none", "halving"])
@pytest.mark.parametrize("own", [{"rate": 0.02, "width": 4}, {"rate": 1e-9, "width": 4}, {"rate": 0.02, "width": 3}])
def test_the_first_sample_is_what_the_suite_says_where_the_space_holds_it(own: dict[str, Any], scheduler: str) -> None:
    hill = Hill()
    tune = Tune.model_validate({"space": {"a": SPACE}, "num_samples": 4, "scheduler": scheduler})
    with TemporaryDirectory() as folder:
        chosen = choose(base(config=own), tune, "a", dict, partial(run_in_order, hill), Path(folder) / "journal.json")
    held = own == {"rate": 0.02, "width": 4}
    assert (hill.trials[0].config == own) is held
    assert sum(sample.settings == own for sample in chosen.journal.samples) == held


@pytest.mark.parametrize("searcher", ["random", "optuna"])
@pytest.mark.parametrize("scheduler", ["none", "halving"])
def test_the_same_suite_asks_for_the_same_trials(searcher: str, scheduler: str) -> None:
    first, second = Hill(), Hill()
    for hill in (first, second):
        tuned(hill, searcher=searcher, scheduler=scheduler)
    assert [trial.key for trial in first.trials] == [trial.key for trial in second.trials]


def test_halving_gives_few_samples_a_large_budget_and_as_much_to_every_method() -> None:
    hill = Hill()
    chosen = tuned(hill, scheduler="halving")
    budgets = [trial.budget.encoder_tokens for trial in hill.trials]
    # All 9 start with a ninth of the budget. The pruner stops a sample that is not among the best third so far.
    assert budgets.count(100) == 9
    assert 1 <= budgets[:-4].count(900) <= budgets.count(300) < 9
    assert chosen.best.records[-1].trial.budget.encoder_tokens == 900
    in_last = [trial.config["rate"] for trial in hill.trials if trial.budget.encoder_tokens == 900]
    assert chosen.best.settings["rate"] == min(in_last, key=lambda rate: abs(rate - BEST))


def test_failed_samples_are_never_chosen_and_none_at_all_is_an_error() -> None:
    hill = Hill()

    def half(trials: Sequence[Trial]) -> list[Record]:
        broken = {"status": Status.OOM, "curve": []}
        records = hill(trials)
        return [r.model_copy(update=broken) if r.trial.config["width"] > 1 else r for r in records]

    assert tuned(half).best.settings["width"] == 1

    def none(trials: Sequence[Trial]) -> list[Record]:
        return [one.model_copy(update={"curve": []}) for one in hill(trials)]

    with pytest.raises(XMCBenchError, match="no sample of dexml on made has nDCG@5 on held-out queries"):
        tuned(none)


def test_a_lucky_sample_loses_to_one_that_is_good_with_other_seeds() -> None:
    class Lucky(Hill):
        """The best sample is best with the first seed alone."""

        def record(self, trial: Trial) -> Record:
            told = super().record(trial)
            points = [{**point, "nDCG@5": point["nDCG@5"] / 2} for point in told.curve]
            first = min(self.trials[:9], key=lambda other: abs(other.config["rate"] - BEST))
            unlucky = trial.seed > 0 and trial.config == first.config
            return told.model_copy(update={"curve": points}) if unlucky else told

    lucky = Lucky()
    chosen = tuned(lucky)
    near = sorted({trial.config["rate"] for trial in lucky.trials[:9]}, key=lambda rate: abs(rate - BEST))
    assert chosen.best.settings["rate"] == near[1]
    assert [trial.seed for trial in lucky.trials[9:]] == [1, 2, 1, 2]
    assert tuned(Lucky(), finalists=1).best.settings["rate"] == near[0]


@pytest.mark.parametrize(
    ("settings", "trainings"),
    [
        ({"num_samples": 9}, 13),
        ({"num_samples": 9, "finalists": 1}, 9),
        ({"num_samples": 1}, 1),
        ({"num_samples": 9, "scheduler": "halving"}, 9 + 3 + 1 + 4),
    ],
)
def test_all_trainings_are_counted(settings: dict[str, Any], trainings: int) -> None:
    assert Tune.model_validate({"space": {"a": {}}} | settings).trainings == trainings


@given(st.integers(0, 50), st.integers(1, 12), st.sampled_from(["random", "optuna"]))
def test_samples_are_within_the_space_and_differ(seed: int, count: int, searcher: Any) -> None:
    space = {"a": Range(low=1, high=9), "b": Range(low=0.5, high=2.0), "c": Range(low=1, high=1000, log=True), "d": [5]}
    asked: list[dict[str, Any]] = []

    def quality(trials: Sequence[Trial]) -> list[Record]:
        asked.extend({name: trial.config[name] for name in space} for trial in trials)
        curve = [{"fraction": 1.0, "nDCG@5": 0.5}]
        return [record().model_copy(update={"key": t.key, "trial": t, "curve": curve}) for t in trials]

    tuned(quality, space={"a": space}, num_samples=count, seed=seed, searcher=searcher)
    assert len({str(one) for one in asked[:count]}) == count
    for one in asked:
        assert one["a"] in range(1, 10)
        assert 0.5 <= one["b"] <= 2.0
        assert isinstance(one["c"], int)
        assert one["d"] == 5


@pytest.mark.parametrize("wrong", [{"low": 2, "high": 1}, {"low": 0, "high": 1, "log": True}])
def test_a_range_that_holds_nothing_is_an_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"expected low below|needs numbers above 0"):
        Range.model_validate(wrong)


TUNE = {"space": {"ok": {"strength": {"low": 0.5, "high": 2.0}}, "rare": {}}, "num_samples": 3, "budget": {"steps": 2}}
KEYS: dict[str, Any] = {"selection": {"queries": 5, "metric": "P@1"}, "seeds": [0, 1], "tune": TUNE}


def test_a_suite_is_tuned_its_records_say_how_and_a_rerun_runs_nothing(bench: Bench) -> None:
    suite = bench.suite(["fake-ok", "fake-rare"], **KEYS)
    runner = bench.runner(suite, debug=True)
    trials = tuned_trials(runner, partial(run_samples, bench.heard))
    records = runner.run(runner.plan_trials(trials), bench.heard)
    assert [(one.trial.label, one.trial.seed) for one in records] == [("ok", 0), ("ok", 1), ("rare", 0), ("rare", 1)]
    assert len({one.trial.config["strength"] for one in records[:2]}) == 1
    assert len(bench.store.records()) == 3 + 2 * 2 + 4  # samples, finalists with other seeds, the suite's trials
    samples = [one for one in bench.store.records() if one.trial.held_out_only]
    assert len(samples) == 7
    for sample in samples:  # judged by held-out queries, it neither predicted nor scored the test split
        assert sample.metrics == {}
        assert all("P@1" in point for point in sample.curve)
        assert not {"predict", "check", "score"} & sample.spent["stage_seconds"].keys()
        assert not (bench.store.directory(sample.key) / "predictions.npz").exists()
    assert {row.method for group in leaderboard(bench.store.records()).groups for row in group.rows} == {"ok", "rare"}
    note_chosen(runner, records)
    how = records[0].chosen
    assert how["settings"] == {"strength": records[0].trial.config["strength"]}
    assert how["spent"]["steps"] == 14.0
    assert how["on"] == samples[0].selection_split
    assert sum("again" in sample for sample in how["samples"]) == 2
    assert records[2].chosen == {}  # it has no space

    again = bench.runner(suite, debug=True)
    assert {planned.action for planned in again.plan_trials(tuned_trials(again, stored_samples))} == {Action.HIT}


def test_what_was_not_tuned_yet_is_an_error(bench: Bench) -> None:
    runner = bench.runner(bench.suite(["fake-ok", "fake-rare"], **KEYS))
    with pytest.raises(XMCBenchError, match="ok on fake-20 was not tuned to the end"):
        tuned_trials(runner, stored_samples)


MISTAKES = [
    ({"tune": TUNE | {"num_samples": 0}}, "tune.num_samples: found 0"),
    ({"selection": None}, "tune: chooses by held-out training queries, expected the key 'selection' too"),
    ({"tune": TUNE | {"metric": "Q@1"}}, "tune.metric: 'Q@1' is neither the selection's nor one of metrics"),
    ({"tune": TUNE | {"space": {"ok": {}}}}, "tune.space: missing 'rare': every method gets the same tuning budget"),
    ({"tune": TUNE | {"space": {"okk": {}, "rare": {}, "ok": {}}}}, "tune.space.okk: unknown method label 'okk'"),
    (
        {"tune": TUNE | {"space": {"ok": {"strenth": [1]}, "rare": {}}}},
        "tune.space.ok.strenth: the method has no such setting (did you mean 'strength'?)",
    ),
    ({"tune": TUNE | {"space": {"ok": {"width": ["x"]}, "rare": {}}}}, "tune.space.ok.width: found 'x', expected"),
    ({"sweep": {"strength": [1.0, 2.0]}}, "tune.space.ok.strength: is swept as well"),
]


@pytest.mark.parametrize(("change", "message"), MISTAKES)
def test_a_mistake_is_named_with_its_place(bench: Bench, change: dict[str, Any], message: str) -> None:
    with pytest.raises(XMCBenchError) as caught:
        bench.runner(bench.suite(["fake-ok", "fake-rare"], **KEYS | change))
    assert message in str(caught.value)
