"""What tests of the Ray executor share: running a suite in the cluster, and displays that do harm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from fakes.bench import Bench, Heard
from processes import MAIN, command_line

from xmcbench.runs.plan import PlannedTrial
from xmcbench.runs.tuning import run_samples, tuned_trials
from xmcbench.suite.resources import Share
from xmcbench.trial.record import Record, Status
from xmcbench.trial.run import Progress
from xmcbench.trial.trial import Trial
from xmcbench_plugins.ray.executor import RayExecutor

CPUS = 2  # of each node
NODE = {"num_cpus": CPUS, "object_store_memory": 80 * 2**20}
TWO_NODES = {"workers": 2, "cpus": CPUS}  # more than one node has
SMALL = {"encoder": {"name": "tiny", "hidden_dropout": 0.0}, "batch_size": 8, "learning_rate": 1e-3}


def all_is_free() -> bool:
    """Whether no trial holds a CPU of the cluster."""
    import ray

    return bool(ray.available_resources().get("CPU", 0) == 2 * CPUS)


def on_ray(
    bench: Bench, suite: Path, told: Heard | None = None, executor: RayExecutor | None = None, **share: Any
) -> dict[str, Record]:
    """Run a suite in the cluster; the records by label."""
    runner = bench.runner(suite, executor=executor or RayExecutor(), share=Share(**share))
    bench.heard = told or Heard()
    return {record.trial.label: record for record in runner.run(runner.plan(), bench.heard)}


def in_process(bench: Bench, suite: Path, only: Sequence[str] = ()) -> dict[str, Record]:
    """The same with one worker, in this process and in another store."""
    return bench.run(suite, store=bench.root / "alone", debug=True, only=only)


def assert_alike(found: Record, wanted: Record) -> None:
    assert found.status is wanted.status is Status.OK
    assert found.key == wanted.key
    assert found.metrics == pytest.approx(wanted.metrics, abs=1e-6)
    for name in ("steps", "queries", "encoder_tokens", "encoder_flops"):
        assert found.spent[name] == wanted.spent[name], name


class Killer(Heard):
    """A display that does harm when it hears of a step: it kills a worker, unless told otherwise."""

    def __init__(self, at: int, harm: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.at, self.harm, self.steps, self.done = at, harm or self.kill_a_worker, [], False

    @property
    def back(self) -> list[int]:
        """The steps that were heard of after later ones."""
        return [later for earlier, later in pairwise(self.steps) if later < earlier]

    def progress(self, planned: PlannedTrial, progress: Progress) -> None:  # noqa: ARG002  (there is but one)
        if "step" not in progress.metrics:
            return
        self.steps.append(int(progress.metrics["step"]))
        if self.steps[-1] >= self.at and not self.done:
            self.done = True
            self.harm()

    @staticmethod
    def kill_a_worker() -> None:
        children = [child.pid for child in psutil.Process().children(recursive=True)]
        os.kill([pid for pid in children if "ray::RayTrainWorker" in command_line(pid)][-1], signal.SIGKILL)


def start(bench: Bench, suite: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, "run", str(suite), "--store", "results",
         "--executor", "ray", *options],
        cwd=bench.root,
        env={**os.environ, "XMCBENCH_CACHE": str(bench.root / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip


TUNE = {"space": {"ok": {"strength": {"low": 0.5, "high": 2.0}}}, "num_samples": 4, "budget": {"steps": 2}}
KEYS: dict[str, Any] = {"selection": {"queries": 5, "metric": "P@1"}, "tune": TUNE}


def tuned_on_ray(bench: Bench, suite: Path, heard: Heard | None = None, **share: Any) -> list[Trial]:
    runner = bench.runner(suite, executor=RayExecutor(), share=Share(**share))
    return tuned_trials(runner, partial(run_samples, heard or bench.heard))


def tuned_here(bench: Bench, suite: Path) -> list[Trial]:
    runner = bench.runner(suite, store=bench.root / "alone", debug=True)
    return tuned_trials(runner, partial(run_samples, Heard()))


def ended(bench: Bench) -> list[Record]:
    return sorted(bench.store.records(), key=lambda record: record.trial.label)
