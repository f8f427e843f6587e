"""What benchmarks share: a parser, clocks, a process of its own for a case, trials of a suite, tables in documents."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import yaml
from tabulate import tabulate

import xmcbench as xb
from xmcbench.errors import XMCBenchError
from xmcbench.files.atomic import atomic_write
from xmcbench.trial.record import Record

END = "<!-- end of the table -->"
T = TypeVar("T")
Rows = list[dict[str, Any]]


def options(description: str | None) -> argparse.ArgumentParser:
    """A parser with the option `--markdown`, the document of `report`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also put the table into this document")
    return parser


def seconds_of(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds that `work` takes, what a GPU has to do for it included."""
    synchronise()
    start = clock()
    work()
    synchronise()
    return clock() - start


def in_turns(
    cases: Mapping[str, Callable[[], object]],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
    of: Callable[[list[float]], float] = min,
) -> dict[str, float]:
    """The seconds of each case, by default the least: cases take turns, so that other work falls on all of them."""
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(repeats):
        for name, case in cases.items():
            taken[name].append(seconds_of(case, clock))
    return {name: of(seconds) for name, seconds in taken.items()}


def alone(function: Callable[..., T], *arguments: object) -> T:
    """The result of `function`, called in a fresh process: its memory and its threads are its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
        return fresh.submit(function, *arguments).result()


def synchronise() -> None:
    """Wait for the GPU, if torch is there and has one."""
    torch = sys.modules.get("torch")  # benchmarks that do not use it need not import it
    if torch is not None and torch.cuda.is_available():
        torch.cuda.synchronize()


def run(suite: dict[str, Any], store: Path, data: Path = Path("data")) -> list[Record]:
    """The records of a suite, after the trials that the store lacks. Raises `XMCBenchError` if a trial fails."""
    path = store.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(suite, sort_keys=False))
    records = list(xb.run(path, data=data, store=store).measured.records.values())
    if failed := [f"{record.trial.label}: {record.failure.message}" for record in records if record.failure]:
        raise XMCBenchError(failed[0])
    return records


def report(
    name: str,
    rows: Rows,
    document: Path | None,
    shown: Callable[[dict[str, Any]], dict[str, Any]] = dict,
    by: Sequence[str] = (),
) -> None:
    """Print `rows`, and put them into the table of a document between the mark of `<name>.py` and the table's end.

    `shown` gives a row of that table, or an empty one to leave it out. The document's own rows stay, except those whose
    columns `by` are as in a new row.
    """
    print(tabulate(rows, headers="keys", floatfmt=".3g"))
    if document is None:
        return
    mark = f"<!-- table of {name}.py -->"
    table = document.read_text(encoding="utf-8").partition(mark)[2].partition(END)[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()]
    known = [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]
    every = [*known, *filter(None, map(shown, rows))]
    merged = list({tuple(row[column] for column in by): row for row in every}.values())
    put(tabulate(merged, headers="keys", tablefmt="pipe", disable_numparse=True), document, mark)


def put(text: str, path: Path, mark: str, end: str = END) -> None:
    """Replace what stands between `mark` and the next `end` in a file. Raises `XMCBenchError` where one is missing."""
    before, _, rest = path.read_text(encoding="utf-8").partition(mark)
    _, found, after = rest.partition(end)
    if not found:
        raise XMCBenchError(f"{path}: expected a table between {mark} and {end}")
    with atomic_write(path) as file:
        file.write(f"{before}{mark}\n{text}\n{end}{after}".encode())
