"""The README's picture of the leaderboard's page, of the accepted records.

python benchmarks/page_picture.py    # needs Chromium and the extra `test`
"""

from __future__ import annotations

import shutil
import tempfile
from io import BytesIO
from pathlib import Path

from PIL import Image, PngImagePlugin
from playwright.sync_api import ViewportSize, sync_playwright

import xmcbench as xb
from xmcbench.errors import XMCBenchError
from xmcbench.files.atomic import atomic_write
from xmcbench.reporting.rows import Leaderboard
from xmcbench_plugins.board.curated import findings
from xmcbench_plugins.board.page import write_page

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "leaderboard.png"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WINDOW = ViewportSize(width=1240, height=1000)
SAYS = "Description"  # the PNG's text that tells what the picture shows


def shown(board: Leaderboard) -> str:
    """What the page's first screen says: the findings, and the rows that its chart and its first table draw from."""
    groups = (group for group in board.groups if group.source == "measured" and group.dataset == findings().dataset)
    rows = [f"{row.called}: {row.metrics['P@5']:.4f}" for group in groups for row in group.rows if "P@5" in row.metrics]
    return "\n".join([*findings().sentences, *rows])


def take() -> Path:
    """Make the picture. Raises `XMCBenchError` without Chromium."""
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        raise XMCBenchError(f"{PICTURE.name} needs Chromium on the path: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        board = xb.leaderboard(whole=True, store=Path(folder, "store"), data=Path(folder, "data"))
        index, *_ = write_page(board.table, board.measured.records, Path(folder), resampled=board.measured.resampled)
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport=WINDOW)
        page.goto(index.resolve().as_uri())
        image = Image.open(BytesIO(page.screenshot()))
        browser.close()
    text = PngImagePlugin.PngInfo()
    text.add_itxt(SAYS, shown(board.table))
    with atomic_write(PICTURE) as file:
        image.save(file, format="png", pnginfo=text, optimize=True)
    return PICTURE


if __name__ == "__main__":
    print(take())
