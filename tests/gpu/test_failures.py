"""A failure on a GPU leaves its line as it happens, also where a time limit ends the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FAILING = """
import os, pytest
@pytest.mark.parametrize("number", range(2))
def test_fails(number):
    if number:
        os._exit(3)  # as a time limit would
    assert number == 1, "what it says"
"""
PLUGIN = """
import sys
import pytest
from pathlib import Path
sys.path[:0] = [{tests!r}]
@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    from gpu.conftest import Failures
    config.pluginmanager.register(Failures(Path("lines.txt"), config.pluginmanager.get_plugin("terminalreporter")))
"""


def test_each_failure_is_one_line_before_the_run_ends(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(FAILING)
    (tmp_path / "conftest.py").write_text(PLUGIN.format(tests=str(Path(__file__).parents[1])))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".", "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 3, done.stdout + done.stderr
    line = "test_it.py::test_fails[0]: AssertionError: what it says assert 0 == 1"
    assert (tmp_path / "lines.txt").read_text() == f"{line}\n"
    assert line in done.stdout
