"""How CPU seconds and peak memory of the stages of a trial grow with the number of labels, on made catalogues.

    python benchmarks/growth.py --markdown docs/performance.md
    python benchmarks/growth.py --labels 13k 130k 1.3m 10m --folder FOLDER --markdown docs/performance.md

Each stage runs in a process of its own, so that its peak memory is its own; CPU seconds are user and system, of that
process and of those it starts, without imports. The exponent is the slope of a line through log CPU seconds over log
labels; the last one is that between the two largest catalogues. Stages use what the stages before prepared. FOLDER
keeps what was prepared and measured: stages that are in FOLDER/growth.json are not measured again.
"""

from __future__ import annotations

import json
import os
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from report import alone, options, put
from tabulate import tabulate

from xmcbench.errors import XMCBenchError
from xmcbench_plugins.sources.made import size_of

MARK = "<!-- table of growth.py -->"
TEST = 2000  # queries that are predicted
SCORED = 100  # labels of each in the stage `score`
ENCODER = {"name": "static", "words": "random", "dimension": 64}
SGD = {"optimizer": "sgd", "dtype": "e4m3", "learning_rate": 0.1}
METHODS: dict[str, dict[str, Any]] = {
    "in-batch": {"method": "dexml", "negatives": "in-batch"},
    "hard": {"method": "dexml", "negatives": "hard", "refresh_start": 0, "refresh_every": 1, "shortlist": 10},
    "ova": {"method": "ova", "table": SGD},
    "killed": {"method": "dexml", "negatives": "in-batch"},
}
Stage = Callable[[], object]  # what is measured, after its imports
Row = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """A catalogue, and the folder of what is prepared of it."""

    labels: str  # as in its name
    queries: str  # that are trained on
    folder: Path

    @property
    def dataset(self) -> str:
        return f"catalog-{self.labels}-train-{self.queries}-test-{TEST}"

    @property
    def store(self) -> Path:
        return self.folder / f"results-{self.labels}"

    def load(self) -> Any:
        from xmcbench.data import load

        return load(self.dataset, cache_dir=self.folder)


def prepare(place: Place) -> Stage:
    """Make the texts and pairs, and write them."""
    return place.load


def tokenise(place: Place) -> Stage:
    """Train a tokenizer, and tokenise training queries and labels."""
    import xmcbench.engine.encoders.build  # noqa: F401

    return partial(tokens_of, place)


def tokens_of(place: Place) -> list[Any]:
    """The tokens of training queries and labels, as trials find them."""
    from xmcbench.engine.encoders.build import tokenizer_of
    from xmcbench.engine.encoders.settings import EncoderConfig

    dataset = place.load()
    train, labels, card = dataset.train.texts, dataset.label_texts, dataset.card
    tokenizer = tokenizer_of(EncoderConfig.model_validate(ENCODER), train, place.folder)
    lengths = ((train, card.max_length), (labels, card.max_label_length))
    return [tokenizer.tokens(texts, most, place.folder) for texts, most in lengths]


def plan(place: Place) -> Stage:
    """Plan the four trials, as `xmcbench plan --accelerator here` does."""
    from xmcbench.engine.planning.trials import HERE, Planner, machine_called

    def work() -> None:
        planner = Planner(place.folder, place.folder, machine_called(HERE))
        for label in METHODS:
            planner.plan(runner_of(label, place).trials()[0])

    return work


def runner_of(label: str, place: Place) -> Any:
    """The runner of a suite with this method alone, which runs in this process."""
    from xmcbench.runs.runner import Runner, Settings

    suite: dict[str, Any] = {
        "name": "growth", "datasets": [place.dataset], "encoder": ENCODER, "budget": {"steps": 4},
        "settings": {"batch_size": 64 if label == "ova" else 256}, "methods": {label: METHODS[label]},
    }  # fmt: skip
    if label == "killed":  # at half of its budget it evaluates, and writes a checkpoint
        suite["selection"] = {"queries": 500, "metric": "nDCG@5", "evaluations": 2}
    path = place.folder / f"{label}-{place.labels}.yaml"
    path.write_text(yaml.safe_dump(suite, sort_keys=False))
    return Runner(Settings(path, data=place.folder, store=place.store, cache=place.folder, debug=True))


def trial(label: str, place: Place) -> Stage:
    """A trial: fit, index, predict, check, score and store. Planning is a stage of its own."""
    import xmcbench.runs.perform  # noqa: F401
    from xmcbench.plugins.registry import registry
    from xmcbench.runs.late_imports import import_late
    from xmcbench.runs.progress import display

    import_late(registry().method(METHODS[label]["method"]).thing.late_imports)
    runner = runner_of(label, place)
    planned = runner.plan()

    def work() -> None:
        with display() as shown:
            (record,) = runner.run(planned, shown)
        if record.failure:
            raise XMCBenchError(f"{label}: {record.failure.message}")

    return work


def index(place: Place) -> Stage:
    """Embed all labels with the model of `in-batch`."""
    method = model_of(place)

    def work() -> None:
        _, labels = tokens_of(place)
        with method.inference():
            method.embed(labels)

    return work


