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
    mark = f"<!-- table of {name}.py -->"
    before, _, rest = path.read_text(encoding="utf-8").partition(mark)
    _, end, after = rest.partition(END)
    if not end:
        raise XMCBenchError(f"{path}: expected a table between {mark} and {END}")
    text = tabulate(rows, headers="keys", tablefmt="pipe", disable_numparse=True)
    path.write_text(f"{before}{mark}\n{text}\n{end}{after}", encoding="utf-8")
