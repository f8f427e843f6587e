"""Tuning on Ray Tune in more detail: real methods, killed workers and drivers, samples that end badly. Minutes."""

from __future__ import annotations

import os
import signal

import psutil
import pytest
from fakes.bench import Bench, Heard
from processes import command_line, gone, until

from xmcbench.errors import XMCBenchError
from xmcbench.runs.tuning import read_journal, stored_samples, tuned_trials
from xmcbench.trial.record import Status
from xmcbench.trial.store import StoreError

from .ray_cluster import KEYS, SMALL, TUNE, Killer, all_is_free, ended, start, tuned_here, tuned_on_ray

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="signals and process groups are POSIX"),
    pytest.mark.slow,  # clusters of processes, a few minutes: `pytest -m slow`
]
RATE = {"learning_rate": {"low": 1e-4, "high": 1e-1, "log": True}}
THREE = {
    "hard": {"method": "dexml", "negatives": "hard", **SMALL},
    "prime": {"method": "prime", "free_vectors": 8, **SMALL},
    "table": {"method": "ova", **SMALL},
}


def sample_workers() -> list[int]:
    """The processes that run samples."""
    children = psutil.Process().children(recursive=True)
    return [child.pid for child in children if "ray::ImplicitFunc" in command_line(child.pid)]


def test_three_methods_of_16_samples_get_the_settings_that_they_get_without_ray(ray_bench: Bench) -> None:
    tune = {"space": dict.fromkeys(THREE, RATE), "num_samples": 16, "budget": {"steps": 6}}
    suite = ray_bench.suite(THREE, budget={"steps": 6}, selection={"queries": 6, "metric": "P@1"}, tune=tune)
    assert tuned_on_ray(ray_bench, suite) == tuned_here(ray_bench, suite)
    samples = [record for record in ended(ray_bench) if record.trial.seed == 0]  # not the finals
    assert len(samples) == 48


def test_halving_gives_few_samples_the_whole_budget(ray_bench: Bench) -> None:
    rate = {"learning_rate": {"low": 1e-4, "high": 10.0, "log": True}}  # half of these rates ruin the encoder
    tune = {"scheduler": "halving", "searcher": "optuna", "num_samples": 9, "space": {"hard": rate}}
    keys = {"budget": {"steps": 18}, "selection": {"queries": 6, "metric": "P@1"}, "tune": tune}
    suite = ray_bench.suite({"hard": THREE["hard"]}, **keys)
    (chosen,) = tuned_on_ray(ray_bench, suite)
    steps = [record.trial.budget.steps for record in ended(ray_bench) if record.trial.seed == 0]  # not the finals
    assert steps.count(2) == 9
    assert 1 <= steps.count(18) <= steps.count(6) < 9
    best = [record for record in ended(ray_bench) if record.trial.config == chosen.config]
    assert 18 in [record.trial.budget.steps for record in best]


def test_a_worker_that_is_killed_goes_on_from_its_checkpoint(ray_bench: Bench) -> None:
    tune = {"space": {"hard": RATE}, "num_samples": 1}
    selection = {"queries": 6, "metric": "P@1", "evaluations": 4}  # each writes a checkpoint
    suite = ray_bench.suite({"hard": THREE["hard"]}, budget={"steps": 120}, selection=selection, tune=tune)
    killer = Killer(at=50, harm=lambda: os.kill(sample_workers()[-1], signal.SIGKILL))
    (chosen,) = tuned_on_ray(ray_bench, suite, killer)
    assert killer.back[0] > 20
    assert [chosen] == tuned_here(ray_bench, suite)
    assert until(all_is_free)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["SIGKILL", "SIGINT"])
def test_a_driver_that_ends_is_followed_by_one_that_runs_what_is_left(ray_bench: Bench, how: signal.Signals) -> None:
    suite = ray_bench.suite(["fake-ok"], **KEYS | {"tune": TUNE | {"num_samples": 8}})
    driver = start(ray_bench, suite)  # with a cluster of its own
    assert until(lambda: len(list(ray_bench.root.glob("results/trials/*/record.json"))) > 2, 200), driver.kill()
    started = [child.pid for child in psutil.Process(driver.pid).children(recursive=True)]
    driver.send_signal(how)
    output, _ = driver.communicate(timeout=60)
    if how is signal.SIGINT:
        assert (driver.returncode, "interrupted" in output) == (130, True), output
    assert until(lambda: all(gone(pid) for pid in started if "Agent" not in command_line(pid)))

    (path,) = ray_bench.root.glob("results/tunings/*.json")
    before, records = read_journal(path).samples, ended(ray_bench)
    driver = start(ray_bench, suite)
    output, _ = driver.communicate(timeout=300)
    assert driver.returncode == 0, output
    after = read_journal(path).samples
    assert [sample.settings for sample in after[: len(before)]] == [sample.settings for sample in before]
    kept = {record.key: record for record in ended(ray_bench)}
    assert all(kept[record.key].started == record.started for record in records), "none was run again"
    runner = ray_bench.runner(suite)
    assert tuned_trials(runner, stored_samples) == tuned_here(ray_bench, suite)


def test_a_sample_that_takes_too_long_or_fails_has_a_record_and_is_not_chosen(ray_bench: Bench) -> None:
    space = {"slow": {"seconds": [30.0]}, "crash": {"strength": [0.5]}}
    for name, status in (("slow", Status.TIMEOUT), ("crash", Status.ERROR)):
        tune = {"space": {name: space[name]}, "num_samples": 1}
        suite = ray_bench.suite([f"fake-{name}"], **KEYS | {"tune": tune}, timeout=15)
        with pytest.raises(XMCBenchError, match=f"no sample of {name} on fake-20 has P@1"):
            tuned_on_ray(ray_bench, suite)
        assert [record.status for record in ended(ray_bench) if record.trial.label.startswith(name)] == [status]
    assert until(lambda: not sample_workers())


def test_a_full_disk_ends_the_tuning(ray_bench: Bench) -> None:
    tune = {"space": {"full-disk": {"strength": [0.5]}}, "num_samples": 1}
    with pytest.raises(StoreError, match="No space left"):
        tuned_on_ray(ray_bench, ray_bench.suite(["fake-full-disk"], **KEYS | {"tune": tune}))


def test_samples_of_two_workers_run_as_other_trials_do(ray_bench: Bench) -> None:
    suite = ray_bench.suite({"table": THREE["table"]}, **KEYS | {"tune": TUNE | {"space": {"table": RATE}}})
    heard = Heard()
    tuned_on_ray(ray_bench, suite, heard, workers=2)
    assert {record.workers for record in ended(ray_bench)} == {2}
