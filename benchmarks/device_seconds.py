"""Trials within a budget of device seconds on a busy machine: how far they overrun, how many steps equal seeds take.

    python benchmarks/device_seconds.py --markdown docs/budgets.md

Beside the trials two processes compute without a pause. Each method is trained several times with one seed, which a
perfect clock would end after the same number of steps. The spread is the largest number of steps over the smallest.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from report import options, report, run

from xmcbench.trial.record import Record

METHODS: dict[str, dict[str, Any]] = {
    "dexml, hard negatives": {
        "method": "dexml", "negatives": "hard", "batch_size": 256, "refresh_start": 1, "refresh_every": 1,
    },
    "ngame": {"method": "ngame", "batch_size": 256, "cluster_size": 4, "cluster_start": 1, "cluster_every": 1},
}  # fmt: skip
BUSY = "while True: pass"


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that compute without a pause beside the block."""
    beside = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in beside:
            process.kill()
            process.wait()


def row(label: str, records: Sequence[Record]) -> dict[str, Any]:
    """What the trainings of a method took, all with one seed."""
    limits = [float(record.trial.budget.device_seconds or 0) for record in records]
    over = [record.spent["device_seconds"] - limit for record, limit in zip(records, limits, strict=True)]
    largest = [record.spent["largest_step"]["device_seconds"] for record in records]
    steps = [record.spent["steps"] for record in records]
    return {
        "method": label,
        "clock": records[0].spent.get("clock", "wall"),
        "seconds": limits[0],
        "trials": len(records),
        "over budget": sum(record.status == "over_budget" for record in records),
        "overrun / largest step": max(past / step for past, step in zip(over, largest, strict=True)),
        "median steps": median(steps),
        "spread of steps": max(steps) / min(steps),
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--dataset", default="catalog-5k")
    parser.add_argument("--encoder", default="static")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--trials", type=int, default=5, help="trainings of each method")
    parser.add_argument("--busy", type=int, default=2, help="processes beside them")
    parser.add_argument("--data", type=Path, default=Path("data"))
    given = parser.parse_args()
    found: dict[str, list[Record]] = {label: [] for label in METHODS}
    suite = {
        "name": "device-seconds", "datasets": [given.dataset], "encoder": given.encoder, "methods": METHODS,
        "budget": {"device_seconds": given.seconds},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, busy(given.busy):
        for number in range(given.trials):
            for record in run(suite, Path(folder) / f"store-{number}", given.data):
                found[record.trial.label].append(record)
    rows = [row(label, records) for label, records in found.items()]
    report("device_seconds", rows, given.markdown, shown, by=("method", "clock"))


def shown(measured: dict[str, Any]) -> dict[str, str]:
    """A row as the document shows it."""
    return {name: f"{value:.3g}" if isinstance(value, float) else str(value) for name, value in measured.items()}


if __name__ == "__main__":
    main()
