"""What benchmarks share: options, clocks, a process of its own for a case, tables (printed, as JSON, in documents)."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from tabulate import tabulate

from xmcbench.errors import XMCBenchError
from xmcbench.trial.provenance import provenance

END = "<!-- end of the table -->"
T = TypeVar("T")
Rows = list[dict[str, Any]]


def options(description: str | None, **known: Any) -> argparse.ArgumentParser:
    """A parser with `--out` and an option for each of `known`: its default, or its default and what it means.

    Values have the type of the default; several are expected where it is a list.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in ({"out": Path("benchmarks/results")} | known).items():
        default, meaning = value if isinstance(value, tuple) else (value, None)
        several = isinstance(default, list)
        kind = type(default[0] if several else default)
        kind = Path if issubclass(kind, Path) else kind
        more: dict[str, Any] = {"nargs": "+"} if several else {}
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default, help=meaning, **more)
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


def report(name: str, rows: Rows, out: Path) -> None:
    """Print `rows` and write them to `<out>/<name>.json`."""
    print(tabulate(rows, headers="keys", floatfmt=".3g"))
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.json"
    path.write_text(json.dumps({"benchmark": name, "rows": rows, "provenance": provenance()}, indent=1) + "\n")
    print(f"\n{path}")


def write_table(name: str, rows: Rows, path: Path) -> None:
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
