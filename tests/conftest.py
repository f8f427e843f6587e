"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import install_fakes
from fakes.bench import Bench
from hypothesis import HealthCheck, settings

from xmcbench.plugins.registry import registry

SHARED = Path(__file__).parents[2] / "shared"

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported: a test that needs the network fails
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each of the tests' many processes compiles what it imports

# No test depends on the clock. `.ci/run` tries the same examples each time, other runs new ones.
settings.register_profile(
    "xmcbench",
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
    database=None,
)
settings.load_profile("xmcbench")


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs, except from `pytest -m gpu`: the other tests compare with tensors on the CPU, and to the last bit."""
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with long tests come first: begun last, one of them would keep one core busy and leave the other idle."""
    long = {item.path for item in items if item.get_closest_marker("long")}
    items.sort(key=lambda item: item.path not in long)


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
    monkeypatch.setattr("xmcbench.runs.terminal.Silence.FIRST", 600.0)  # a busy machine would see "5 s so far"
    yield Bench(tmp_path)
    registry.cache_clear()
