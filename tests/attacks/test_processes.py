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
from fakes import install_own
from fakes.bench import Bench
from processes import MAIN, command_line, gone, until

from xmcbench.trial.programs import MARK
from xmcbench.trial.record import Status

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and process groups are POSIX")

DAEMON = """
import json, os, subprocess, sys, time
from xmcbench import hookimpl
from xmcbench_fakes import Ok

SLEEP = [sys.executable, "-c", "import time; time.sleep(3000)"]

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
    install_own(bench.root / "site", monkeypatch, "daemon", DAEMON)
    monkeypatch.setenv(MARK, str(bench.root))  # inherited: how the test finds the processes
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
    seconds = 0.0 if timeout > 10 else 3000.0
    suite = daemons.suite({"d": {"method": "daemon", "seconds": seconds}}, timeout=timeout)
    record = daemons.run(suite)["d"]
    assert record.status is (Status.OK if timeout > 10 else Status.TIMEOUT)
    assert until(lambda: not marked(daemons))


@pytest.mark.parametrize("victims", ["driver", "driver and worker"])
def test_a_killed_driver_leaves_no_process(daemons: Bench, victims: str) -> None:
    suite = daemons.suite({"d": {"method": "daemon", "seconds": 3000.0}})
    driver = subprocess.Popen([sys.executable, "-c", MAIN, "run", str(suite)], cwd=daemons.root, env=dict(os.environ))
    assert until(lambda: fitting(daemons))
    tree = tree_of_worker(daemons)
    assert len(marked(daemons)) >= 4  # driver, worker, guard, and two of the children
    if victims != "driver":
        os.kill(tree[0], signal.SIGKILL)
    driver.kill()
    driver.wait()
    assert until(lambda: not marked(daemons))
    left = [pid for pid in tree if not gone(pid)]  # a dying process loses its mark before it is gone
    if victims == "driver":
        assert until(lambda: all(gone(pid) for pid in left))
    for pid in left:  # without its mark a child is found only below a worker that lives
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.2, 0.5])
def test_a_driver_that_dies_while_its_worker_starts_takes_it_along(daemons: Bench, delay: float) -> None:
    suite = daemons.suite({"d": {"method": "daemon", "seconds": 3000.0}})
    driver = subprocess.Popen([sys.executable, "-c", MAIN, "run", str(suite)], cwd=daemons.root, env=dict(os.environ))
    assert until(lambda: bool(psutil.Process(driver.pid).children()))
    time.sleep(delay)
    driver.kill()
    driver.wait()
    assert until(lambda: not marked(daemons))


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends a child with its parent on Linux only")
@pytest.mark.parametrize("stopped", [False, True])
def test_a_server_ends_with_its_driver_also_while_it_is_stopped(bench: Bench, stopped: bool) -> None:
    """And while it imports the frameworks, when nobody looks at its socket."""
    driver = (
        "import os, time, sys; from xmcbench.runs.local import WorkerServer\n"
        "server = WorkerServer(2); print(server.process.pid, flush=True); time.sleep(3000)"
    )
    process = subprocess.Popen([sys.executable, "-c", driver], cwd=bench.root, stdout=subprocess.PIPE)
    assert process.stdout is not None
    server = int(process.stdout.readline())
    assert until(lambda: "worker_server" in command_line(server))
    time.sleep(6.0)  # its first lines, on a busy machine
    if stopped:
        os.kill(server, signal.SIGSTOP)
    process.kill()
    process.wait()
    assert until(lambda: gone(server))


def test_an_interrupt_while_the_command_starts_is_a_line(bench: Bench) -> None:
    for delay in (0.15, 0.3, 0.6):
        command = [sys.executable, "-X", "importtime", "-m", "xmcbench", "datasets"]
        process = subprocess.Popen(
            command, cwd=bench.root, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        for line in process.stderr:  # as soon as the command has begun to import
            if "lazy_loader" in line:
                break
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert "Traceback" not in said
        # Interrupted inside of a string that `exec` runs (a dataclass in the making), Python ends by the signal itself.
        assert process.returncode in (0, 130, -signal.SIGINT), said


def test_without_a_home_folder_there_is_a_line(bench: Bench) -> None:
    code = (
        "import os, pwd; os.environ.pop('HOME', 0); os.environ.pop('XDG_CACHE_HOME', 0)\n"
        "def none(*_): raise KeyError\n"
        "pwd.getpwuid = none\n"
        "from xmcbench.__main__ import main; main()"
    )
    environment = {name: value for name, value in os.environ.items() if name != "XMCBENCH_CACHE"}
    command = [sys.executable, "-c", code, "datasets", "show", "catalog-200"]
    ended = subprocess.run(command, cwd=bench.root, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended.stderr
    assert "found no home folder" in ended.stderr
    assert not (bench.root / "~").exists()
