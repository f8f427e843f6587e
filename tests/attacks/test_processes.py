"""No process of a trial outlives the trial or its driver, in whichever session it is and whenever the driver dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest
from fakes import install
from fakes.bench import Bench
from processes import MAIN, gone, until

from xmcbench.plugins.registry import registry
from xmcbench.trial.program import MARK
from xmcbench.trial.record import Status

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and process groups are POSIX")

DAEMON = """
import json, os, subprocess, sys, time
from xmcbench import hookimpl
from xmcbench_fakes import Ok

SLEEP = [sys.executable, "-c", "import time; time.sleep(300)"]

class Daemon(Ok):
    name = "daemon"
    class Config(Ok.Config):
        seconds: float = 0.0
    def fit(self, train, run):
        started = [
            subprocess.Popen(SLEEP, start_new_session=True),
            # its parent ends at once
            subprocess.Popen([*SLEEP[:2], f"import subprocess; subprocess.Popen({SLEEP}, start_new_session=True)"]),
            subprocess.Popen(SLEEP, start_new_session=True, env={"PATH": os.environ["PATH"]}),
        ]
        started[1].wait()
        (run.checkpoint.parent / "pids.json").write_text(json.dumps([os.getpid()]))
        time.sleep(self.config.seconds)
        super().fit(train, run)

@hookimpl
def register_methods(register):
    register(Daemon)
"""


@pytest.fixture
def daemons(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench with a method that starts processes in sessions of their own."""
    (bench.root / "site" / "daemon_plugin.py").write_text(DAEMON)
    install(bench.root / "site", "daemon-plugin", {"daemon": "daemon_plugin"})
    monkeypatch.setenv("XMCBENCH_PLUGINS", "xmcbench-fakes,daemon-plugin")
    monkeypatch.setenv(MARK, str(bench.root))  # inherited: how the test finds the processes
    registry.cache_clear()
    return bench


def marked(bench: Bench) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if str(bench.root) in process.environ().get(MARK, "") and process.pid != os.getpid():
                found.append(process.pid)
        except psutil.Error:
            continue
    return [pid for pid in found if not gone(pid)]


def fitting(bench: Bench) -> bool:
    return any(path.read_text().endswith("]") for path in bench.root.glob("results/trials/*/pids.json"))


def tree_of_worker(bench: Bench) -> list[int]:
    (path,) = bench.root.glob("results/trials/*/pids.json")
    (worker,) = json.loads(path.read_text())
    return [worker, *(child.pid for child in psutil.Process(worker).children(recursive=True))]


@pytest.mark.parametrize("timeout", [60, 3])
def test_children_in_sessions_of_their_own_end_with_the_trial(daemons: Bench, timeout: int) -> None:
    seconds = 0.0 if timeout > 10 else 60.0
    suite = daemons.suite({"d": {"method": "daemon", "seconds": seconds}}, timeout=timeout)
    record = daemons.run(suite)["d"]
    assert record.status is (Status.OK if timeout > 10 else Status.TIMEOUT)
    assert until(lambda: not marked(daemons), 5)


@pytest.mark.parametrize("victims", ["driver", "driver and worker"])
def test_a_killed_driver_leaves_no_process(daemons: Bench, victims: str) -> None:
    suite = daemons.suite({"d": {"method": "daemon", "seconds": 60.0}})
    driver = subprocess.Popen([sys.executable, "-c", MAIN, "run", str(suite)], cwd=daemons.root, env=dict(os.environ))
    assert until(lambda: fitting(daemons))
    tree = tree_of_worker(daemons)
    assert len(marked(daemons)) >= 4  # driver, worker, guard, and two of the children
    if victims != "driver":
        os.kill(tree[0], signal.SIGKILL)
    driver.kill()
    driver.wait()
    assert until(lambda: not marked(daemons), 10)
    left = [pid for pid in tree if not gone(pid)]  # a dying process loses its mark before it is gone
    if victims == "driver":
        assert until(lambda: all(gone(pid) for pid in left), 10)
    for pid in left:  # without its mark a child is found only below a worker that lives
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.2, 0.5])
def test_a_driver_that_dies_while_its_worker_starts_takes_it_along(daemons: Bench, delay: float) -> None:
    suite = daemons.suite({"d": {"method": "daemon", "seconds": 60.0}})
    driver = subprocess.Popen([sys.executable, "-c", MAIN, "run", str(suite)], cwd=daemons.root, env=dict(os.environ))
    assert until(lambda: bool(psutil.Process(driver.pid).children()))
    time.sleep(delay)
    driver.kill()
    driver.wait()
    assert until(lambda: not marked(daemons), 10)
