"""Tuning on Ray Tune: the same choice as without Ray, samples from the store, workers and drivers that are killed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from fakes.bench import Bench, Heard

from xmcbench.run.ray import RayExecutor
from xmcbench.run.ray_tune import on_tune
from xmcbench.run.tuned_trials import run_samples, stored_samples, tuned_trials
from xmcbench.suite.resources import Share
from xmcbench.trial.record import Record
from xmcbench.trial.trial import Trial

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and process groups are POSIX")

TUNE = {"space": {"ok": {"strength": {"low": 0.5, "high": 2.0}}}, "num_samples": 4, "budget": {"steps": 2}}
KEYS: dict[str, Any] = {"selection": {"queries": 5, "metric": "P@1"}, "tune": TUNE}


def tuned_on_ray(bench: Bench, suite: Path, heard: Heard | None = None, **share: Any) -> list[Trial]:
    executor = RayExecutor()
    runner = bench.runner(suite, executor=executor, share=Share(**share))
    return tuned_trials(runner, on_tune(executor, runner, heard or bench.heard))


def tuned_here(bench: Bench, suite: Path) -> list[Trial]:
    runner = bench.runner(suite, store=bench.root / "alone", debug=True)
    return tuned_trials(runner, run_samples(runner, Heard()))


def ended(bench: Bench) -> list[Record]:
    return sorted(bench.store.records(), key=lambda record: record.trial.label)


def test_samples_on_ray_tune_lead_to_the_choice_that_is_made_without_and_are_not_run_again(ray_bench: Bench) -> None:
    suite = ray_bench.suite(["fake-ok"], **KEYS)
    (chosen,) = tuned_on_ray(ray_bench, suite)
    assert [chosen] == tuned_here(ray_bench, suite)
    labels = [f"ok/sample-{number}" for number in range(4)]
    assert sorted(ray_bench.heard.begun) == labels
    assert [record.trial.label for record in ended(ray_bench)] == labels
    assert not (ray_bench.store.root / "tunings" / "ray").exists(), "files of Tune"

    before = ended(ray_bench)
    again = Heard()
    assert tuned_on_ray(ray_bench, suite, again) == [chosen]
    assert ended(ray_bench) == before
    runner = ray_bench.runner(suite)
    assert tuned_trials(runner, stored_samples(runner)) == [chosen]
