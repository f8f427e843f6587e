"""The files of the page, without a browser."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from reporting.made import record

from plugins.leaderboards import HOSTILE, board
from xmcbench.data import find_source
from xmcbench.errors import XMCBenchError
from xmcbench.reporting.notes import CHECKED
from xmcbench.reporting.published import published_rows
from xmcbench.reporting.ranked_groups import leaderboard
from xmcbench.reporting.rows import Reproduced
from xmcbench.trial.predictions import Predictions
from xmcbench_plugins.board import write_html
from xmcbench_plugins.board.page import write_page
from xmcbench_plugins.board.page.about import EXAMPLES, LABELS, Example, examples, facts
from xmcbench_plugins.board.page.payload import payload


def test_a_row_of_which_a_paper_prints_the_like_shows_the_difference() -> None:
    _, table = board()
    first = table.groups[0]
    row = replace(first.rows[0], against={first.sort: -0.0123}, against_source="dexml Table 1")
    data = payload(replace(table, groups=(replace(first, rows=(row, *first.rows[1:])),)), {}, {})
    (group,) = data["groups"]
    at = group["columns"].index("against")
    assert "against" in [group["columns"][at] for at in group["shown"]]
    assert group["rows"][0]["cells"][at] == ["-1.23 (dexml Table 1)", -0.0123]
    assert {"".join(row["cells"][at : at + 1]) for row in group["rows"][1:]} == {""}
    assert "against" not in payload(table, {}, {})["groups"][0]["columns"]


def test_nothing_of_a_record_can_end_the_element_it_stands_in(tmp_path: Path) -> None:
    records, table = board()
    paths = write_page(table, records, tmp_path)
    page = paths[0].read_text()
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert block is not None
    assert not set("<>&") & set(block[1])
    methods = {row["method"] for group in json.loads(block[1])["groups"] for row in group["rows"]}
    assert HOSTILE in methods
    assert page.count("<script") == 2
    for path in paths[2:]:
        text = path.read_text()
        assert text.count("<script") == 1  # the one that copies
        assert "<img" not in text
        assert any(label in unescape(text) for label in (HOSTILE, "method-", "fails"))


def test_the_policy_allows_the_scripts_by_their_hashes_and_nothing_else(tmp_path: Path) -> None:
    records, table = board()
    paths = write_page(table, records, tmp_path)
    policies = [
        re.search(r'Content-Security-Policy" content="([^"]*)"', path.read_text())
        for path in paths
        if path.suffix == ".html"
    ]
    texts = [unescape(found[1]) for found in policies if found]
    first, *others = (dict(part.split(" ", 1) for part in text.split("; ")) for text in texts)
    assert len(others) == len(records)
    for policy in (first, *others):
        assert {policy[name] for name in ("default-src", "base-uri", "form-action")} == {"'none'"}
    assert re.fullmatch(r"'sha256-\S{44}'", first["script-src"])
    assert re.fullmatch(r"'sha256-\S{44}'", first["style-src"])
    (copying,) = {policy["script-src"] for policy in others}
    assert re.fullmatch(r"'sha256-\S{44}'", copying)


def test_the_same_leaderboard_is_the_same_page(tmp_path: Path) -> None:
    for name in "ab":
        records, table = board()
        write_page(table, records, tmp_path / name)
    assert (tmp_path / "a/index.html").read_bytes() == (tmp_path / "b/index.html").read_bytes()


def test_new_results_are_a_feed(tmp_path: Path) -> None:
    records, table = board()
    ended = {
        key: r.model_copy(update={"ended": f"2027-01-{i + 1:02}T00:00:00+00:00"})
        for i, (key, r) in enumerate(records.items())
    }
    write_page(table, ended, tmp_path)
    feed = ElementTree.parse(tmp_path / "feed.xml").getroot()
    dates = [entry.findtext("{*}updated") for entry in feed.iterfind("{*}entry")]
    assert len(dates) == len(records)
    assert dates == sorted(dates, reverse=True)
    titles = [entry.findtext("{*}title") for entry in feed.iterfind("{*}entry")]
    assert any(title.startswith(f"made/{HOSTILE}: P@1 12.35") for title in titles if title)


def test_the_feed_is_xml_whatever_a_record_says(tmp_path: Path) -> None:
    evil = record("=cmd\x1b[31m\x07\u202e\x9b2J\r", ended="2027\x00\x1b")
    write_page(leaderboard([evil]), {evil.key: evil}, tmp_path)
    feed = ElementTree.parse(tmp_path / "feed.xml").getroot()
    assert [("=cmd" in (entry.findtext("{*}title") or "")) for entry in feed.iterfind("{*}entry")] == [True]


def test_a_record_shows_each_metric_once_before_the_fold(tmp_path: Path) -> None:
    records, table = board()
    for path in write_page(table, records, tmp_path)[2:]:
        shown = path.read_text().partition("<details>")[0].partition("trial.yaml")[0]
        record = records[path.stem]
        assert CHECKED in shown
        for name, value in record.metrics.items():
            assert len(re.findall(rf">{name}</th><td>{100 * value:.2f}</td>", shown)) == 1
            assert f"<dt>{name}</dt>" not in shown
        if record.failure:
            assert ">Problem</h2>" in shown


def test_a_record_says_what_it_is_of_and_shows_texts_only_where_the_licence_lets_it(tmp_path: Path) -> None:
    records, table = board()
    dataset = find_source("shop-1k").read(tmp_path)
    shape = len(dataset.test.texts), 7
    best = Predictions(np.tile(np.arange(7, dtype=np.int32), (shape[0], 1)), np.zeros(shape, np.float32))
    found = examples(dataset, best)
    assert len(found) == EXAMPLES
    at = {text: i for i, text in enumerate(dataset.test.texts)}
    for one in found:
        true = set(dataset.test.targets[[at[one.text]]].indices.tolist())
        assert set(one.true) == {dataset.label_texts[label] for label in true}
        assert one.predicted == tuple((dataset.label_texts[label], label in true) for label in range(LABELS))
    closed = replace(dataset, card=dataset.card.model_copy(update={"licence": "see the source"}))
    assert examples(closed, best) == ()
    key = next(iter({key for group in table.groups for row in group.rows for key in row.keys} & records.keys()))
    row = replace(table.groups[0].rows[0], keys=(key,), reproduced=Reproduced.NOT)
    board_of_one = replace(table, groups=(replace(table.groups[0], rows=(row,)),))
    write_page(board_of_one, records, tmp_path / "page", examples={key: found})
    page = unescape((tmp_path / "page" / "records" / f"{key}.html").read_text())
    assert "<dt>trained again</dt><dd>not reproduced</dd>" in page
    assert found[0].text in page
    hostile = [Example("<script>", ("</ol>",), (("&amp;", True),))]
    write_page(board_of_one, records, tmp_path / "page", examples={key: hostile})
    assert "<p>&lt;script&gt;</p>" in (tmp_path / "page" / "records" / f"{key}.html").read_text()


def test_a_record_links_the_paper_of_its_method() -> None:
    records, _ = board()
    record = next(iter(records.values()))
    dexml = record.model_copy(
        update={"trial": record.trial.changed(method="dexml", distribution="xmcbench", dataset="lf-tate-titles-16k")}
    )
    found = {fact.name: fact for fact in facts(dexml, None, published_rows())}
    assert found["paper"].url == "https://arxiv.org/abs/2310.10636"
    assert found["dataset"].text == "Artwork titles (lf-tate-titles-16k)"
    assert found["dataset"].url.startswith("https://github.com/")
    assert found["licence of the data"].text == "CC0"


def test_a_page_of_others_is_not_replaced_and_pages_of_withdrawn_records_go(tmp_path: Path) -> None:
    records, table = board()
    write_page(table, records, tmp_path)
    gone, kept = (tmp_path / "records" / f"{key}.html" for key in (min(records), max(records)))
    foreign = tmp_path / "records" / "mine.html"
    foreign.write_text("<title>my page</title>")
    write_page(table, {key: own for key, own in records.items() if key != gone.stem}, tmp_path)
    assert [path.exists() for path in (gone, kept, foreign)] == [False, True, True]
    (tmp_path / "index.html").write_text("<title>the documentation of xmcbench</title>")
    with pytest.raises(XMCBenchError, match=r"index\.html: a page that xmcbench did not write"):
        write_page(table, records, tmp_path)
    assert "documentation" in (tmp_path / "index.html").read_text()
    with pytest.raises(XMCBenchError, match="a page that xmcbench did not write"):
        write_html(object(), tmp_path)  # type: ignore[arg-type]  # it is refused before anything is read
