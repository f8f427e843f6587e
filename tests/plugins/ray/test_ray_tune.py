"""The driver's side of samples on Ray Tune, without a cluster: what is asked of workers, and what their events do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fakes.bench import Bench

from xmcbench.errors import XMCBenchError
from xmcbench.runs.job import Job
from xmcbench.runs.runner import Runner
from xmcbench.runs.tuning import Search, read_journal, tuned_trials
from xmcbench.trial.record import Status
from xmcbench.trial.trial import Trial
from xmcbench_plugins.ray.executor import RayExecutor
from xmcbench_plugins.ray.samples import Begun, _Samples

SPACE = {"ok": {"strength": {"low": 0.5, "high": 2.0}}}


class WithoutCluster(RayExecutor):
    """An executor whose workers send what the test writes to `sent`."""

    mailbox = None

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def events(self) -> list[tuple[str, dict[str, Any]]]:
        sent, self.sent = self.sent, []
        return sent


def tune(bench: Bench, run: Callable[[_Samples, WithoutCluster], None], **settings: Any) -> None:
    """Tune a method by samples that `run` runs, without other seeds."""
    settings = {"space": SPACE, "num_samples": 1, "finalists": 1, "budget": {"steps": 2}} | settings
    suite = bench.suite(["fake-ok"], selection={"queries": 5, "metric": "P@1"}, tune=settings)
    executor = WithoutCluster()
    runner = bench.runner(suite, executor=executor)

    def search_on_ray(_runner: Runner, search: Search) -> None:
        run(_Samples(search, runner, bench.heard, executor), executor)

    tuned_trials(runner, search_on_ray)


def trials(config: dict[str, Any]) -> list[Trial]:
    return [Job.model_validate_json(job).trial for job in config["jobs"]]


def in_this_process(bench: Bench, trial: Trial) -> None:
    """Do what a worker does for one rung."""
    runner = bench.runner(bench.root / "suite.yaml", debug=True)
    runner.run(runner.plan_trials([trial]), bench.heard)


def test_small_budgets_of_two_rungs_are_one_trial(bench: Bench) -> None:
    asked: list[Trial] = []

    def propose(samples: _Samples, _executor: WithoutCluster) -> None:
        asked.extend(trials(samples.propose("one")))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(bench, propose, num_samples=9, scheduler="halving")
    assert [trial.budget.steps for trial in asked] == [1, 1, 2]
    assert asked[0].key == asked[1].key != asked[2].key


def test_a_trial_is_shown_once_also_if_its_worker_was_started_again(bench: Bench) -> None:
    def run(samples: _Samples, executor: WithoutCluster) -> None:
        (trial,) = trials(samples.propose("one"))
        executor.sent = [("one", Begun(0)), ("one", Begun(0))]
        samples.receive()
        assert bench.heard.begun == ["ok/sample-0"]
        bench.heard.begun.clear()
        in_this_process(bench, trial)
        bench.heard.stages.clear()
        samples.advanced("one", 0)
        samples.advanced("one", 0)  # reported again by the worker that was started in its place
        samples.ended("one")
        assert bench.heard.stages == ["ok"]

    tune(bench, run)
    (path,) = bench.root.glob("results/tunings/*.json")
    assert [len(sample.trials) for sample in read_journal(path).samples] == [1]


def test_what_the_store_has_is_not_shown_as_run(bench: Bench) -> None:
    def run(samples: _Samples, _executor: WithoutCluster) -> None:
        (trial,) = trials(samples.propose("one"))
        in_this_process(bench, trial)
        bench.heard.stages.clear()
        samples.advanced("one", 0)
        samples.ended("one")
        assert bench.heard.stages == []

    tune(bench, run)


def test_a_sample_whose_workers_never_began_has_a_record(bench: Bench) -> None:
    def run(samples: _Samples, _executor: WithoutCluster) -> None:
        samples.propose("one")
        samples.ended("one")

    with pytest.raises(XMCBenchError, match=r"no sample of ok on fake-20 has P@1"):
        tune(bench, run)
    (record,) = bench.store.records()
    assert (record.status, record.failure and record.failure.type) == (Status.ERROR, "WorkerDied")
