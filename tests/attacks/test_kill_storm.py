"""SIGKILL to driver, worker or both, many times: the results are those of an unbroken run, to the last bit."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from fakes import install
from fakes.bench import Bench
from processes import MAIN, PATIENCE, command_line, gone, until

from xmcbench.plugins.registry import registry
from xmcbench.trial.record import Status
from xmcbench.trial.store import Store

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and process groups are POSIX")

LIGHT = """
import json, time
import numpy as np
from xmcbench import hookimpl
from xmcbench.files.atomic import atomic_write
from xmcbench_fakes import Ok

class Storm(Ok):
    name = "storm"
    def fit(self, train, run):
        path = run.checkpoint / "state.json"
        state = json.loads(path.read_text()) if path.exists() else {"steps": 0, "hash": run.seed}
        stored = time.monotonic()
        while state["steps"] < run.budget.steps:
            time.sleep(0.01)
            state["hash"] = (state["hash"] * 6364136223846793005 + state["steps"]) % 2**61
            state["steps"] += 1
            if time.monotonic() - stored > 0.5:
                with atomic_write(path) as file:
                    file.write(json.dumps(state).encode())
                stored = time.monotonic()
        super().fit(train, run)
        self.popularity = np.random.default_rng(state["hash"]).random(train.num_labels).astype(np.float32)

@hookimpl
def register_methods(register):
    register(Storm)
"""
TRAINED = """
import time
from xmcbench import hookimpl
from xmcbench.engine.training import checkpoints
from xmcbench_plugins.dexml import DEXML

checkpoints.SECONDS = 0.5

class Storm(DEXML):
    name = "storm"
    def after_step(self, *arguments):
        super().after_step(*arguments)
        time.sleep(0.05)

@hookimpl
def register_methods(register):
    register(Storm)
"""
METHODS: dict[str, dict[str, Any]] = {
    "light": {"method": "storm"},
    "trained": {"method": "storm", "encoder": "tiny", "batch_size": 4},
}
STEPS = {"light": 200, "trained": 60}
RAY = ["--executor", "ray"]


def stormy(bench: Bench, kind: str, patch: pytest.MonkeyPatch) -> Path:
    """Install the method that checkpoints every half second; its suite."""
    module = f"storm_{kind}"
    (bench.root / "site" / f"{module}.py").write_text(LIGHT if kind == "light" else TRAINED)
    install(bench.root / "site", f"storm-{kind}", {"storm": module})
    builtin = "" if kind == "light" else "xmcbench,"
    patch.setenv("XMCBENCH_PLUGINS", f"{builtin}xmcbench-fakes,storm-{kind}")
    registry.cache_clear()
    return bench.suite({"a": METHODS[kind]}, budget={"steps": STEPS[kind]}, seeds=[0, 1])


def start(bench: Bench, suite: Path, executor: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", MAIN, "run", str(suite), "--store", "results", "--retry", *executor]
    environment = {**os.environ, "XMCBENCH_CACHE": str(bench.root / "cache")}
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, cwd=bench.root, env=environment, stdout=quiet, stderr=quiet)


def workers(driver: int) -> list[int]:
    """The workers that a driver has started, on this machine or in its Ray cluster."""
    found = []
    try:
        for server in psutil.Process(driver).children():
            name = " ".join(server.cmdline())
            if "xmcbench.runs.worker_server" in name:
                forked = [child for guard in server.children() for child in (guard, *guard.children())]
                found += [child.pid for child in forked if child.status() != psutil.STATUS_ZOMBIE]
            elif "raylet" in name:
                found += [child.pid for child in server.children() if "ray::RayTrainWorker" in command_line(child.pid)]
    except psutil.Error:
        pass
    return found


def started(driver: subprocess.Popen[bytes]) -> bool:
    return bool(workers(driver.pid)) or driver.poll() is not None


def ended(pids: list[int]) -> bool:
    return all(gone(pid) for pid in pids)


def content(store: Store) -> dict[str, Any]:
    """Everything of the results that must not depend on kills."""
    found = {}
    for record in store.records():
        assert record.status is Status.OK, record.failure
        folder = store.directory(record.key)
        files = [path for path in sorted((folder / "model").rglob("*")) if path.is_file()]
        resampled = store.resampled(record, list(record.metrics))
        assert resampled
        predictions, truth = store.predictions(record)
        found[record.key] = (
            record.metrics, record.intervals, record.spent["steps"], predictions.indices.tobytes(),
            predictions.scores.tobytes(), truth, [path.read_bytes() for path in files],
            {name: values.tobytes() for name, values in resampled.items()},
        )  # fmt: skip
    return found


def storm(bench: Bench, suite: Path, kills: int, live: int, executor: list[str], seed: int = 1) -> Counter[str]:
    """Kill until there were `kills` kills, `live` of them on a live worker. The results of each whole run are checked.

    What is expected comes from an unbroken run of the local executor.
    """
    assert start(bench, suite, []).wait(600) == 0
    expected = content(bench.store)
    assert len(expected) == 2
    shutil.rmtree(bench.store.root)
    counts, rng = Counter[str](), np.random.default_rng(seed)
    driver = start(bench, suite, executor)
    while counts["kills"] < kills or counts["live"] < live:
        if rng.random() < 0.7:
            until(partial(started, driver), 4 * PATIENCE)
        try:
            driver.wait(rng.uniform(0.0, 3.0))
        except subprocess.TimeoutExpired:
            counts.update(strike(driver, str(rng.choice(["driver", "worker", "both"]))))
        if driver.poll() is not None:
            if driver.returncode == 0:
                assert content(bench.store) == expected
                counts["whole"] += 1
                shutil.rmtree(bench.store.root)
            driver = start(bench, suite, executor)
    driver.kill()
    driver.wait()
    assert until(lambda: start(bench, suite, executor).wait(600) == 0, 4 * PATIENCE)
    assert content(bench.store) == expected
    return counts


def strike(driver: subprocess.Popen[bytes], victims: str) -> list[str]:
    """Kill driver, worker or both; what to count."""
    live = workers(driver.pid)
    for pid in live if victims != "driver" else []:
        os.kill(pid, signal.SIGKILL)
    if victims != "worker":
        driver.kill()
        driver.wait()
        assert until(partial(ended, live), PATIENCE)
    return ["kills", *(["live"] if live else [])]


@pytest.mark.slow
def test_a_few_kills(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = storm(bench, stormy(bench, "light", monkeypatch), 5, 2, [], seed=0)
    assert counts["live"] >= 2, counts


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "kills", "executor"), [("light", 130, []), ("trained", 50, []), ("light", 20, RAY)])
def test_many_kills(bench: Bench, monkeypatch: pytest.MonkeyPatch, kind: str, kills: int, executor: list[str]) -> None:
    counts = storm(bench, stormy(bench, kind, monkeypatch), kills, kills // 2, executor)
    print(kind, executor, counts)