def search(place: Place) -> Stage:
    """The best 100 labels of 2,000 queries, exactly, with the model of `in-batch`."""
    method, texts = model_of(place), list(place.load().test.texts)
    return partial(method.predict, texts, SCORED)


def model_of(place: Place) -> Any:
    """The trained model of `in-batch`."""
    from xmcbench.runs.saved_model import load_saved_model

    runner = runner_of("in-batch", place)
    record = runner.store.record(runner.trials()[0].key)
    if record is None:
        raise XMCBenchError("the stage in-batch has not run: its model is needed")
    return load_saved_model(runner.store, record)


def score(place: Place) -> Stage:
    """Check 100 made answers to each query, and compute all metrics with their intervals."""
    from xmcbench.evaluation import DEFAULT_METRICS, check_predictions
    from xmcbench.evaluation.evaluator import EVALUATORS, score_predictions
    from xmcbench.trial.predictions import Predictions

    dataset = place.load()
    queries, labels = dataset.test.targets.shape
    first, step = np.random.default_rng(0).integers(labels, size=(2, queries, 1))
    indices = ((first + (step % (labels // SCORED) + 1) * np.arange(SCORED)) % labels).astype(np.int32)
    predictions = Predictions(indices, np.tile(np.linspace(1, 0, SCORED, dtype=np.float32), (queries, 1)))

    def work() -> None:
        check_predictions(predictions, queries, labels, dataset.ignore_test)
        score_predictions(predictions, dataset, DEFAULT_METRICS, {each.name: each for each in EVALUATORS})

    return work


STAGES: dict[str, Callable[[Place], Stage]] = {
    "prepare": prepare,
    "tokenise": tokenise,
    "plan": plan,
    "in-batch": partial(trial, "in-batch"),
    "hard": partial(trial, "hard"),
    "ova": partial(trial, "ova"),
    "resumed": partial(trial, "killed"),
    "index": index,
    "search": search,
    "score": score,
}


def measure(stage: str, place: Place) -> Row:
    """Run a stage in this process."""
    work = STAGES[stage](place)
    started, before = time.perf_counter(), sum(os.times()[:4])
    work()
    peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    taken = {"cpu": sum(os.times()[:4]) - before, "seconds": time.perf_counter() - started, "gib": max(peaks) / 2**20}
    return {"stage": stage, "labels": place.labels, "queries": place.queries} | taken


def kill_once(place: Place) -> None:
    """Start the trial that will be resumed, and kill it once it has written a checkpoint."""
    process = get_context("spawn").Process(target=run_stage, args=("resumed", place))
    process.start()
    while not list(place.store.glob("**/checkpoint/step-*")):
        if not process.is_alive():
            raise XMCBenchError("the trial that should be killed ended before its first checkpoint")
        time.sleep(0.02)
    process.kill()
    process.join()


def run_stage(stage: str, place: Place) -> None:
    STAGES[stage](place)()


def num_labels(labels: str) -> int:
    return size_of(f"catalog-{labels}")


def table(rows: list[Row]) -> str:
    """CPU seconds and GiB of each stage by the number of labels, with exponents."""
    sizes = sorted({row["labels"] for row in rows}, key=num_labels)
    lines = []
    for stage in STAGES:
        own = {row["labels"]: row for row in rows if row["stage"] == stage}
        cells = [f"{own[size]['cpu']:.3g} / {own[size]['gib']:.2f}" if size in own else "" for size in sizes]
        points = [(np.log(num_labels(size)), np.log(own[size]["cpu"])) for size in sizes if size in own]
        slopes = [(second[1] - first[1]) / (second[0] - first[0]) for first, second in pairwise(points)]
        fitted = [np.polyfit(*zip(*points, strict=True), 1)[0], slopes[-1]] if slopes else []
        lines.append([stage, *cells, *(f"{slope:.2f}" for slope in fitted)])
    return tabulate(lines, ["stage", *sizes, "exponent", "last exponent"], "pipe", disable_numparse=True)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--labels", nargs="+", default=["13k", "130k", "1.3m"], help="labels of the catalogues")
    parser.add_argument("--queries", default="5k", help="training queries of each catalogue")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--folder", type=Path, help="what is prepared and measured stays here")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (asked.folder or Path(scratch)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        kept = folder / "growth.json"
        rows: list[Row] = json.loads(kept.read_text()) if kept.exists() else []
        for labels in asked.labels:
            place = Place(labels, asked.queries, folder)
            for stage in asked.stages:
                if any((row["stage"], row["labels"], row["queries"]) == (stage, labels, asked.queries) for row in rows):
                    continue
                if stage == "resumed":
                    kill_once(place)
                rows.append(alone(measure, stage, place))
                print(rows[-1], flush=True)
                kept.write_text(json.dumps(rows, indent=1))
    print(text := table(rows))
    if asked.markdown:
        put(text, asked.markdown, MARK)


if __name__ == "__main__":
    main()
