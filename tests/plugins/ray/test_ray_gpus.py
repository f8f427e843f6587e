"""Trials on a Ray cluster that says it has two GPUs: which of them a trial sees. Nothing computes on them."""

from __future__ import annotations

import json
import os

import pytest
from fakes.bench import Bench

from xmcbench.suite.resources import Needs
from xmcbench.trial.record import Record, Status
from xmcbench_plugins.ray.executor import RayExecutor, backend

from .ray_cluster import SMALL, on_ray

HEAD = {"num_gpus": 2}

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.name != "posix", reason="signals and process groups are POSIX"),
]


def seen(bench: Bench, record: Record) -> str | None:
    environment = json.loads((bench.store.directory(record.key) / "environment.json").read_text())
    visible: str | None = environment.get("CUDA_VISIBLE_DEVICES")
    return visible


def test_trials_side_by_side_have_a_gpu_each(ray_bench: Bench) -> None:
    """They wait for each other."""
    on_ray(ray_bench, ray_bench.suite(["fake-meets"], seeds=[0, 1]))
    assert sorted(str(seen(ray_bench, record)) for record in ray_bench.store.records()) == ["0", "1"]


def test_a_trial_that_asks_for_no_gpu_sees_none(ray_bench: Bench) -> None:
    suite = ray_bench.suite({"words": {"method": "fake-sees-none"}})
    assert seen(ray_bench, on_ray(ray_bench, suite)["words"]) == ""


@pytest.mark.slow  # `test_nccl_is_for_workers_with_a_gpu_each` has the rule
def test_workers_share_a_gpu_over_gloo(ray_bench: Bench) -> None:
    suite = ray_bench.suite({"a": {"method": "dexml", "negatives": "in-batch", **SMALL}}, budget={"steps": 3})
    assert on_ray(ray_bench, suite, workers=2, gpus=0.5)["a"].status is Status.OK


@pytest.mark.parametrize(
    ("needs", "wanted"),
    [
        (Needs(workers=2, gpus=1), "nccl"),
        (Needs(workers=2, gpus=2), "nccl"),
        (Needs(workers=2, gpus=0.5), "gloo"),
        (Needs(workers=1, gpus=1), "gloo"),
        (Needs(workers=4, gpus=0), "gloo"),
    ],
)
def test_nccl_is_for_workers_with_a_gpu_each(needs: Needs, wanted: str) -> None:
    assert backend(needs) == wanted


def test_a_worker_asks_for_a_gpu_where_the_cluster_has_one() -> None:
    executor = RayExecutor()
    executor._total = {"CPU": 8.0, "GPU": 2.0}
    assert (executor.gpus(Needs()), executor.gpus(Needs(gpus=0.5)), executor.gpus(Needs(gpus=0.0))) == (1, 0.5, 0)
    assert not executor._fitting(Needs(workers=3, min_workers=3), executor._total)
    assert executor._fitting(Needs(workers=3, min_workers=3, gpus=0.5), executor._total) == 3
    executor._total = {"CPU": 8.0}
    assert executor.gpus(Needs()) == 0
