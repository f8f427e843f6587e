"""Chromium without a window: Debian's package, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = ("quic", "background-networking", "component-update", "sync")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", *(f"--disable-{name}" for name in QUIET)]


@contextmanager
def browser() -> Iterator[Any]:
    """A browser with a profile of its own; skips the test where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed ([test])")
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"no Chromium on the path ({', '.join(NAMES)}): apt-get install chromium")
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=path, args=ARGUMENTS)
        try:
            yield launched
        finally:
            launched.close()


class Visit:
    """The page in a window of its own, and everything that went wrong or left it."""

    def __init__(self, browser: Any, index: Path, **window: Any) -> None:
        self.context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | window))
        self.page = self.context.new_page()
        self.page.set_default_timeout(30_000)
        self.requests: list[str] = []
        self.problems: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.uri = index.resolve().as_uri()
        self.page.goto(self.uri)

    def rows(self, table: int = 0) -> list[dict[str, str]]:
        """What the rows of one table show, by heading."""
        found: list[dict[str, str]] = self.page.evaluate(
            """(at) => {
                const table = document.querySelectorAll("#tables table")[at];
                const text = (cell) => cell.firstChild?.nodeType === 3 ? cell.firstChild.data : cell.textContent;
                const names = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent);
                return [...table.querySelectorAll("tbody tr")].map((row) =>
                    Object.fromEntries([...row.children].map((cell, i) => [names[i], text(cell)])));
            }""",
            table,
        )
        return found

    def headings(self) -> list[str]:
        """The heading of each table."""
        return [heading.inner_text().replace("\n", " ") for heading in self.page.locator("#tables .heading").all()]

    def sorting(self, heading: str, table: int = 0) -> Any:
        """The button that sorts a table by a column."""
        return self.page.locator("#tables table").nth(table).get_by_role("button", name=heading, exact=True)

    def sort(self, heading: str) -> str | None:
        """How the first table is sorted by a column."""
        cell = self.page.locator("#tables table").nth(0).get_by_role("columnheader", name=heading, exact=True)
        found: str | None = cell.get_attribute("aria-sort")
        return found
