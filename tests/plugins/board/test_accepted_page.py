"""The page of the accepted records: small, its first rows on the first screen, nothing wider than the screen."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import xmcbench as xb
from xmcbench.suite.tables import RANKS
from xmcbench_plugins.board.claims import read_claims
from xmcbench_plugins.board.curated import findings
from xmcbench_plugins.board.page import write_page

from .browser import Visit

pytestmark = pytest.mark.long  # the page of all accepted records is made

SCREEN = 844  # pixels
WIDTHS = (390, 800, 1400)
LARGEST = 640_000  # bytes, for about a thousand rows


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out: Path = tmp_path_factory.mktemp("accepted")
    board = xb.leaderboard(whole=True, store=out / "store", data=out / "data")
    measured = board.measured
    write_page(board.table, measured.records, out / "site", claims=read_claims(), resampled=measured.resampled)
    return out / "site"


@pytest.fixture(params=WIDTHS)
def visit(chromium: Any, site: Path, request: pytest.FixtureRequest) -> Iterator[Visit]:
    visit = Visit(chromium, site / "index.html", viewport={"width": request.param, "height": SCREEN})
    yield visit
    assert visit.problems == []
    visit.context.close()


def test_it_is_small_and_says_what_was_found(site: Path) -> None:
    assert (site / "index.html").stat().st_size < LARGEST
    page = unescape((site / "index.html").read_text())
    assert all(sentence in page for sentence in findings().sentences)


def test_the_first_row_of_each_view_is_on_the_first_screen(visit: Visit) -> None:
    width = visit.page.viewport_size["width"]
    datasets = visit.page.get_by_role("combobox", name="Dataset", exact=True)
    for dataset, row in {
        "": "#first-matrix tbody tr",
        findings().dataset: "#tables tbody tr",
        "lf-amazontitles-1.3m": "#tables tbody tr",
    }.items():
        datasets.select_option(dataset)
        box = visit.page.locator(row).first.bounding_box()
        assert box["y"] + box["height"] < SCREEN, dataset
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width, dataset


def test_every_column_is_on_a_wide_screen(chromium: Any, site: Path) -> None:
    visit = Visit(chromium, site / "index.html", viewport={"width": 1400, "height": SCREEN})
    datasets = visit.page.get_by_role("combobox", name="Dataset", exact=True)
    for dataset in {group.dataset for group in xb.leaderboard(source="measured", store="nowhere").groups}:
        datasets.select_option(dataset)
        hidden = "tables => tables.map(one => one.scrollWidth - one.clientWidth)"
        assert not any(visit.page.eval_on_selector_all("#tables .scroll", hidden)), dataset
    visit.context.close()


def test_the_names_of_the_chart_of_what_was_found_hide_no_other(visit: Visit) -> None:
    boxes = [name.bounding_box() for name in visit.page.locator("#found .label, #found .axis").all()]
    assert len(boxes) > 4
    for at, one in enumerate(boxes):
        for other in boxes[at + 1 :]:
            beside = one["x"] + one["width"] <= other["x"] or other["x"] + other["width"] <= one["x"]
            apart = abs(one["y"] - other["y"]) >= 12
            assert beside or apart


def test_the_overview_can_be_cited_and_downloaded(chromium: Any, site: Path) -> None:
    visit = Visit(chromium, site / "index.html")
    visit.page.get_by_role("button", name="Cite this").click()
    visit.page.locator("#done").filter(has_text="Citation").wait_for()
    with visit.page.expect_download() as download:
        visit.page.get_by_role("button", name="CSV", exact=True).click()
    with Path(download.value.path()).open(newline="") as file:
        lines = list(csv.DictReader(file))
    shown = visit.page.locator("#first-matrix tbody tr").first
    (first,) = [
        line
        for line in lines
        if (line["source"], line["dataset"], line["recommended"]) == ("measured", findings().dataset, "yes")
        and line["method"] == shown.locator("th").inner_text()
    ]
    assert shown.locator("td a").first.inner_text() == f"{100 * float(first[RANKS]):.2f}"
    assert float(first[f"{RANKS} low"]) < float(first[RANKS]) < float(first[f"{RANKS} high"])
    visit.context.close()
