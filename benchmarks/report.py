"""The output of a benchmark: a table to read, JSON with hardware and versions, and a table in a document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tabulate import tabulate

from xmcbench.errors import XMCBenchError
from xmcbench.trial.provenance import provenance

END = "<!-- end of the table -->"


def report(name: str, rows: list[dict[str, Any]], out: Path) -> None:
    """Print `rows` and write them to `<out>/<name>.json`."""
    print(tabulate(rows, headers="keys", floatfmt=".3g"))
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.json"
    path.write_text(json.dumps({"benchmark": name, "rows": rows, "provenance": provenance()}, indent=1) + "\n")
    print(f"\n{path}")


def write_table(name: str, rows: list[dict[str, Any]], path: Path) -> None:
    """Replace the table in a Markdown file between the mark of `<name>.py` and the next end of a table."""
    before, _, after = _around(name, path)
    text = tabulate(rows, headers="keys", tablefmt="pipe", disable_numparse=True)
    path.write_text(f"{before}\n{text}\n{after}", encoding="utf-8")


def read_table(name: str, path: Path) -> list[dict[str, str]]:
    """The rows that `write_table` wrote."""
    lines = [line.strip("|").split("|") for line in _around(name, path)[1].strip().splitlines()]
    headings, _, *rows = [[cell.strip() for cell in line] for line in lines]
    return [dict(zip(headings, row, strict=True)) for row in rows]


def _around(name: str, path: Path) -> tuple[str, str, str]:
    """A Markdown file up to the mark of `<name>.py`, from there to the next end of a table, and the rest."""
    mark = f"<!-- table of {name}.py -->"
    before, _, rest = path.read_text(encoding="utf-8").partition(mark)
    table, end, after = rest.partition(END)
    if not end:
        raise XMCBenchError(f"{path}: expected a table between {mark} and {END}")
    return before + mark, table, end + after
