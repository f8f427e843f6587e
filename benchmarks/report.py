"""What benchmarks share: options, clocks, a process of its own for a case, tables (printed, as JSON, in documents)."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from tabulate import tabulate

from xmcbench.errors import XMCBenchError
from xmcbench.files.atomic import atomic_write
from xmcbench.trial.provenance import provenance

END = "<!-- end of the table -->"
T = TypeVar("T")
Rows = list[dict[str, Any]]


def options(description: str | None, **known: Any) -> argparse.ArgumentParser:
    """A parser with `--out`, `--markdown` and an option for each of `known`: its default, and perhaps what it means.

    Values have the type of the default; several are expected where it is a list, and some of the keys of a mapping, by
    default all. False is that of a flag; a type stands for None, or a value of that type.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    table = {"markdown": (Path, "a file: also put the table into this Markdown")}
    for name, value in ({"out": Path("benchmarks/results")} | known | table).items():
        default, meaning = value if isinstance(value, tuple) else (value, None)
        more: dict[str, Any] = {"default": default, "type": type(default)}
        if default is False:
            more = {"action": "store_true"}
        elif isinstance(default, type):
            more = {"type": default}
        elif isinstance(default, Path):
            more["type"] = Path
        elif isinstance(default, list | dict):
            choices = {"choices": list(default)} if isinstance(default, dict) else {}
            more = {"default": list(default), "type": type(next(iter(default))), "nargs": "+", **choices}
        parser.add_argument(f"--{name.replace('_', '-')}", help=meaning, **more)
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


def report(
    name: str,
    rows: Rows,
    asked: argparse.Namespace,
    shown: Callable[[dict[str, Any]], dict[str, Any]] = dict,
    by: Sequence[str] = (),
) -> None:
    """Print `rows` and write them to `<out>/<name>.json`, and with `--markdown` into the table of a document.

    `shown` gives a row of that table, or an empty one to leave it out. The document's own rows stay, except those whose
    columns `by` are as in a new row; without `by` none stays.
    """
    print(tabulate(rows, headers="keys", floatfmt=".3g"))
    asked.out.mkdir(parents=True, exist_ok=True)
    path = asked.out / f"{name}.json"
    path.write_text(json.dumps({"benchmark": name, "rows": rows, "provenance": provenance()}, indent=1) + "\n")
    print(f"\n{path}")
    if asked.markdown:
        _write_table(name, [text for row in rows if (text := shown(row))], asked.markdown, by)


def _write_table(name: str, rows: Rows, path: Path, by: Sequence[str]) -> None:
    """Replace the table in a Markdown file between the mark of `<name>.py` and the next end of a table."""
    mark = f"<!-- table of {name}.py -->"
    if by:
        table = path.read_text(encoding="utf-8").partition(mark)[2].partition(END)[0]
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()]
        known = [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]
        rows = list({tuple(row[column] for column in by): row for row in (*known, *rows)}.values())
    put(tabulate(rows, headers="keys", tablefmt="pipe", disable_numparse=True), path, mark)


def put(text: str, path: Path, mark: str, end: str = END) -> None:
    """Replace what stands between `mark` and the next `end` in a file. Raises `XMCBenchError` where one is missing."""
    before, _, rest = path.read_text(encoding="utf-8").partition(mark)
    _, found, after = rest.partition(end)
    if not found:
        raise XMCBenchError(f"{path}: expected a table between {mark} and {end}")
    with atomic_write(path) as file:
        file.write(f"{before}{mark}\n{text}\n{end}{after}".encode())
