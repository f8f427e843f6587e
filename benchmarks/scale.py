"""How CPU time and memory of the stages of a trial grow with the number of labels, on made catalogues.

Each stage runs in a process of its own, so that its peak memory is its own. The exponent of a stage is the slope of log
CPU seconds over log labels between the smallest and the largest catalogue. Stages use what the stages before prepared.
Trials predict 2,000 test queries. Rows are added to those that are already in <out>/scale.json.

    python benchmarks/scale.py                                  # 13k and 130k labels: minutes
    python benchmarks/scale.py --labels 13k 130k 1300k          # the largest: about half an hour on two cores
    python benchmarks/scale.py --stages score --labels 130k     # one stage
    python benchmarks/scale.py --figure scale.svg               # of benchmarks/results/scale.json, measures nothing
"""

from __future__ import annotations

import json
import math
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from report import Rows, alone, options, report

SCORED = 100  # labels per query
BATCH, NEGATIVES = 8192, 10
METHODS = ("popular", "tfidf-nn", "tfidf-label", "bm25-label")
Stage = Callable[[], object]  # what is measured, after its set-up


def read(name: str, cache: Path) -> Any:
    from xmcbench.data import load

    return load(name, cache_dir=cache)


def prepare(name: str, cache: Path) -> Stage:
    """Make the data and write the prepared copy."""
    return partial(read, name, cache)


def tokenise(name: str, cache: Path) -> Stage:
    """Train the tokenizer of `nano`, and tokenise training queries and labels."""
    from xmcbench.engine.encoders.build import prepare_tokens

    return partial(prepare_tokens, read(name, cache), "nano", cache, lambda *_: None)


def batch(name: str, cache: Path) -> Stage:
    """Ten batches of 8,192 queries with ten hard negatives each."""
    import numpy as np

    from xmcbench import sampling

    train, nearest = read(name, cache).training_data(), sampling.Nearest(NEGATIVES)
    shape = len(train.texts), 2 * NEGATIVES
    nearest.nearest_NK = np.random.default_rng(0).integers(train.num_labels, size=shape, dtype=np.int32)
    sampler = sampling.Sampler(train, batch_size=BATCH, seed=0, negatives=[nearest])
    return lambda: [sampler.batch(0, index) for index in range(min(10, len(train.texts) // BATCH))]


def trial(method: str, name: str, cache: Path) -> Stage:
    """A trial: fit, predict, score and store."""
    from trials import run

    small, store = f"{name}-test-2000", Path(tempfile.mkdtemp(dir=cache)) / "store"
    read(small, cache)
    suite = {"name": "scale", "datasets": [small], "budget": {"steps": 3}, "methods": {method: {"method": method}}}
    return partial(run, suite, store, cache=cache, debug=True)


def score(name: str, cache: Path) -> Stage:
    """Check made predictions of the test split, and compute all metrics with their intervals."""
    import numpy as np

    from xmcbench.evaluation import DEFAULT_METRICS, check_predictions
    from xmcbench.evaluation.evaluator import EVALUATORS, score_predictions
    from xmcbench.trial.predictions import Predictions

    dataset = read(name, cache)
    queries, labels = dataset.test.targets.shape
    first, step = np.random.default_rng(0).integers(labels, size=(2, queries, 1))
    indices = ((first + (step % (labels // SCORED) + 1) * np.arange(SCORED)) % labels).astype(np.int32)
    predictions = Predictions(indices, np.tile(np.linspace(1, 0, SCORED, dtype=np.float32), (queries, 1)))

    def scored() -> None:
        check_predictions(predictions, queries, labels, dataset.ignore_test)
        score_predictions(predictions, dataset, DEFAULT_METRICS, {each.name: each for each in EVALUATORS})

    return scored


STAGES: dict[str, Callable[[str, Path], Stage]] = {
    "prepare": prepare,
    "tokenise": tokenise,
    "batch": batch,
    **{f"trial-{method}": partial(trial, method) for method in METHODS},
    "score": score,
}


def measure(stage: str, name: str, cache: Path) -> dict[str, float]:
    """Run a stage in a process of its own: seconds, CPU seconds and peak memory."""
    return alone(_measured, stage, name, cache)


def _measured(stage: str, name: str, cache: Path) -> dict[str, float]:
    import xmcbench.data
    import xmcbench.engine.encoders.build  # noqa: F401 (imports are no part of a stage)

    work = STAGES[stage](name, cache)
    started, cpu = time.perf_counter(), time.process_time()
    work()
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"seconds": seconds, "cpu seconds": cpu, "peak GiB": peak}


def draw(rows: Rows, path: Path) -> None:
    """CPU seconds and peak memory of each stage over the number of labels."""
    from xmcbench.reporting.plots import COLOURS, MARKERS, PAGE, drawing, legend_below

    with drawing(path, PAGE, 3.6, panels=2) as panels:
        for axes, column in zip(panels, ("cpu seconds", "peak GiB"), strict=True):
            for number, stage in enumerate(dict.fromkeys(row["stage"] for row in rows)):
                same = sorted((_size(row["labels"]), row[column]) for row in rows if row["stage"] == stage)
                colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % 7]
                axes.plot(*zip(*same, strict=True), marker=marker, markersize=3, color=colour, label=stage)
            axes.set(xscale="log", yscale="log", xlabel="labels", ylabel=column)
        legend_below(panels[0], columns=5)


def main() -> None:
    places = {
        "cache": (Path, "keep prepared data here [default: a folder that is removed]"),
        "figure": (Path, "draw <out>/scale.json into this file, and measure nothing"),
    }
    asked = options(__doc__, labels=["13k", "130k"], stages=STAGES, **places).parse_args()
    path = asked.out / "scale.json"
    rows: Rows = json.loads(path.read_text())["rows"] if path.exists() else []
    if asked.figure:
        draw(rows, asked.figure)
        return
    with tempfile.TemporaryDirectory() as scratch:
        for labels in asked.labels:
            for stage in (stage for stage in STAGES if stage in asked.stages):
                taken = measure(stage, f"catalog-{labels}", asked.cache or Path(scratch))
                rows = [row for row in rows if (row["stage"], row["labels"]) != (stage, labels)]
                rows.append({"stage": stage, "labels": labels, **taken})
                rows.sort(key=lambda row: (list(STAGES).index(row["stage"]), _size(row["labels"])))
                _add_exponents(rows)
                report("scale", rows, asked)


def _add_exponents(rows: Rows) -> None:
    """To the last row of each stage that was measured at several sizes."""
    for row in rows:
        first, *others = [other for other in rows if other["stage"] == row["stage"]]
        row["exponent"] = None
        if others and row is others[-1]:
            growth = math.log(_size(row["labels"]) / _size(first["labels"]))
            row["exponent"] = math.log(row["cpu seconds"] / first["cpu seconds"]) / growth


def _size(labels: str) -> float:
    return float(labels.rstrip("km")) * {"k": 1e3, "m": 1e6}.get(labels[-1], 1)


if __name__ == "__main__":
    main()
