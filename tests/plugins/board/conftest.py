"""A browser, and the page that it opens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plugins.leaderboards import analysed, board, claims
from xmcbench_plugins.board.page import write_page

from .browser import browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as launched:
        yield launched


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a page of made records."""
    records, table = board()
    out: Path = tmp_path_factory.mktemp("site")
    write_page(table, records, out, analysed(records), claims(records))
    return out
