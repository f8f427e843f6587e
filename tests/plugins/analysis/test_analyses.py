from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reporting.made import record

from plugins.leaderboards import analysed, measured
from xmcbench.evaluation.analysis import DECILES, REGIMES, SIMILARITY, SIMILARITY_OF_TAIL, Analysis
from xmcbench.evaluation.calibration import reliability
from xmcbench_plugins.analysis.tables import analysis_tables, names, write_analyses


@pytest.fixture(scope="module")
def found() -> dict[str, Analysis]:
    return dict(zip(("first", "second"), analysed(measured(2)).values(), strict=False))


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


def test_the_file_carries_every_digit(found: dict[str, Analysis], tmp_path: Path) -> None:
    written = json.loads(write_analyses(found, tmp_path / "new").read_text())
    for name, analysis in found.items():
        assert (
            written[name]["breakdowns"][DECILES]["contribution"] == analysis.breakdowns[DECILES].contribution.tolist()
        )
        assert written[name]["precision_recall"]["recall"] == analysis.precision_recall.recall.tolist()
    assert written["second"]["trade_off"]["5"] == list(found["second"].trade_off[5])
    assert written["first"]["precision_recall"]["exact_from"] == found["first"].precision_recall.exact_from


def test_a_figure_without_a_meaning_is_empty_and_not_zero(found: dict[str, Analysis], tmp_path: Path) -> None:
    nothing = np.isnan(found["first"].breakdowns[REGIMES].recall)
    assert nothing.any()
    written = json.loads(write_analyses(found, tmp_path).read_text())
    assert [value is None for value in written["first"]["breakdowns"][REGIMES]["recall"]] == nothing.tolist()


def test_probabilities_have_a_table_where_scores_are_some(found: dict[str, Analysis]) -> None:
    assert not [table for table in analysis_tables(found) if table.title.startswith("probabilities")]
    held = reliability(np.array([0.1, 0.3, 0.8]), np.array([False, True, True]))
    first, second = found
    (table,) = (
        table
        for table in analysis_tables({first: replace(found[first], reliability=held), second: found[second]})
        if table.title.startswith("probabilities")
    )
    assert table.rows == ((first, f"{100 * (0.1 + 0.7 + 0.2) / 3:.2f}", "40.00", "66.67"),)


def test_trials_are_told_apart_by_seed_and_then_by_key() -> None:
    first, seeded, other = record("a"), record("a", seed=1), record("a", config={"x": 1})
    assert list(names([first, record("b", seed=2)])) == ["a", "b"]
    assert list(names([first, seeded])) == ["a seed 0", "a seed 1"]
    assert list(names([first, seeded, other])) == [f"a {each.key}" for each in (first, seeded, other)]
