"""What users wait for, beside a peer or a limit, in one run and one table. `docs/performance.md` keeps the results.

Each row comes from another benchmark, which measures both sides in turns in one process, or from commands timed here.
A row whose peer is not installed is left out, and the last lines say so. Run it with nothing beside it.

    pip install -e '.[bench,cpu,minilm]'
    GOMP_SPINCOUNT=3000 python benchmarks/peers.py --data DIR                  # DIR: a dataset of short texts
    GOMP_SPINCOUNT=3000 python benchmarks/peers.py --data DIR --only 'command*' 'trial*'
    GOMP_SPINCOUNT=3000 python benchmarks/peers.py --data DIR --dexml CLONE --markdown docs/performance.md
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

from report import options, read_table, report, write_table

HERE = Path(__file__).parent
QUICKSTART = HERE.parent / "suites" / "quickstart.yaml"
XMCBENCH = Path(sysconfig.get_path("scripts")) / "xmcbench"
Rows = list[dict[str, Any]]
TURNS = 5  # of a command and of --help
SETTINGS_OF_ALL_LABELS = {
    "catalog-16k": ["--limits", "0", "0.5", "2", "4"],
    "catalog-131k": ["--limits", "0.5", "--steps", "1", "2", "--repeats", "1"],
}
NUMBERS = ("value", "of the peer", "ratio")
COLUMNS = ("what", "value", "peer", "ratio")


@dataclass(frozen=True)
class Result:
    """A measured value, and that of the peer or limit which it is to be compared with."""

    value: float
    unit: str
    peer: float | None = None
    peer_name: str = ""


@dataclass(frozen=True)
class Places:
    """Where a measurement finds a dataset of short texts and DEXML's public code, and where it may write."""

    data: Path
    out: Path
    dexml: Path | None


Measure = Callable[[Places], Result]


@dataclass(frozen=True)
class Row:
    """A row of the table: what is measured, what is wanted of it, and how."""

    what: str
    wanted: str
    measure: Measure


