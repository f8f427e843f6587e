"""Trials on derived datasets: each track is a dataset of its own, and its base's files stay closed."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.bench import Bench

from xmcbench.data import find_source, load
from xmcbench.data.prepared import prepared_directory, source_folders
from xmcbench.reporting.ranked_groups import leaderboard
from xmcbench.runs.file_guard import BrokenContractError, Guard, guarded
from xmcbench.trial.record import Status

TRACKS = ("few-shot-1", "new-labels-0.1", "missing-labels-0.2")


def test_every_track_runs_and_is_a_part_of_the_board(bench: Bench) -> None:
    suite = bench.suite(["fake-ok"], datasets=[f"fake-20+{track}" for track in TRACKS], metrics=["R@5", "R-unseen@5"])
    runner = bench.runner(suite)
    records = runner.run(runner.plan(), bench.heard)
    assert [record.status for record in records] == [Status.OK] * len(TRACKS)
    assert {group.dataset for group in leaderboard(records).groups} == {f"fake-20+{track}" for track in TRACKS}
    assert len({record.key for record in records}) == len(TRACKS)


def test_the_files_of_the_base_are_closed_too(tmp_path: Path) -> None:
    data, cache = tmp_path / "data", tmp_path / "cache"
    load("catalog-200", data, cache)
    load("catalog-200+few-shot-1", data, cache)
    (data / "catalog-200").mkdir(parents=True)
    own = data / "catalog-200" / "tst.json"
    own.write_text("{}")
    base, derived = (find_source(name, data) for name in ("catalog-200", "catalog-200+few-shot-1"))
    copies = [prepared_directory(source, data, cache) for source in (base, derived)]
    for path in (own, copies[0] / "test_targets.indices.npy", copies[1] / "test_targets.indices.npy"):
        guard = guarded(Guard("fit", source_folders(derived, data, cache), copies[1]))
        with pytest.raises(BrokenContractError, match="opened"), guard:
            path.read_bytes()
    with guarded(Guard("fit", source_folders(derived, data, cache), copies[1])):
        assert (copies[1] / "card.json").read_bytes()
