"""The table of `benchmarks/choose.py`: what is recommended beside methods that run alone, and what time it took."""

from __future__ import annotations

from pathlib import Path

import choose
import pytest
from report import END, put

from xmcbench.errors import XMCBenchError

TUNING = Path(__file__).parents[1] / "docs" / "tuning.md"
SMALL = """\
| dataset | rows, labels | `tune` recommends | minutes | nDCG@5 | P@1 | Parabel alone | best? |
| --- | --- | --- | --- | --- | --- | --- | --- |
| one | 8 + 2, 3 | `dexml` | 2.0 | 50.0 | 40.0 | - | best |
| two | 80 + 20, 30 | `fuse` | 3.4 | 60.0 | 55.0 | +1.0 (+0.5 to +1.5) | no |
"""
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in SMALL.splitlines()[2:]]


@pytest.mark.parametrize(
    ("minutes", "took"),
    [(2.5, "2.5 minutes for at most 100 rows; 1 dataset took up to 0.9 minutes longer."), (4, "none took longer.")],
)
def test_it_says_how_much_longer_the_slowest_took(minutes: float, took: str) -> None:
    text = choose.written(["Parabel"], ROWS, 100, minutes)
    assert text.startswith(SMALL)
    assert text.endswith(took)


def test_a_document_keeps_what_stands_around_the_table(tmp_path: Path) -> None:
    document = tmp_path / "tuning.md"
    document.write_text(f"before\n{choose.MARK}\nold\n{END}\nafter\n")
    text = choose.written(["Parabel"], ROWS, 100, 4)
    put(text, document, choose.MARK)
    assert document.read_text() == f"before\n{choose.MARK}\n{text}\n{END}\nafter\n"
    document.write_text(f"before\n{choose.MARK}\nold\n")
    with pytest.raises(XMCBenchError, match="expected a table between"):
        put(text, document, choose.MARK)


def test_the_documented_table_is_as_the_benchmark_writes_it() -> None:
    written = TUNING.read_text(encoding="utf-8").partition(f"{choose.MARK}\n")[2].partition(f"\n{END}")[0]
    lines = [line for line in written.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert written == choose.written([*choose.ALONE, "fastText"], rows, most=5000, minutes=7)
