"""Trials side by side on one machine: the same results, cores divided, and no seconds that anybody could rank."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from fakes import TRUSTED
from fakes.bench import Bench

from xmcbench.cli import main
from xmcbench.errors import XMCBenchError
from xmcbench.reporting.ranked_groups import leaderboard
from xmcbench.runs import local
from xmcbench.suite.resources import Share
from xmcbench.trial.record import Status
from xmcbench.trial.store import Store

pytestmark = pytest.mark.skipif(os.name != "posix", reason="forks and signals are POSIX")


def test_two_trials_run_at_once_and_show_no_seconds(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(local, "usable_cores", lambda: 4)
    bench.run(bench.suite(["fake-meets"], seeds=[0, 1]), parallel=2)
    records = list(bench.store.records())
    assert [record.status for record in records] == [Status.OK, Status.OK]
    assert [record.spent["side_by_side"] for record in records] == [2, 2]
    for record in records:
        assert (
            json.loads((bench.store.directory(record.key) / "environment.json").read_text())["OMP_NUM_THREADS"] == "2"
        )
    table = leaderboard(records)
    (row,) = table.groups[0].rows
    assert row.facts["side_by_side"] == 2
    assert not {"device_seconds", "query_ms", "training_hours"} & row.facts.keys()
    assert any("side by side" in note for note in table.notes)


def test_a_killed_trial_does_not_end_its_neighbour(bench: Bench) -> None:
    suite = bench.suite(["fake-killed", "fake-tidy", "fake-ok"], seeds=[0, 1])
    bench.run(suite, parallel=3)
    ended = {(record.trial.label, record.trial.seed): record.status for record in bench.store.records()}
    assert ended == {
        (name, seed): Status.OOM if name == "killed" else Status.OK
        for name in ("killed", "tidy", "ok")
        for seed in (0, 1)
    }


def test_a_trial_has_the_key_and_the_metrics_that_it_has_alone(bench: Bench) -> None:
    suite = bench.suite(["fake-ok", "fake-rare"])
    together = bench.run(suite, parallel=2)
    assert set(bench.plan(suite).values()) == {("hit", f"run {record.ended[:10]}") for record in together.values()}


SMALL = {"method": "dexml", "encoder": "nano", "batch_size": 8, "learning_rate": 1e-3}


@pytest.mark.slow
def test_equal_threads_give_equal_bits_and_two_workers_equal_numbers(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads and workers are on record: they decide the order of sums, and so the rounding."""
    monkeypatch.setenv("XMCBENCH_PLUGINS", f"{TRUSTED},xmcbench")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    suite = bench.suite({"a": SMALL}, budget={"steps": 6}, seeds=[0, 1])
    alone, together, divided = (Store(bench.root / name) for name in ("alone", "together", "divided"))
    bench.run(suite, store=alone.root)
    bench.run(suite, store=together.root, parallel=2)
    bench.run(suite, store=divided.root, share=Share(workers=2))
    for record in alone.records():
        same, other = together.record(record.key), divided.record(record.key)
        assert (same.spent["side_by_side"], other.workers) == (2, 2)
        assert [found.provenance["torch_threads"] for found in (record, same, other)] == [1, 1, 1]
        wanted, found, near = (
            store.predictions(own)[0] for store, own in ((alone, record), (together, same), (divided, other))
        )
        np.testing.assert_array_equal(found.indices, wanted.indices)
        np.testing.assert_array_equal(found.scores, wanted.scores)
        np.testing.assert_allclose(near.scores, wanted.scores, atol=1e-4)


def test_budgets_of_seconds_and_other_executors_are_refused(bench: Bench) -> None:
    with pytest.raises(XMCBenchError, match="the budget of ok limits device_seconds"):
        bench.run(bench.suite(["fake-ok"], budget={"device_seconds": 5}), parallel=2)
    with pytest.raises(XMCBenchError, match="found --debug: expected one of them"):
        main(["run", str(bench.suite(["fake-ok"])), "--parallel", "2", "--debug"])
