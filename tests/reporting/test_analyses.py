from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from xmcbench.evaluation.analysis import DECILES, REGIMES, SIMILARITY, SIMILARITY_OF_TAIL, Analysis
from xmcbench.reporting.analyses import analysis_tables, names, write_analyses

from .leaderboards import analysed, measured
from .made import record


@pytest.fixture(scope="module")
def found() -> dict[str, Analysis]:
    return dict(zip(("first", "second"), analysed(measured(2)).values(), strict=False))


def values(path: Path, *place: str) -> list[str]:
    """The values that a file of figures holds of a trial, partition and figure."""
    rows = csv.DictReader(path.open())
    return [row["value"] for row in rows if (row["trial"], row["partition"], row["metric"]) == place]


def test_tables_show_contributions_that_add_up_and_gains_over_the_first(found: dict[str, Analysis]) -> None:
    grids = {grid.title.split(":")[0]: grid for grid in reversed(analysis_tables(found))}
    assert set(grids) >= {REGIMES, DECILES, SIMILARITY, SIMILARITY_OF_TAIL}
    for partition in (REGIMES, DECILES, SIMILARITY):
        grid = grids[partition]
        assert grid.headings == ("bin", "labels", "test pairs", "first", "second", "Δ second")
        *bins, total = grid.rows
        assert sum(float(row[3]) for row in bins) == pytest.approx(float(total[3]), abs=0.06)
        assert total[3] == f"{100 * found['first'].trade_off[5][0]:.2f}"
        first, second = (each.breakdowns[partition].contribution for each in found.values())
        gains = [f"{100 * (b - a) / a:+.1f} %" if a else "-" for a, b in zip(first, second, strict=True)]
        assert [row[5] for row in bins] == gains
    assert "Δ: relative to first." in grids[REGIMES].notes


def test_one_trial_is_compared_with_none(found: dict[str, Analysis]) -> None:
    for grid in analysis_tables({"first": found["first"]})[1:]:
        assert grid.headings == ("bin", "labels", "test pairs", "first")


def test_files_carry_every_digit(found: dict[str, Analysis], tmp_path: Path) -> None:
    paths = write_analyses(found, tmp_path / "new")
    assert [path.name for path in paths] == ["metrics.csv", "curves.csv", "analysis.json"]
    for name, analysis in found.items():
        contribution = [float(value) for value in values(paths[0], name, DECILES, "contribution")]
        assert contribution == analysis.breakdowns[DECILES].contribution.tolist()
    points = [row for row in csv.DictReader(paths[1].open()) if row["curve"] == "recall, precision"]
    first = found["first"].precision_recall
    assert [float(p["x"]) for p in points if p["trial"] == "first"] == first.recall.tolist()
    written = json.loads(paths[2].read_text())
    assert written["second"]["trade_off"]["5"] == list(found["second"].trade_off[5])
    assert written["first"]["precision_recall"]["exact_from"] == first.exact_from


def test_a_figure_without_a_meaning_is_empty_and_not_zero(found: dict[str, Analysis], tmp_path: Path) -> None:
    breakdown = found["first"].breakdowns[REGIMES]
    nothing = np.isnan(breakdown.recall)
    assert nothing.any()
    paths = write_analyses(found, tmp_path)
    assert [value == "" for value in values(paths[0], "first", REGIMES, "recall")] == nothing.tolist()
    assert json.loads(paths[2].read_text())["first"]["breakdowns"][REGIMES]["recall"].count(None) == nothing.sum()


def test_trials_are_told_apart_by_seed_and_then_by_key() -> None:
    first, seeded, other = record("a"), record("a", seed=1), record("a", config={"x": 1})
    assert list(names([first, record("b", seed=2)])) == ["a", "b"]
    assert list(names([first, seeded])) == ["a seed 0", "a seed 1"]
    assert list(names([first, seeded, other])) == [f"a {each.key}" for each in (first, seeded, other)]