def benchmark(script: str, *arguments: str, table: str = "") -> Callable[[Path], Rows]:
    """Runs another benchmark; the rows of its table, which has the benchmark's name if no other is given."""

    def run(out: Path) -> Rows:
        command = [sys.executable, str(HERE / f"{script}.py"), *arguments, "--out", str(out)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise RuntimeError(ended.stderr.strip().splitlines()[-1])
        rows: Rows = json.loads((out / f"{table or script}.json").read_text())["rows"]
        return rows

    return run


def seconds_of(*arguments: str) -> float:
    """Wall-clock seconds of `xmcbench` with these arguments, with compiled modules, as users have them."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    subprocess.run([XMCBENCH, *arguments], capture_output=True, check=True, env=environment)
    return time.perf_counter() - start


def against_help(*arguments: str) -> Measure:
    """The least seconds of `xmcbench` with these arguments and of `--help`, run in turns."""

    def measure(_: Places) -> Result:
        turns = [(seconds_of(*arguments), seconds_of("--help")) for _ in range(TURNS)]
        command, help_ = zip(*turns, strict=True)
        return Result(min(command), "s", min(help_), "--help")

    return measure


def cached_run(places: Places) -> Result:
    run = "run", str(QUICKSTART), "--only", "tfidf-*", "--store", str(places.out / "cached")
    seconds_of(*run)
    return against_help(*run)(places)


def quickstart(places: Places) -> Result:
    return Result(seconds_of("run", str(QUICKSTART), "--store", str(places.out / "quickstart")), "s")


def trial_overhead(places: Places) -> Result:
    rows = {row["what"]: row["value"] for row in benchmark("trials", "--trials", "200")(places.out)}
    return Result(rows["overhead per trial"], "s", 0.0, f"{rows['trials']:.0f} trials in a row")


@cache
def steps(places: Places) -> Rows:
    settings = ["--encoder", "tiny", "--batch", "512", "--precision", "float32"]
    return benchmark("step", "--data", str(places.data), *settings)(places.out)


def step(texts: str) -> Measure:
    def measure(places: Places) -> Result:
        (row,) = (row for row in steps(places) if row["texts"] == texts)
        return Result(row["xmcbench texts/s"], "texts/s", row["s-t texts/s"], "sentence-transformers")

    return measure


@cache
def static_steps(places: Places) -> Rows:
    """Of a static encoder: 512 titles in the batch, and with every label of the dataset as a negative."""
    return benchmark("step", "--data", str(places.data), "--static", "--batch", "512", table="step_static")(places.out)


def static_step(places: Places) -> Result:
    row = static_steps(places)[0]
    return Result(row["xmcbench texts/s"], "texts/s", row["s-t texts/s"], "StaticEmbedding")


def static_step_of_all_labels(places: Places) -> Result:
    return Result(static_steps(places)[1]["xmcbench s/step"], "s")


@cache
def all_labels(places: Places, dataset: str) -> Rows:
    if places.dexml is None:
        raise RuntimeError("its peer is DEXML's public code: --dexml DIR")
    settings = ["--code", str(places.dexml), "--dataset", dataset, *SETTINGS_OF_ALL_LABELS[dataset]]
    return benchmark("all_labels", *settings)(places.out)


def step_of_all_labels(dataset: str, limit: str, column: str, unit: str) -> Measure:
    """`column` of a step that keeps `limit` of activations, beside the public code's."""

    def measure(places: Places) -> Result:
        found = {row["side"]: row[column] for row in all_labels(places, dataset)}
        return Result(found[f"xmcbench, {limit} of activations"], unit, found["DEXML's public code"], "DEXML's code")

    return measure


def rows_of_all_labels(dataset: str, limit: str) -> list[Row]:
    name = f"step, {dataset.removeprefix('catalog-').replace('k', ',000')} labels, {limit}"
    return [
        Row(f"{name}: time", "half", step_of_all_labels(dataset, limit, "s/step", "s")),
        Row(f"{name}: memory", "no more", step_of_all_labels(dataset, limit, "peak GiB", "GiB")),
    ]


@cache
def seconds_of_metrics(places: Places) -> dict[str, float]:
    rows = benchmark("metrics", "--queries", "100000", "--labels", "131072")(places.out)
    return {row["case"]: row["seconds"] for row in rows}


def metrics(case: str, peer: str) -> Measure:
    def measure(places: Places) -> Result:
        seconds = seconds_of_metrics(places)
        if case not in seconds:
            raise RuntimeError(f"its peer is {peer}, which is not installed")
        return Result(seconds[case], "s", seconds[f"{case}, {peer}"], peer)

    return measure


def metrics_with_intervals(places: Places) -> Result:
    """Check of the predictions, metrics and intervals of `catalog-1300k`, 100 labels per test query."""
    (row,) = benchmark("scale", "--labels", "1300k", "--stages", "score")(places.out)
    return Result(row["cpu seconds"], "CPU s")


def sparse_text(places: Places) -> Result:
    speeds = {row["side"]: row["MB/s"] for row in benchmark("sparse_text")(places.out)}
    return Result(speeds["xmcbench"], "MB/s", speeds.get("pyxclib"), "pyxclib" if "pyxclib" in speeds else "")


def neighbours(places: Places) -> Result:
    (row,) = benchmark("neighbours")(places.out)
    return Result(row["fit CPU s"] + row["predict CPU s"], "CPU s")


def search(dimension: int) -> Measure:
    def measure(places: Places) -> Result:
        rows = benchmark("search", "--dimensions", str(dimension), "--graph-labels", "0")(places.out)
        seconds = {row["case"]: row["search s"] for row in rows}
        return Result(seconds["exact float32"], "s", seconds["products float32"], "the matrix products")

    return measure


def clustering(places: Places) -> Result:
    sizes = ["--queries", "20000", "--labels", "4096", "--repeats", "1"]
    rows = benchmark("mining", *sizes, table="clustering")(places.out)
    (peer,) = (row for row in rows if row["case"] == "BisectingKMeans")
    (mine,) = (row for row in rows if row["case"] == "balanced 2-means" and row["clusters"] == peer["clusters"])
    return Result(mine["seconds"], "s", peer["seconds"], "scikit-learn's BisectingKMeans")


ROWS = [
    Row("command: methods", "under 2 x --help", against_help("methods")),
    Row("command: datasets", "under 2 x --help", against_help("datasets")),
    Row("command: run quickstart --dry-run", "under 2 x --help", against_help("run", str(QUICKSTART), "--dry-run")),
    Row("command: a run of which all is cached", "under 1.5 s", cached_run),
    Row("command: quickstart", "under 90 s", quickstart),
    Row("trial: seconds beside its own work", "under 1 s", trial_overhead),
    Row("step on short titles, float32", "2.5 x", step("titles")),
    Row("step on texts of 16 tokens, float32", "2.5 x", step("16 tokens")),
    Row("static encoder: step on 512 short titles", "3 x", static_step),
    Row("static encoder: step on 512 titles with all labels", "under 0.3 s", static_step_of_all_labels),
    *rows_of_all_labels("catalog-16k", "0 GiB"),
    *rows_of_all_labels("catalog-16k", "0.5 GiB"),
    *rows_of_all_labels("catalog-16k", "2 GiB"),
    *rows_of_all_labels("catalog-16k", "4 GiB"),
    *rows_of_all_labels("catalog-131k", "0.5 GiB"),
    Row("all metrics, 100k x 131k", "0.25 s", metrics("all figures", "plain numpy")),
    Row("20 metrics, 100k x 131k", "1 x", metrics("P, nDCG, PSP, PSnDCG at 1 to 5", "pyxclib")),
    Row("17 metrics with intervals, 780k x 1.3M", "10 s", metrics_with_intervals),
    Row("sparse text, read, 119 MB", "100 MB/s", sparse_text),
    Row("TF-IDF neighbours, 55k queries x 275k texts", "under a minute", neighbours),
    Row("search, exact, D = 384", "1.15 x", search(384)),
    Row("search, exact, D = 768", "1.15 x", search(768)),
    Row("clustering, 20k x 384", "met", clustering),
]


def measured(rows: list[Row], places: Places) -> Iterator[dict[str, Any]]:
    """The rows of the table; one that fails says why in place of its values."""
    for row in rows:
        print(f"{row.what} ...", file=sys.stderr, flush=True)
        try:
            found = row.measure(places)
        except (RuntimeError, subprocess.CalledProcessError) as problem:
            yield {"what": row.what, "wanted": row.wanted, "peer": f"not measured: {problem}"}
            continue
        ratio = found.value / found.peer if found.peer else None
        yield {"what": row.what, "value": found.value, "unit": found.unit, "peer": found.peer_name,
               "of the peer": found.peer, "ratio": ratio, "wanted": row.wanted}  # fmt: skip


def printed(row: dict[str, Any]) -> dict[str, str]:
    """The row as text: the value with its unit, the peer with its value."""
    value, peer, ratio = (f"{row[name]:.3g}" if row.get(name) is not None else "" for name in NUMBERS)
    texts = {"value": f"{value} {row.get('unit', '')}", "peer": f"{row.get('peer', '')} {peer}", "ratio": ratio}
    return {name: texts.get(name, row.get(name, "")).strip() for name in COLUMNS}


def main() -> None:
    parser = options(__doc__, only=(["*"], "rows, as patterns; others stay in the file"))
    parser.add_argument("--data", type=Path, required=True, help="a dataset of short texts, in any layout that is read")
    parser.add_argument("--dexml", type=Path, metavar="DIR", help="a clone of github.com/nilesh2797/DEXML")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the table into a Markdown file")
    asked = parser.parse_args()
    rows = [row for row in ROWS if any(fnmatch(row.what, pattern) for pattern in asked.only)]
    with tempfile.TemporaryDirectory() as scratch:
        table = list(measured(rows, Places(asked.data, Path(scratch), asked.dexml)))
    if asked.markdown:
        new = {row["what"]: printed(row) for row in table}
        known = {row["what"]: row for row in read_table("peers", asked.markdown)} | new
        write_table("peers", [known[row.what] for row in ROWS if row.what in known], asked.markdown)
    report("peers", table, asked.out)


if __name__ == "__main__":
    main()
