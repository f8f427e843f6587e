"""The output of a benchmark: a table to read, and JSON with hardware and versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tabulate import tabulate

from xmcbench.trial.provenance import provenance


def report(name: str, rows: list[dict[str, Any]], out: Path) -> None:
    """Print `rows` and write them to `<out>/<name>.json`."""
    print(tabulate(rows, headers="keys", floatfmt=".3g"))
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.json"
    path.write_text(json.dumps({"benchmark": name, "rows": rows, "provenance": provenance()}, indent=1) + "\n")
    print(f"\n{path}")
