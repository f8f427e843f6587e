"""What workers bring, and what Ray costs: whole trials as `xmcbench run` runs them, each in processes of its own.

Throughput: one worker on one core against two workers on two cores, one thread each (DEXML over the whole label set,
encoder `tiny`). Overhead: the wall clock of a trial that trains nothing, through Ray and without, on a quiet machine.

    python benchmarks/workers.py --dataset catalog-4k --steps 12 --trials 3
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from report import options, report

from xmcbench.runs.executor import Executor
from xmcbench.runs.local import LocalExecutor
from xmcbench.runs.plan import Display, PlannedTrial
from xmcbench.runs.ray import RayExecutor
from xmcbench.runs.runner import Runner, Settings
from xmcbench.suite.resources import Share
from xmcbench.trial.record import Record

os.environ["OMP_NUM_THREADS"] = "1"  # of each worker: a core each


class Clock(Display):
    """A display that takes the time of each trial, and of what comes before the first."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.before: float | None = None
        self.seconds: list[float] = []

    def begin(self, planned: PlannedTrial, number: int, total: int) -> None:  # noqa: ARG002
        self.begun = time.perf_counter()
        if self.before is None:
            self.before = self.begun - self.start

    def end(self, planned: PlannedTrial, record: Record) -> None:  # noqa: ARG002
        self.seconds.append(time.perf_counter() - self.begun)


def run(executor: Executor, share: Share, suite: dict[str, Any]) -> tuple[Clock, list[Record]]:
    """Run a suite in a store of its own."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        (root / "suite.yaml").write_text(yaml.safe_dump(suite))
        settings = Settings(root / "suite.yaml", root / "data", root / "results", executor=executor, share=share)
        runner = Runner(settings)
        plan = runner.plan()
        clock = Clock()
        records = runner.run(plan, clock)
    failed = [record.failure.message for record in records if record.failure]
    if failed:
        raise SystemExit(failed[0])
    return clock, records


def throughput(asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Queries and texts a second of training, by number of workers."""
    suite = {
        "name": "throughput",
        "datasets": [asked.dataset],
        "budget": {"steps": asked.steps},
        "methods": {"all": {"method": "dexml", "negatives": "all", "batch_size": asked.batch}},
        "settings": {"encoder": {"name": "tiny", "hidden_dropout": 0.0}},
    }
    rows: list[dict[str, Any]] = []
    for workers in (1, 2):
        _, (record,) = run(LocalExecutor(), Share(workers=workers), suite)
        seconds = record.spent["stage_seconds"]["train"]
        tokens = record.spent["encoder_tokens"] / seconds
        rows.append({"workers": workers, "cores": workers, "s/step": seconds / asked.steps, "tokens/s": tokens})
    return [row | {"speed-up": row["tokens/s"] / rows[0]["tokens/s"]} for row in rows]


def overhead(asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds of wall clock of a trial that trains nothing, one trial at a time, without and with Ray."""
    suite = {
        "name": "overhead",
        "datasets": ["catalog-300"],
        "seeds": list(range(asked.trials)),
        "budget": {"steps": 1},
        "methods": {"untrained": {"method": "untrained", "encoder": "tiny"}},
    }
    rows = []
    for workers in (1, 2):
        share = Share(workers=workers, cpus=float(os.cpu_count() or 1) / workers)  # one trial at a time
        for name, executor in (("local", LocalExecutor()), ("ray", RayExecutor())):
            clock, _ = run(executor, share, suite)
            seconds = {"s before the first": clock.before, "s/trial": float(np.median(clock.seconds))}
            rows.append({"executor": name, "workers": workers, **seconds})
    return rows


def main() -> None:
    asked = options(
        __doc__, dataset="catalog-4k", batch=(512, "queries a step"), steps=12,
        trials=(3, "whose median is the overhead"),
    ).parse_args()  # fmt: skip
    report("workers", throughput(asked), asked.out)
    report("executors", overhead(asked), asked.out)


if __name__ == "__main__":
    main()
