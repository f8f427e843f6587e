"""The README's picture of the leaderboard's page, of the accepted records.

python benchmarks/page_picture.py    # needs Chromium and the extra `test`
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import ViewportSize, sync_playwright

import xmcbench as xb
from xmcbench_plugins.board.page import write_page

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "leaderboard.png"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WINDOW = ViewportSize(width=1240, height=1000)


def main() -> None:
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        raise SystemExit("no Chromium on the path: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        board = xb.leaderboard(whole=True, store=Path(folder, "store"), data=Path(folder, "data"))
        index, *_ = write_page(board.table, board.measured.records, Path(folder), resampled=board.measured.resampled)
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport=WINDOW)
        page.goto(index.resolve().as_uri())
        page.screenshot(path=PICTURE)
        browser.close()
    print(PICTURE)


if __name__ == "__main__":
    main()
