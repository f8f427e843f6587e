"""Trials on a Ray cluster: over two workers, with two drivers, and as samples of a tuning on Ray Tune."""

from __future__ import annotations

import os
import sys
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.bench import Bench, Heard

from xmcbench.errors import XMCBenchError
from xmcbench.runs.executor import Task
from xmcbench.runs.tuning import stored_samples, tuned_trials
from xmcbench.suite.resources import Needs
from xmcbench.trial.record import Status
from xmcbench_plugins.ray.executor import ClusterLostError, RayExecutor, _death, _RayTrial, ray_module

from .ray_cluster import (
    KEYS,
    SMALL,
    TWO_NODES,
    assert_alike,
    ended,
    in_process,
    on_ray,
    start,
    tuned_here,
    tuned_on_ray,
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.name != "posix", reason="signals and process groups are POSIX"),
]


def test_workers_on_two_nodes_give_the_figures_and_the_key_of_one(ray_bench: Bench) -> None:
    methods = {
        "hard": {"method": "dexml", "negatives": "hard", **SMALL},
        "popular": {"method": "fake-ok"},
    }
    suite = ray_bench.suite(methods, budget={"steps": 6})
    records = on_ray(ray_bench, suite, **TWO_NODES)
    for label, wanted in in_process(ray_bench, suite).items():
        assert_alike(records[label], wanted)
    assert {label: record.workers for label, record in records.items()} == {"hard": 2, "popular": 1}
    assert not list(ray_bench.root.glob("results/trials/*/ray")), "what Ray Train kept while they ran"


def test_two_drivers_run_each_trial_once(ray_bench: Bench, cluster: Any) -> None:
    suite = ray_bench.suite({"one": {"method": "fake-ok"}, "two": {"method": "fake-ok", "width": 8}})
    drivers = [start(ray_bench, suite, "--address", cluster.address) for _ in range(2)]
    for driver in drivers:
        output, _ = driver.communicate(timeout=300)
        assert driver.returncode == 0, output
        assert "ray" not in output.lower().replace(str(suite).lower(), ""), output
    fits = [path.read_text() for path in ray_bench.root.glob("results/trials/*/fits.txt")]
    assert fits == ["fit\n", "fit\n"]


def test_samples_on_ray_tune_lead_to_the_choice_that_is_made_without_and_are_not_run_again(ray_bench: Bench) -> None:
    suite = ray_bench.suite(["fake-ok"], **KEYS)
    (chosen,) = tuned_on_ray(ray_bench, suite)
    assert [chosen] == tuned_here(ray_bench, suite)
    begun = Counter(ray_bench.heard.begun)
    assert sorted(begun) == [f"ok/sample-{number}" for number in range(4)]
    assert sorted(begun.values()) == [1, 1, 3, 3], "the two best once more with each of two other seeds"
    assert Counter(record.trial.label for record in ended(ray_bench)) == begun
    assert not (ray_bench.store.root / "tunings" / "ray").exists(), "files of Tune"

    before = ended(ray_bench)
    again = Heard()
    assert tuned_on_ray(ray_bench, suite, again) == [chosen]
    assert ended(ray_bench) == before
    runner = ray_bench.runner(suite)
    assert tuned_trials(runner, stored_samples) == [chosen]


class WorkerGroupError(Exception):
    """As Ray Train's, which says what became of each worker."""

    def __init__(self, *failures: Exception) -> None:
        super().__init__("Training failed due to worker errors")
        self.worker_failures = dict(enumerate(failures))


class ActorDiedError(Exception):
    """As Ray's."""


class OutOfMemoryError(Exception):
    """As Ray's."""


@pytest.mark.parametrize(
    ("problem", "status", "kind"),
    [
        (WorkerGroupError(ActorDiedError("\nThe actor died.\nIts log:")), Status.ERROR, "ActorDiedError"),
        (WorkerGroupError(OutOfMemoryError("The actor died.")), Status.OOM, "OutOfMemoryError"),
        (ActorDiedError("The actor died."), Status.ERROR, "ActorDiedError"),
    ],
)
def test_workers_that_die_again_and_again_get_a_record(problem: Exception, status: Status, kind: str) -> None:
    ended, found = _death(problem)
    assert (ended, found.type) == (status, kind)
    assert found.message.endswith("restarted at most 3 times: The actor died.")


class LostMailbox:
    """The queue of a cluster whose node is gone."""

    def size(self) -> int:
        raise ray_module("ray.exceptions").ActorDiedError

    get_nowait_batch = size

    def shutdown(self, **_: bool) -> None:
        raise ray_module("ray.exceptions").ActorDiedError


def test_the_loss_of_the_drivers_node_is_one_line_and_no_outcome_of_a_trial(bench: Bench) -> None:
    def lost(_: object) -> None:
        raise ray_module("ray.exceptions").NodeDiedError("\nTask failed because the node is dead.\nIts log:")

    runner = bench.runner(bench.suite(["fake-ok"]))
    (planned,) = runner.plan()[:1]
    executor = RayExecutor()
    executor._ray, executor.mailbox = SimpleNamespace(get=lost), LostMailbox()
    trial = _RayTrial(runner.task(planned.trial, lambda _: None), reference=object())
    for what in (executor.events, lambda: executor._outcome(trial)):
        with pytest.raises(ClusterLostError, match=r"is lost \(.*\); .* the same command goes on") as told:
            what()
        assert "\n" not in str(told.value)
    assert bench.store.record(planned.trial.key) is None
    executor.close()


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(XMCBenchError, match=r"--executor ray needs ray.*: pip install 'xmcbench\[ray\]'"):
        RayExecutor().__enter__()


def test_there_is_room_for_as_many_as_fit() -> None:
    executor = RayExecutor()
    executor._total = {"CPU": 4.0, "GPU": 1.0}
    assert executor.has_room(Needs(workers=4, gpus=0.0))
    executor._running["a"] = _RayTrial(Task(None, Needs(workers=2, gpus=0.0), 1.0, print))
    assert executor.has_room(Needs(workers=2, gpus=0.0))
    assert not executor.has_room(Needs(workers=3, gpus=0.0))
    assert executor.has_room(Needs(workers=1, gpus=1.0))
    assert not executor.has_room(Needs(workers=3, min_workers=1, gpus=0.0)), "it waits for all that it can have"
