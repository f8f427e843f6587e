"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import install_fakes
from fakes.bench import Bench

from xmcbench.plugins.registry import registry

SHARED = Path(__file__).parents[2] / "shared"

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported: a test that needs the network fails
# Tests compute on the CPU, also beside a GPU: they compare with tensors that lie there, and to the last bit.
os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.fixture
def shared() -> Path:
    """The folder of real datasets and golden values; the project works without it, its tests then say so."""
    if not SHARED.is_dir():
        pytest.skip("needs ../shared (real datasets and golden values), which is not beside this checkout")
    return SHARED


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A place to run suites in, with the plugin of fake methods installed."""
    site = tmp_path / "site"
    site.mkdir()
    install_fakes(site, monkeypatch)
    monkeypatch.setenv("XMCBENCH_CACHE", str(tmp_path / "cache"))
    yield Bench(tmp_path)
    registry.cache_clear()


def skipped_for_shared(config: pytest.Config) -> list[str]:
    """Tests that say they miss ../shared, although it is there: they would be lost without a word."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter is not None and SHARED.is_dir() else []
    return [report.nodeid for report in skipped if "../shared" in str(report.longrepr)]


def pytest_sessionfinish(session: pytest.Session) -> None:
    if skipped_for_shared(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for nodeid in skipped_for_shared(config):
        terminalreporter.line(f"FAILED {nodeid}: skipped for want of ../shared, which is there", red=True)
