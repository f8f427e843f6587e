"""Trials in the common schema: places, joins between a log and its lines, figures of the record."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import xmcbench as xb
from xmcbench.reporting.archive import Archive, archive
from xmcbench.reporting.formats import Shown
from xmcbench.trial.record import Record
from xmcbench_plugins.board import write_logs
from xmcbench_plugins.board.every_eval_ever import write_evaluations
from xmcbench_plugins.board.results import ACCEPTED

PLACE = re.compile(r"data/[^/]+/[^/]+/[^/]+/[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\.json")
SUITE = """
name: two
datasets: [catalog-200]
methods: {popular: {method: popular}, neighbours: {method: tfidf-nn}}
budget: {epochs: 1}
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Record]]:
    root = tmp_path_factory.mktemp("exported")
    (root / "suite.yaml").write_text(SUITE)
    xb.run(root / "suite.yaml", store=root / "store")
    return root / "logs", write(archive(root / "store").of({"catalog-200"}), root / "logs")


def write(trials: Archive, folder: Path) -> dict[str, Record]:
    write_evaluations(trials, trials.records.keys(), Path("nowhere"), folder)
    return trials.records


def logs(folder: Path) -> dict[str, dict[str, Any]]:
    """Each log by the key of its trial."""
    found = (json.loads(path.read_text()) for path in folder.rglob("*.json"))
    return {log["model_info"]["additional_details"]["trial"]: log for log in found}


def test_a_trial_is_a_log_at_the_place_that_the_schema_wants(exported: tuple[Path, dict[str, Record]]) -> None:
    folder, records = exported
    assert logs(folder).keys() == records.keys()
    assert all(PLACE.fullmatch(path.relative_to(folder).as_posix()) for path in folder.rglob("*.json"))


def test_a_log_has_the_metrics_and_intervals_of_its_record(exported: tuple[Path, dict[str, Record]]) -> None:
    folder, records = exported
    for key, log in logs(folder).items():
        results = {one["evaluation_result_id"]: one["score_details"] for one in log["evaluation_results"]}
        assert {name: details["score"] for name, details in results.items()} == records[key].metrics
        for name, (low, high) in records[key].intervals.items():
            interval = results[name]["uncertainty"]["confidence_interval"]
            assert (interval["lower"], interval["upper"]) == (low, high)
        details = log["model_info"]["additional_details"]
        assert all(isinstance(value, str) for value in details.values())


def test_the_lines_of_a_log_come_to_its_metric(exported: tuple[Path, dict[str, Record]]) -> None:
    folder, records = exported
    for key, log in logs(folder).items():
        reference = log["detailed_evaluation_results"]
        content = (folder / reference["file_path"]).read_bytes()
        assert sha256(content).hexdigest() == reference["checksum"]
        lines = [json.loads(line) for line in content.splitlines()]
        assert len(lines) == reference["total_rows"]
        assert {(line["evaluation_id"], line["model_id"]) for line in lines} == {
            (log["evaluation_id"], log["model_info"]["id"])
        }
        for line in lines:
            assert line["evaluation"]["is_correct"] == (line["output"]["raw"][0] in line["input"]["reference"])
        mean = sum(line["evaluation"]["score"] for line in lines) / len(lines)
        assert mean == pytest.approx(records[key].metrics["P@1"], abs=1e-12)


def test_only_trials_of_the_user_are_written_unless_all_are_asked_for(tmp_path: Path) -> None:
    board = xb.leaderboard("lf-tibkat-15k", source="measured", top=1, store=tmp_path)
    said: list[str] = []
    shown = Shown(board.table, board.measured, (), tmp_path, said.append)
    assert not write_logs(shown, tmp_path / "own")
    assert any("--all" in line for line in said)
    logged = write_logs(replace(shown, every_row=True), tmp_path / "every")
    assert len(logged) == len(board.table.keys)


def test_trials_without_predictions_have_no_lines(tmp_path: Path) -> None:
    write(archive(ACCEPTED).of({"lf-tibkat-15k"}), tmp_path / "logs")
    found = logs(tmp_path / "logs")
    assert found
    assert not any("detailed_evaluation_results" in log for log in found.values())
