"""Fixtures shared by all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import install_fakes
from fakes.bench import Bench

SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture
def shared() -> Path:
    """The folder of real datasets and golden values; the project works without it, its tests then say so."""
    if not SHARED.is_dir():
        pytest.skip("needs ../shared (real datasets and golden values), which is not beside this checkout")
    return SHARED


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A place to run suites in, with the plugin of fake methods installed."""
    site = tmp_path / "site"
    site.mkdir()
    install_fakes(site, monkeypatch)
    monkeypatch.setenv("XMCBENCH_CACHE", str(tmp_path / "cache"))
    return Bench(tmp_path)
