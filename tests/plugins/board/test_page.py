"""The page in a real browser: what it shows, what it does, and what it does not do."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from io import StringIO
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reporting.made import record

from plugins.leaderboards import HOSTILE, METRICS, board, many
from xmcbench.evaluation.comparison import across_datasets
from xmcbench.evaluation.significance import difference, samples
from xmcbench.reporting.compared_rows import Resampled
from xmcbench.reporting.names import named
from xmcbench.reporting.published import published_rows
from xmcbench.reporting.ranked_groups import leaderboard
from xmcbench.reporting.rows import Leaderboard, View
from xmcbench.suite.tables import RANKS
from xmcbench.trial.budget import Budget
from xmcbench.trial.record import Record
from xmcbench_plugins.board.curated import Findings
from xmcbench_plugins.board.page import write_page
from xmcbench_plugins.board.page.payload import payload

from .browser import Visit

STEPS, TOKENS = "1,000 steps", "5,000 encoder tokens"


@pytest.fixture(scope="module")
def records() -> dict[str, Record]:
    return board()[0]


@pytest.fixture
def visit(chromium: Any, site: Path) -> Iterator[Visit]:
    """The page, which may not ask for anything, complain, or have its title taken."""
    visit = Visit(chromium, site / "index.html")
    choice(visit.page, "Dataset").select_option("made")
    yield visit
    assert visit.page.title() == "xmcbench leaderboard"
    assert (visit.requests, visit.problems) == ([visit.uri], [])
    visit.context.close()


def choice(page: Any, name: str) -> Any:
    """The list of choices of that name."""
    return page.get_by_role("combobox", name=name, exact=True)


def by_label(records: dict[str, Record], dataset: str, limits: dict[str, float]) -> dict[str, Record]:
    found = [r for r in records.values() if (r.trial.dataset, r.trial.budget.limits()) == (dataset, limits)]
    return {called(record.trial.label): record for record in found}


def called(label: str) -> str:
    """The row of a record of DEXML's plugin by its method's name in papers."""
    return named(label, "dexml").call(label)


def test_the_figures_shown_are_those_of_the_records(visit: Visit, records: dict[str, Record]) -> None:
    assert visit.headings() == [f"Measured results {TOKENS}", f"Measured results {STEPS}", "Published results"]
    for table, limits in enumerate(({"encoder_tokens": 5000}, {"steps": 1000})):
        expected = by_label(records, "made", limits)
        shown = visit.rows(table)
        assert {row["method"] for row in shown} == set(expected)
        for row in shown:
            metrics = expected[row["method"]].metrics
            figures = {name: f"{100 * metrics[name]:.2f}" if metrics else "–" for name in METRICS}
            assert {name: row[name] for name in METRICS} == figures
    assert [(row["method"], row["P@1"], row["Source"].split(" paper")[0]) for row in visit.rows(2)] == [
        ("DEXML", "58.40", "dexml Table 1"),
        (f"ANCE ({HOSTILE})", "10.0", "dexml Table 1"),
    ]


def test_a_column_is_sorted_either_way_with_mouse_and_keyboard(visit: Visit) -> None:
    assert visit.sort("#") == "ascending"
    visit.sorting("P@5").click()
    assert visit.sort("P@5") == "descending"
    assert visit.sort("#") is None
    figures = [row["P@5"] for row in visit.rows(1)]
    assert figures[-1] == "–"  # a failure has none, and ends last
    values = [float(figure) for figure in figures[:-1]]
    assert values == sorted(values, reverse=True)
    visit.page.keyboard.press("Enter")  # the focus has stayed on the button
    assert visit.sort("P@5") == "ascending"
    figures = [row["P@5"] for row in visit.rows(1)]
    assert [float(figure) for figure in figures[:-1]] == values[::-1]
    assert figures[-1] == "–"
    visit.sorting("tokens").click()  # which shows 10.0k, 20.0k, ... and is sorted by the numbers
    assert [row["tokens"] for row in visit.rows(1)][:3] == ["20.0M", "60.0k", "50.0k"]


def test_filters_choose_rows_and_are_kept_in_the_address(visit: Visit) -> None:
    page = visit.page
    page.get_by_role("radio", name="Measured").check(force=True)
    assert visit.headings() == [f"Measured results {TOKENS}", f"Measured results {STEPS}"]
    choice(page, "Budget").select_option(STEPS)
    assert visit.headings() == [f"Measured results {STEPS}"]
    page.get_by_role("searchbox", name="Search").fill("METHOD-3")
    assert [row["method"] for row in visit.rows()] == [called("method-3")]
    assert page.locator("#count").inner_text() == "1 row"
    page.reload()
    assert [row["method"] for row in visit.rows()] == [called("method-3")]
    page.get_by_role("searchbox", name="Search").fill("no such thing")
    assert page.locator("#tables").inner_text() == "No row matches. Widen the filters above."
    page.get_by_role("searchbox", name="Search").fill("")
    choice(page, "Dataset").select_option("zoo")
    assert visit.headings() == [f"Measured results {STEPS}"]
    choice(page, "Dataset").select_option("other-set")
    assert visit.headings() == ["Published results"]
    visit.requests[:] = visit.requests[:1]  # the reload


def test_columns_are_chosen_without_a_mouse(visit: Visit) -> None:
    assert "workers" not in visit.rows()[0]
    visit.page.locator("#columns summary").focus()
    visit.page.keyboard.press("Enter")
    visit.page.get_by_role("checkbox", name="workers", exact=True).press("Space")
    assert visit.rows(1)[2]["workers"] == "1"
    visit.page.keyboard.press("Escape")
    assert not visit.page.locator("#columns").evaluate("(details) => details.open")


def test_text_of_a_record_is_text(visit: Visit) -> None:
    page = visit.page
    assert called(HOSTILE) in [row["method"] for row in visit.rows(1)]
    assert page.locator("#tables script, #tables img").count() == 0
    assert page.locator("script").count() == 2  # the data and the page's own
    links = page.locator("#tables a").evaluate_all("(links) => links.map((link) => link.getAttribute('href'))")
    outside = {link for link in links if not link.startswith(("records/", "claims.html#claim-"))}
    methods = [named(name) for name in ("DEXML", "ANCE")]
    curated = {address for one in methods for address in (one.paper, one.code)}
    assert outside == {"https://example.org/paper"} | curated


def test_a_link_leads_to_the_record(visit: Visit, site: Path, records: dict[str, Record]) -> None:
    page = visit.page
    page.locator("tr", has_text="<script>").get_by_role("link", name="record").first.click()
    assert page.locator("h1").inner_text().startswith(f"made/{HOSTILE}")
    assert page.locator("main script, main img").count() == 0
    assert page.title().startswith(f"made/{HOSTILE}")
    (key,) = (key for key in records if key in page.url)
    assert key in page.locator("h1").inner_text()
    page.get_by_role("link", name="Overview").click()
    visit.requests[:] = visit.requests[:1]
    files = list((site / "records").iterdir())
    assert len(files) == len(records)
    assert {path.stat().st_mode & 0o777 for path in files} == {0o644}  # a web server may read them


def test_charts_hold_the_values_of_what_is_shown(visit: Visit, records: dict[str, Record]) -> None:
    page = visit.page
    assert page.locator("#cost circle").count() == 3, "the charts are of one table"
    choice(page, "Charts of").select_option(label=f"measured · {STEPS}")
    expected = by_label(records, "made", {"steps": 1000})
    choice(page, "Cost").select_option("encoder tokens")
    points = page.locator("#cost circle title").all_text_contents()
    scored = {name: r for name, r in expected.items() if r.metrics and r.spent["encoder_tokens"]}
    assert len(points) == len(scored)
    for name, own in scored.items():
        assert any(text.startswith(f"{name}: {RANKS} {100 * own.metrics[RANKS]:.2f}, ") for text in points)
    names = page.locator("#cost .label").all_text_contents()
    assert {name.rstrip("…") for name in names} == {name[:33] if len(name) > 34 else name for name in scored}
    assert page.locator("#cost .error").count() == 6, "each interval is drawn"
    assert page.locator("#curve polyline").count() == 6
    styles = page.locator("#curve polyline").evaluate_all("(lines) => lines.map((one) => getComputedStyle(one).stroke)")
    assert len(set(styles)) == 6, "each line has its own colour"
    assert page.locator("#deciles polyline").count() == 7
    assert page.locator("#deciles circle").count() == 7 * 10
    choice(page, "Dataset").select_option("other-set")
    assert page.locator("figure:visible").count() == 0  # one row has no cost to compare


def test_the_page_opens_on_an_overview_and_the_back_button_returns_to_it(visit: Visit) -> None:
    page = visit.page
    page.go_back()
    page.locator("#view").wait_for(state="hidden")
    headings = page.locator("#overview h2").all_inner_texts()
    assert headings == ["Measured results", "Published results", "Datasets"]
    page.locator("#first-matrix").get_by_role("link", name="zoo", exact=True).click()
    page.get_by_role("heading", name="zoo", exact=True).wait_for()
    page.goto(f"{visit.uri}#dataset=nowhere")
    page.get_by_role("alert").filter(has_text="No dataset is called “nowhere”").wait_for()
    assert page.locator("#overview").is_visible()
    page.goto(f"{visit.uri}#dataset=MADE")
    page.get_by_role("heading", name="made", exact=True).wait_for()


def compared() -> tuple[Leaderboard, dict[str, Record], Resampled]:
    """Two budgets of a dataset: methods with listed and unlisted labels, tuned and not, and their resamples."""
    rng = np.random.default_rng(0)
    rows = {"dexml-hard": 0.6, "hard-10": 0.7, "prime": 0.5, "ngame": 0.59}
    found = [
        record(label, p1, method=label.partition("-")[0].replace("hard", "dexml"), budget=Budget(steps=steps))
        for steps in (1000, 9000)
        for label, p1 in rows.items()
        if steps == 1000 or label != "ngame"
    ]
    noise = {own.key: rng.normal(scale=0.01, size=200) for own in found}

    def resampled(key: str, metrics: Sequence[str]) -> dict[str, np.ndarray]:
        metric = by_key[key].metrics
        return {name: metric[name] + noise[key] for name in metrics if name in metric}

    by_key = {own.key: own for own in found}
    return leaderboard(found, (), View(), resampled), by_key, resampled


def test_the_overview_has_each_method_once_at_one_budget_and_its_variants_folded(chromium: Any, tmp_path: Path) -> None:
    board, by_key, resampled = compared()
    write_page(board, by_key, tmp_path, resampled=resampled)
    visit = Visit(chromium, tmp_path / "index.html")
    page = visit.page

    def shown() -> list[list[str]]:
        rows = page.locator("#first-matrix tbody tr").all()
        return [[" ".join(cell.inner_text().split()) for cell in row.locator("th, td").all()] for row in rows]

    assert [row[0] for row in shown()] == ["DEXML+1", "NGAME", "PRIME"], (
        "the best variant does not stand for its method"
    )
    assert page.locator("#first-matrix td.best").inner_text().startswith("60.00")
    page.get_by_role("button", name="1 variants of DEXML").press("Enter")
    assert [row[0] for row in shown()] == ["DEXML+1", "DEXML (hard-10)", "NGAME", "PRIME"]
    page.get_by_role("combobox", name="Metric").select_option("P@1")
    page.get_by_role("combobox", name="Budget of made").select_option("9k steps")
    assert [row[0] for row in shown()] == ["DEXML+1", "DEXML (hard-10)", "PRIME"], "rows of one budget alone"
    page.get_by_role("searchbox", name="Search methods").fill("pri")
    assert [row[0] for row in shown()] == ["PRIME"]
    assert page.locator("#first-matrix td.best").count() == 0, "the best of all methods, not of those that are found"
    page.reload()
    assert [row[0] for row in shown()] == ["PRIME"], "the address holds what is shown"
    assert page.get_by_role("combobox", name="Budget of made").input_value() == "9k steps"
    assert visit.problems == []
    visit.context.close()


def test_ticked_rows_are_compared_in_pairs(chromium: Any, tmp_path: Path) -> None:
    board, by_key, resampled = compared()
    write_page(board, by_key, tmp_path, resampled=resampled)
    visit = Visit(chromium, tmp_path / "index.html", viewport={"width": 1280, "height": 500})
    page = visit.page
    choice(page, "Dataset").select_option("made")
    table = page.locator("#tables table").first
    table.get_by_role("checkbox", name="Compare DEXML (hard-10)").check()
    assert page.locator("#comparison").is_hidden()
    table.get_by_role("checkbox", name="Compare NGAME").check()
    box = page.locator("#comparison").bounding_box()
    assert 0 < box["y"] < box["y"] + box["height"] <= 500, "it stays in sight"
    first, second = (
        next(own for own in by_key.values() if (own.trial.label, own.trial.budget.steps) == (label, 1000))
        for label in ("hard-10", "ngame")
    )
    both = [samples([own], [resampled(own.key, ["P@1"])])["P@1"] for own in (first, second)]
    low, high = difference(both[1], both[0]).interval
    expected = f"−11.00 ± {50 * (high - low):.2f}"
    cell = page.locator("#comparison tbody tr").last.locator("td small").first
    assert cell.inner_text() == expected
    assert cell.get_attribute("class") == "clear"
    page.get_by_role("button", name="Clear").click()
    assert page.locator("#comparison").is_hidden()
    visit.context.close()


def test_half_widths_are_those_of_every_pair() -> None:
    board, by_key, resampled = compared()
    group = payload(board, by_key, {}, resampled)["groups"][0]
    keys = [board.groups[0].rows[at].keys[0] for at in group["compared"]]
    own = [samples([by_key[key]], [resampled(key, ["P@1"])])["P@1"] for key in keys]
    expected = [difference(one, other).interval for one, other in combinations(own, 2)]
    assert group["halves"]["P@1"] == [round(5000 * (high - low)) for low, high in expected]


def test_claims_have_a_page_with_a_forest_plot_and_links_to_trials_and_scale(
    visit: Visit, records: dict[str, Record]
) -> None:
    page = visit.page
    mark = page.get_by_role("link", name="DEXML wins (dexml Table 1): seen here (made, 9 labels, nano, 2 epochs)")
    assert mark.inner_text() == "○"
    mark.click()
    claim = page.locator("#claim-dexml-wins")
    claim.wait_for()
    assert "seen here made, 9 labels, nano, 2 epochs P@1 +2.00 (+1.00 to +3.00)" in " ".join(claim.inner_text().split())
    about = " ".join(page.locator("main > .about").inner_text().split())
    assert "1 claims in 1 attempts: 1 seen." in about
    assert "1 questions of our own: 1 undecided" in about
    links = [link.get_attribute("href") for link in claim.get_by_role("link").all()]
    assert links == [f"records/{key}.html" for key in list(records)[:2]]
    low, middle, high = (
        float(page.locator(f".forest {part}").first.get_attribute(name))
        for part, name in ((".whisker", "x1"), ("circle", "cx"), (".whisker", "x2"))
    )
    assert (
        page.locator(".forest .zero").first.evaluate("(line) => Number(line.getAttribute('x1'))") < low < middle < high
    )
    page.goto(visit.uri)
    visit.requests[:] = visit.requests[:1]


def test_a_record_says_first_what_people_ask_and_has_commands_to_copy(
    chromium: Any, site: Path, records: dict[str, Record]
) -> None:
    key = next(key for key, own in records.items() if own.trial.label == "method-1")
    visit = Visit(chromium, site / "records" / f"{key}.html")
    page = visit.page
    assert page.locator("main h2").all_inner_texts() == [
        "Metrics",
        "About",
        "Settings",
        "Cost",
        "Provenance",
        "Run it again",
    ]
    values = {
        row.locator("th").inner_text(): row.locator("td").first.inner_text()
        for row in page.locator(".narrow tbody tr").all()
    }
    assert values == {name: f"{100 * value:.2f}" for name, value in records[key].metrics.items()}
    assert not page.locator("details").evaluate("(details) => details.open")
    page.get_by_role("button", name="Copy the suite").click()
    page.locator("#done").filter(has_text="Suite").wait_for()
    assert visit.problems == []
    visit.context.close()


def test_tooltips_open_by_keyboard(visit: Visit) -> None:
    page = visit.page
    page.locator("#tables").get_by_role("button", name="tokens").first.focus()
    assert page.locator(".tip").inner_text() == "real tokens encoded, mining included"
    page.keyboard.press("Escape")
    assert page.locator(".tip").is_hidden()


def standing() -> dict[str, Record]:
    """Four methods on two datasets, and one on one of them."""
    values = {"dexml-hard": (0.6, 0.7), "prime": (0.5, 0.8), "ngame": (0.59, 0.2), "unidec": (0.3, 0.1), "ova": (0.9,)}
    found = [
        record(label, p1, method=label.partition("-")[0], dataset=dataset, dataset_hash=dataset)
        for label, of_dataset in values.items()
        for dataset, p1 in zip(("made", "zoo"), of_dataset, strict=False)
    ]
    return {own.key: own for own in found}


def test_standings_are_those_of_the_methods_that_every_dataset_has() -> None:
    records = standing()
    table = leaderboard(records.values(), (), View())
    found = payload(table, records, {})["standings"]
    names = [name for name, *_ in found["methods"]]
    assert sorted(names) == ["DEXML", "NGAME", "PRIME", "UniDEC"]
    metric_DM = np.array(
        [
            [table.groups[at].rows[own[place]].metrics["P@1"] for own in found["methods"]]
            for place, (at, _) in enumerate(found["places"], start=1)
        ]
    )
    expected = across_datasets(metric_DM)
    assert [own[0] for own in found["by"]["P@1"]] == [own.mean_rank.value for own in expected]
    assert [own[3] for own in found["by"]["P@1"]] == [round(own.win_rate.value, 3) for own in expected]


def test_the_first_chart_has_the_winners_in_the_metric_of_text_and_table(
    chromium: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, table = board()
    write_page(table, records, tmp_path / "without")
    assert 'id="found"' not in (tmp_path / "without/index.html").read_text(), "no method is on two datasets"
    found = Findings(dataset="made", suite="tests", sentences=("First <b>.", "Second.", "Third."))
    monkeypatch.setattr("xmcbench_plugins.board.page.findings", lambda: found)
    records = standing()
    write_page(leaderboard(records.values(), (), View()), records, tmp_path / "with")
    visit = Visit(chromium, tmp_path / "with/index.html")
    page = visit.page
    assert page.locator("#found p").all_inner_texts()[:3] == list(found.sentences)
    assert page.locator("#found .axis").all_text_contents() == ["made", "zoo", "mean rank"]
    assert page.locator("#found .label").all_text_contents() == ["DEXML", "PRIME", "NGAME", "UniDEC"]
    assert page.locator("#found circle title").first.text_content() == "DEXML, made: P@1 60.00 (60 to 60)"
    assert page.get_by_role("combobox", name="Metric").input_value() == "P@1"
    shown = page.locator("#first-matrix tbody tr", has_text="PRIME").locator("td").first
    assert shown.inner_text().split() == ["2.0", "1.0–3.0"]
    page.get_by_role("button", name="Sort by zoo").click()
    page.reload()
    assert page.get_by_role("columnheader", name="zoo").get_attribute("aria-sort") == "descending"
    assert visit.problems == []
    visit.context.close()


@pytest.mark.parametrize("width", [390, 800, 1400])
def test_the_first_row_is_visible_at_once(chromium: Any, tmp_path: Path, width: int) -> None:
    table, by_key, resampled = compared()
    write_page(table, by_key, tmp_path, resampled=resampled)
    visit = Visit(chromium, tmp_path / "index.html", viewport={"width": width, "height": 844})
    for where in ("#first-matrix tbody tr", "#tables tbody tr"):
        box = visit.page.locator(where).first.bounding_box()
        assert box["y"] + box["height"] < 844
        choice(visit.page, "Dataset").select_option("made")
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
    visit.context.close()


@pytest.mark.parametrize("width", [390, 800, 1400])
def test_each_row_says_its_date_paper_code_and_licence(chromium: Any, tmp_path: Path, width: int) -> None:
    git = {"git": {"commit": "0123456789abcdef"}, "versions": {"xmcbench": "0.3.0"}}
    trial = {"method": "dexml", "distribution": "xmcbench", "provenance": git}
    ours = record("dexml-hard", 0.4, ended="2026-11-03T10:00:00+00:00", **trial)
    seed = record("dexml-hard", 0.4, ended="2026-11-05T10:00:00+00:00", seed=1, **trial)
    other = record("mine", 0.3, ended="2026-10-01T10:00:00+00:00", method="mine", distribution="nowhere")
    by_key = {own.key: own for own in (ours, seed, other)}
    cited = [row.model_copy(update={"dataset": "made"}) for row in published_rows() if row.dataset == "eurlex-4k"]
    cited += [row.model_copy(update={"dataset": "made"}) for row in published_rows() if row.method == "ELMO"][:1]
    table = leaderboard(by_key.values(), cited, View())
    write_page(table, by_key, tmp_path, published=published_rows())
    visit = Visit(chromium, tmp_path / "index.html", viewport={"width": width, "height": 844})
    page = visit.page
    choice(page, "Dataset").select_option("made")
    first, second = page.locator("#tables table").first.locator("tbody tr").all()
    assert first.locator(".date").inner_text().split() == ["2026-11-05", "Apache-2.0"]
    assert second.locator(".date").inner_text().split() == ["2026-10-01"]
    paper = first.get_by_role("link", name="paper")
    assert paper.get_attribute("href") == named("dexml").paper == "https://arxiv.org/abs/2310.10636"
    assert first.locator(".links .interval").inner_text() == "paper · xmcbench"
    assert second.locator(".links .interval").inner_text() == "nowhere"
    elmo = page.locator("#tables table").nth(1).locator("tr", has_text="ELMO").first
    assert elmo.locator(".date").inner_text().split() == ["2025", "MIT"]
    assert elmo.get_by_role("link", name="code").get_attribute("href") == named("ELMO").code
    heading = page.locator("th.method", has_text="DEXML")
    own = page.locator("#tables table").nth(1).locator("tr", has=heading).first  # its source is its paper
    assert own.get_by_role("link", name="paper").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    scroll = page.locator("#tables .scroll").first
    last = first.locator("td").last
    last.scroll_into_view_if_needed()
    box, frame = last.bounding_box(), scroll.bounding_box()
    assert box["x"] + box["width"] <= frame["x"] + frame["width"]
    visit.sorting("date").click()
    assert visit.sort("date") == "ascending"
    assert [row["date"] for row in visit.rows()] == ["2026-10-01", "2026-11-05"]
    with page.expect_download() as file:
        page.get_by_role("button", name="Download CSV").click()
    lines = {line["method"]: line for line in csv.DictReader(StringIO(Path(file.value.path()).read_text()))}
    found = {name: lines["dexml-hard"][name] for name in ("date", "paper_url", "code", "licence")}
    assert found == {
        "date": "2026-11-05",
        "paper_url": "https://arxiv.org/abs/2310.10636",
        "code": "xmcbench 0.3.0, commit 0123456789ab",
        "licence": "Apache-2.0",
    }
    assert visit.problems == []
    visit.context.close()


def test_what_is_shown_is_downloaded(visit: Visit, records: dict[str, Record]) -> None:
    page = visit.page
    choice(page, "Budget").select_option(STEPS)
    with page.expect_download() as csv_file:
        page.get_by_role("button", name="Download CSV").click()
    ours = {line["method"]: line for line in csv.DictReader(StringIO(Path(csv_file.value.path()).read_text()))}
    expected = next(own for own in records.values() if own.trial.label == "method-1" and own.trial.budget.steps)
    for end, value in zip(("low", "high"), expected.intervals["P@1"], strict=True):
        assert float(ours["method-1"][f"P@1 {end}"]) == pytest.approx(value, abs=0.0005)
    choice(page, "Budget").select_option("")
    page.get_by_role("radio", name="Published").check(force=True)
    with page.expect_download() as csv_file:
        page.get_by_role("button", name="Download CSV").click()
    lines = list(csv.DictReader(StringIO(Path(csv_file.value.path()).read_text())))
    assert [(line["method"], line["P@1"]) for line in lines] == [("DEXML", "0.584"), ("ANCE", "0.1")]
    assert lines[1]["variant"] == HOSTILE
    with page.expect_download() as json_file:
        page.get_by_role("button", name="Download JSON").click()
    assert [row["rank"] for row in json.loads(Path(json_file.value.path()).read_text())] == [1, 2]


def test_search_folds_accents_and_splits_words(chromium: Any, tmp_path: Path) -> None:
    write_page(leaderboard([], published_rows(), View()), {}, tmp_path)
    visit = Visit(chromium, tmp_path / "index.html")
    choice(visit.page, "Dataset").select_option("lf-amazontitles-1.3m")
    for text, names in {
        "renee": {"Renée", "Renée + LEVER"},
        "prime lite": {"PRIME-lite"},
        "dexa enc": {"DEXA"},
    }.items():
        visit.page.get_by_role("searchbox", name="Search").fill(text)
        assert {row["method"] for row in visit.rows()} == names
    visit.page.get_by_role("searchbox", name="Search").fill("")
    visit.page.get_by_role("checkbox", name="every printed row").check()
    assert visit.page.locator("#count").inner_text() == "130 rows in 3 tables, each ranked on its own"
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.*")) < 1_000_000
    visit.context.close()


def test_print_shows_every_row_within_the_page(chromium: Any, tmp_path: Path) -> None:
    write_page(leaderboard(many(120).values(), (), View()), {}, tmp_path)
    visit = Visit(chromium, tmp_path / "index.html", viewport={"width": 1000, "height": 700})
    choice(visit.page, "Dataset").select_option("made")
    assert len(visit.rows()) == 50
    visit.page.emulate_media(media="print")
    visit.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert len(visit.rows()) == 120
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 1000
    visit.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_without_scrolling_sideways(chromium: Any, site: Path, scheme: str) -> None:
    phone = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True, "color_scheme": scheme}
    visit = Visit(chromium, site / "index.html", **phone)
    choice(visit.page, "Dataset").select_option("made")
    assert visit.page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [390, 390]
    channels = visit.page.evaluate("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)")
    assert (min(channels) > 200) if scheme == "light" else (max(channels) < 60)
    assert visit.problems == []
    visit.context.close()


def test_thousands_of_records_are_turned_page_by_page(chromium: Any, tmp_path: Path) -> None:
    records = many(2_000)
    table = leaderboard(records.values(), (), View())
    write_page(table, {}, tmp_path)
    visit = Visit(chromium, tmp_path / "index.html")
    page = visit.page
    choice(page, "Dataset").select_option("made")
    assert [row["method"] for row in visit.rows()] == [f"DEXML (method-{i})" for i in range(1999, 1949, -1)]
    assert page.locator("#count").inner_text() == "2,000 rows"
    page.get_by_role("button", name="Next").click()
    assert visit.rows()[0]["method"] == "DEXML (method-1949)"
    assert page.get_by_role("button", name="Next").evaluate("(button) => button === document.activeElement")
    visit.sorting("P@1").click()
    assert visit.rows()[0]["method"] == "DEXML (method-1999)"
    visit.sorting("P@1").click()
    assert visit.rows()[0]["method"] == "DEXML (method-0)"
    assert visit.problems == []
    visit.context.close()
