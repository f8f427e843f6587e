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
from processes import MAIN, PATIENCE, gone, until

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
from xmcbench.engine.training import resume
from xmcbench_dexml import DEXML

resume.SECONDS = 0.5

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


def stormy(bench: Bench, kind: str, patch: pytest.MonkeyPatch) -> Path:
    """Install the method that checkpoints every half second; its suite."""
    module = f"storm_{kind}"
    (bench.root / "site" / f"{module}.py").write_text(LIGHT if kind == "light" else TRAINED)
    install(bench.root / "site", f"storm-{kind}", {"storm": module})
    builtin = "" if kind == "light" else "xmcbench,"
    patch.setenv("XMCBENCH_PLUGINS", f"{builtin}xmcbench-fakes,storm-{kind}")
    registry.cache_clear()
    return bench.suite({"a": METHODS[kind]}, budget={"steps": STEPS[kind]}, seeds=[0, 1])


def start(bench: Bench, suite: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", MAIN, "run", str(suite), "--store", "results", "--retry"]
    return subprocess.Popen(command, cwd=bench.root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def workers(driver: int) -> list[int]:
    """The workers that a driver has started."""
    found = []
    try:
        for server in psutil.Process(driver).children():
            if "xmcbench.run.worker_server" in server.cmdline():
                found += [child.pid for child in server.children() if child.status() != psutil.STATUS_ZOMBIE]
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
        resampled = store.resampled(record, list(record.metrics))  # its file has metadata in any order
        assert resampled
        predictions, truth = store.predictions(record.key)
        found[record.key] = (
            record.metrics, record.intervals, record.spent["steps"], predictions.indices.tobytes(),
            predictions.scores.tobytes(), truth, [path.read_bytes() for path in files],
            {name: values.tobytes() for name, values in resampled.items()},
        )  # fmt: skip
    return found


def storm(bench: Bench, suite: Path, kills: int, seed: int) -> Counter[str]:
    """Kill until there were `kills` kills; whenever a run ends in between, check its results and begin anew."""
    assert start(bench, suite).wait(600) == 0
    expected = content(bench.store)
    assert len(expected) == 2
    shutil.rmtree(bench.store.root)
    counts, rng = Counter[str](), np.random.default_rng(seed)
    driver = start(bench, suite)
    while counts["kills"] < kills:
        if rng.random() < 0.7:
            until(partial(started, driver))
        try:
            driver.wait(rng.uniform(0.0, 3.0))
        except subprocess.TimeoutExpired:
            victims = str(rng.choice(["driver", "worker", "both"]))
            live = workers(driver.pid)
            for pid in live if victims != "driver" else []:
                os.kill(pid, signal.SIGKILL)
            if victims != "worker":
                driver.kill()
                driver.wait()
                assert until(partial(ended, live), 10)
            counts.update(["kills", *(["live"] if live else [])])
        if driver.poll() is not None:
            if driver.returncode == 0:
                assert content(bench.store) == expected
                counts["whole"] += 1
                shutil.rmtree(bench.store.root)
            driver = start(bench, suite)
    driver.kill()
    driver.wait()
    assert until(lambda: start(bench, suite).wait(600) == 0, 4 * PATIENCE)
    assert content(bench.store) == expected
    return counts


def test_a_few_kills(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = storm(bench, stormy(bench, "light", monkeypatch), 5, 0)
    assert counts["live"] >= 2, counts


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "kills"), [("light", 150), ("trained", 50)])
def test_many_kills(bench: Bench, monkeypatch: pytest.MonkeyPatch, kind: str, kills: int) -> None:
    counts = storm(bench, stormy(bench, kind, monkeypatch), kills, 1)
    print(kind, counts)
    assert counts["live"] >= kills // 2, counts
