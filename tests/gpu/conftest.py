"""These tests run on a GPU under `pytest -m gpu`, and otherwise on the pretended one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pretend_device import NAME

from xmcbench.engine.device import tensor_float32

from .places import DEVICE, models_on

FAILURES = "gpu-failures.txt"  # in $OUT, or in the current folder


@pytest.fixture(autouse=True)
def models_on_the_gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """Float32 products without TF32, as the harness leaves them."""
    if DEVICE == NAME and request.config.option.markexpr == "gpu":
        pytest.skip("needs a CUDA device")
    with models_on(DEVICE), tensor_float32(allowed=False):
        yield


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if DEVICE != NAME and terminal is not None:  # it is not in xdist's workers, whose reports come to the main process
        config.pluginmanager.register(Failures(Path(os.environ.get("OUT", ".")) / FAILURES, terminal))


class Failures:
    """Writes a line as soon as a test fails: a time limit may end the run before pytest's summary."""

    def __init__(self, file: Path, terminal: pytest.TerminalReporter) -> None:
        self.file, self.terminal = file, terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            lines = report.longreprtext.splitlines()
            raised = [line[1:] for line in lines if line.startswith("E ")] or lines[-1:]
            line = f"{report.nodeid}: {' '.join(' '.join(raised).split())[:400]}"
            with self.file.open("a") as file:
                file.write(f"{line}\n")
            self.terminal.write_line(line)
