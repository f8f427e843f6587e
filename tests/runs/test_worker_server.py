"""Workers are forked by one server, and no trial finds anything of an earlier one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.bench import Bench

from xmcbench.trial.record import Record, Status

pytestmark = pytest.mark.skipif(os.name != "posix", reason="forks and signals are POSIX")


def found_by(bench: Bench, record: Record) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((bench.store.directory(record.key) / "found.json").read_text())
    return content


@pytest.mark.long
def test_a_trial_finds_nothing_of_its_neighbours(bench: Bench, tmp_path: Path) -> None:
    alone = Bench(tmp_path / "alone")
    alone.root.mkdir()
    names = ["fake-tidy", "fake-litterer", "fake-killed", "fake-ok"]
    expected = alone.run(alone.suite(["fake-tidy"], seeds=[1]))["tidy"]
    records = bench.run(bench.suite(names, seeds=[0, 1]))
    assert records["killed"].status is Status.OOM
    assert records["litterer"].status is Status.OK
    tidy = [record for record in bench.store.records() if record.trial.method == "fake-tidy"]
    first, second = sorted(tidy, key=lambda record: record.trial.seed)
    before, after, by_itself = found_by(bench, first), found_by(bench, second), found_by(alone, expected)
    assert before["pid"] != after["pid"]
    for name in ("litter", "variable", "folder", "threads", "draws"):
        assert after[name] == by_itself[name]
    assert after["litter"] == 0
    assert second.spent["peak_bytes"] < 10**8 + expected.spent["peak_bytes"]
    (ours, _), (theirs, _) = bench.store.predictions(second), alone.store.predictions(expected)
    assert np.array_equal(ours.indices, theirs.indices)
    assert np.array_equal(ours.scores, theirs.scores)


def test_trials_share_a_server_until_one_is_killed(bench: Bench) -> None:
    bench.run(bench.suite({"a": {"method": "fake-tidy"}, "k": {"method": "fake-killed"}}, seeds=[0, 1]))
    tidy = [record for record in bench.store.records() if record.trial.method == "fake-tidy"]
    servers = [found_by(bench, record)["server"] for record in tidy]
    bench.run(bench.suite({"a": {"method": "fake-tidy"}}, seeds=[2, 3]))
    more = [record for record in bench.store.records() if record.trial.seed > 1]
    assert len({found_by(bench, record)["server"] for record in more}) == 1
    assert len({*servers, found_by(bench, more[0])["server"]}) >= 2


def test_the_memory_of_a_trial_does_not_depend_on_what_others_import(bench: Bench) -> None:
    first, heavy, last = bench.run(bench.suite(["fake-ok", "fake-importer", "fake-tidy"])).values()
    assert heavy.spent["peak_bytes"] > 1.5 * first.spent["peak_bytes"]
    assert last.spent["peak_bytes"] < 1.2 * first.spent["peak_bytes"]


def test_the_loss_of_a_guard_ends_one_trial_and_no_other(bench: Bench) -> None:
    records = bench.run(bench.suite(["fake-guard-killer", "fake-ok"]))
    failure = records["guard-killer"].failure
    assert failure is not None
    assert failure.type == "SIGKILL"
    assert records["ok"].status is Status.OK


def test_what_every_trial_makes_alike_is_made_before_its_worker_is_forked(bench: Bench) -> None:
    (record,) = bench.run(bench.suite(["fake-tidy"])).values()
    made = found_by(bench, record)["made"]
    assert all(made.values()), f"each worker makes it again: {made}"
