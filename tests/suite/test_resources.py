"""What a trial may take: the suite says it, exceptions by name, the command line before both."""

from __future__ import annotations

import pytest
from fakes.bench import Bench

from xmcbench.errors import XMCBenchError
from xmcbench.suite.resources import Needs, Resources, Share

SUITE = {"workers": 2, "cpus": 3, "trials": {"o*": {"gpus": 0.5}, "fake-20/ok": {"workers": 4, "min_workers": 3}}}


@pytest.mark.parametrize(
    ("label", "told", "needs"),
    [
        ("else", Share(), Needs(workers=2, min_workers=2, cpus=3)),
        ("ova", Share(), Needs(workers=2, min_workers=2, cpus=3, gpus=0.5)),
        ("ok", Share(), Needs(workers=4, min_workers=3, cpus=3, gpus=0.5)),
        ("ok", Share(workers=1, gpus=0), Needs(cpus=3, gpus=0)),
        ("ok", Share(workers=8), Needs(workers=8, min_workers=3, cpus=3, gpus=0.5)),
    ],
)
def test_what_is_said_last_holds(label: str, told: Share, needs: Needs, bench: Bench) -> None:
    suite = bench.suite({label: {"method": "fake-ok"}}, resources=SUITE)
    runner = bench.runner(suite)
    (step,) = runner.plan()
    assert runner.suite.resources.of(step.trial, told) == needs


def test_resources_are_in_no_key(bench: Bench) -> None:
    keys = {bench.runner(bench.suite(["fake-ok"], **keys)).plan()[0].trial.key for keys in ({}, {"resources": SUITE})}
    assert len(keys) == 1


def test_a_misspelt_resource_is_an_error_with_its_line(bench: Bench) -> None:
    with pytest.raises(XMCBenchError, match=r"suite.yaml:\d+: resources.trials.o\*.wrokers: unknown key .*'workers'"):
        bench.runner(bench.suite(["fake-ok"], resources={"trials": {"o*": {"wrokers": 2}}}))


def test_nothing_said_is_one_worker_on_one_core_with_a_gpu_where_there_is_one(bench: Bench) -> None:
    runner = bench.runner(bench.suite(["fake-sees", "fake-sees-none"]))
    plain, without = (step.trial for step in runner.plan())
    assert Resources().of(plain, Share()) == Needs(workers=1, min_workers=1, cpus=1, gpus=None)
    assert runner.suite.needs(plain, Share()).gpus is None
    assert runner.suite.needs(without, Share()).gpus == 0, "its method uses none"
