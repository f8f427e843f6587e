"""The page for everyone: axe-core finds nothing serious, in Chromium and in Firefox."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from .browser import Visit, browser
from .firefox import firefox

pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed ([test])")
AXE = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
NAMES = "rules: {'label-content-name-mismatch': {enabled: true}}"  # experimental, off unless asked for
RUN = f"axe.run(document, {{resultTypes: ['violations'], {NAMES}}})"
VIEWS = ("", "#dataset=made", "#dataset=other-set")


def pages(site: Path) -> list[str]:
    index = (site / "index.html").resolve().as_uri()
    others = site / "claims.html", min((site / "records").iterdir())
    return [*(index + view for view in VIEWS), *(path.resolve().as_uri() for path in others)]


def violations(result: dict[str, Any]) -> list[str]:
    return [f"{found['id']}: {found['help']}: {found['nodes'][0]['html'][:200]}" for found in result["violations"]]


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_wrong_in_chromium(site: Path, scheme: str) -> None:
    with browser() as chromium:
        for uri in pages(site):
            visit = Visit(chromium, site / "index.html", color_scheme=scheme)
            visit.page.goto("about:blank")
            visit.page.goto(uri)
            visit.page.evaluate(AXE)
            assert violations(visit.page.evaluate(RUN)) == [], uri
            visit.context.close()


def test_nothing_wrong_in_firefox_and_the_tables_are_there(site: Path, tmp_path: Path) -> None:
    with firefox(tmp_path / "profile") as page:
        for uri in pages(site):
            page.open("about:blank")
            page.open(uri)
            page.run(AXE)
            assert violations(page.evaluate(RUN)) == [], uri
        page.open("about:blank")
        page.open(pages(site)[1], width=390)
        assert page.evaluate("document.querySelectorAll('#tables tbody tr').length") > 8
        assert page.evaluate("document.querySelectorAll('.plot svg').length") == 3
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
