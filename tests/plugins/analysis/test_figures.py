from __future__ import annotations

import re
import sys
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from reporting.made import record

from plugins.leaderboards import HOSTILE, analysed, board, measured, published
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.calibration import reliability
from xmcbench.reporting.ranked_groups import leaderboard
from xmcbench.reporting.rows import View
from xmcbench_plugins.analysis import figures, plots
from xmcbench_plugins.analysis.figures import write_analysis_figures, write_figures
from xmcbench_plugins.analysis.plots import UNDATED, drawing

pytest.importorskip("matplotlib")
MAGIC = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}


@pytest.mark.parametrize("format", UNDATED)
def test_figures_are_files_of_their_format_and_the_same_bytes_again(tmp_path: Path, format: str) -> None:
    records = measured(2)
    table, analyses = leaderboard(records.values(), (), View()), analysed(records)
    first, second = (write_figures(table, records, tmp_path / name, format, analyses) for name in "ab")
    expected = [f"made-1000-steps-{what}" for what in ("P5-encoder_tokens", "P5-device_hours", "curve", "deciles")]
    assert [path.name for path in first] == [f"{name}.{format}" for name in expected]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes().startswith(MAGIC[format])
        assert one.read_bytes() == other.read_bytes()


def test_every_dataset_and_budget_has_figures_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    for name in ("_cost", "_curves", "deciles"):
        monkeypatch.setattr(figures, name, lambda *facts: drawn.append(facts[-1].name))
    records, table = board()
    paths = write_figures(table, records, tmp_path, "pdf", analysed(records))
    assert drawn == [path.name for path in paths]
    assert len(set(drawn)) == len(drawn)
    curves = {f"{name}-curve.pdf" for name in ("made-1000-steps", "made-5000-encoder-tokens", "zoo-1000-steps")}
    assert curves | {"made-1000-steps-P5-device_hours.pdf", "made-1000-steps-deciles.pdf"} <= set(drawn)


def test_a_figure_says_what_it_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plots.STYLE, "svg.fonttype", "none")  # text stays text
    records = measured(3)
    table = leaderboard(records.values(), published(), View())
    paths = {path.stem: path.read_text() for path in write_figures(table, records, tmp_path, "svg")}
    cost = paths["made-1000-steps-P5-device_hours"]
    for text in ("method-0", "method-2", "DEXML", "device hours", "P@5 (%)", "measured"):
        assert text in cost
    assert "<script>" not in cost
    assert all(f"method-{i}" in paths["made-1000-steps-curve"] for i in range(3))


def test_at_most_eight_lines_are_drawn_each_with_its_colour_and_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(plots.STYLE, "svg.fonttype", "none")
    records = measured(11)
    write_figures(leaderboard(records.values(), (), View()), records, tmp_path, "svg")
    curve = (tmp_path / "made-1000-steps-curve.svg").read_text()
    assert [i for i in range(11) if f"DEXML (method-{i})" in curve] == list(range(8)), "the best"
    assert all(colour in curve for colour in plots.COLOURS)


def test_colours_are_those_of_the_page() -> None:
    style = files("xmcbench_plugins.board.page").joinpath("page.css").read_text(encoding="utf-8").split("@media")[0]
    assert re.findall(r"--c\d: (#\w+);", style) == list(plots.COLOURS)


def test_the_front_is_of_what_nothing_beats() -> None:
    places = [(1.0, 10.0), (2.0, 9.0), (2.0, 30.0), (3.0, 30.0), (4.0, 40.0)]
    points = [figures.Point("measured", "", 0, x, y, (0.0, 0.0)) for x, y in places]
    front = figures._front(points)
    assert [(point.x, point.y) for point in front] == [(1.0, 10.0), (2.0, 30.0), (4.0, 40.0)]
    for point in points:
        beaten = any(
            (other.x <= point.x and other.y > point.y) or (other.x < point.x and other.y >= point.y) for other in points
        )
        assert (point in front) == (not beaten)


def test_formulas_and_markup_in_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    label = f"$x^$ \\frac {HOSTILE}"
    found = record(label, curve=[{"encoder_tokens": at, "P@1": 0.5} for at in (1.0, 2.0)])
    table = leaderboard([found, record("other", config={"x": 1})], (), View())
    paths = write_figures(table, {found.key: found}, tmp_path, "png", analysed({found.key: found}))
    assert len(paths) == 4


def test_figures_of_analyses(tmp_path: Path) -> None:
    found = dict(zip(("one", "two"), analysed(measured(2)).values(), strict=False))
    paths = write_analysis_figures(found, tmp_path, "svg")
    assert [path.stem for path in paths] == ["deciles", "precision-recall", "scores", "trade-off", "similarity"]
    half = replace(found["one"], reliability=reliability(np.array([0.1, 0.9]), np.array([False, True])))
    (drawn,) = set(write_analysis_figures({"one": half, "two": found["two"]}, tmp_path, "svg")) - set(paths)
    assert drawn.stem == "reliability"
    assert drawn.stat().st_size > 1000
    alone = write_analysis_figures({"one": found["one"]}, tmp_path / "alone", "pdf")
    assert all(path.stat().st_size > 1000 for path in alone)


def test_without_matplotlib_a_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(XMCBenchError, match=re.escape("pip install 'xmcbench[plots]'")), drawing(tmp_path / "x.png"):
        pass
    assert not (tmp_path / "x.png").exists()
