"""A plugin package on disk, with the metadata an installed one has, so that workers find it too."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from xmcbench.plugins.registry import registry

ROOT = Path(__file__).parents[2]
TRUSTED = "xmcbench-fakes,xmcbench-mine,zz-broken,zz-watched"  # not the built-in methods, which import torch


def install(
    site: Path, distribution: str, entry_points: dict[str, str], version: str = "1.0", group: str = "xmcbench"
) -> None:
    """Write the metadata of a distribution into `site`."""
    info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    lines = [f"{name} = {module}" for name, module in entry_points.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))


def install_fakes(site: Path, monkeypatch: pytest.MonkeyPatch, version: str = "1.0") -> None:
    """Install the fake plugin into `site`, and let this process and its children see it."""
    source = Path(__file__).with_name("xmcbench_fakes.py").read_text()
    (site / "xmcbench_fakes.py").write_text(source)
    install(site, "xmcbench-fakes", {"fakes": "xmcbench_fakes"}, version)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "xmcbench_fakes", raising=False)
    inherited = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(ROOT), *([inherited] if inherited else [])]))
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    monkeypatch.setenv("XMCBENCH_PLUGINS", TRUSTED)
    registry.cache_clear()


def install_own(site: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str) -> None:
    """Install a plugin with this source into `site`, beside the fakes, and no others."""
    (site / f"{name}_plugin.py").write_text(source)
    install(site, f"{name}-plugin", {name: f"{name}_plugin"})
    monkeypatch.setenv("XMCBENCH_PLUGINS", f"xmcbench-fakes,{name}-plugin")
    registry.cache_clear()


def sabotage(site: Path) -> AbstractContextManager[None]:
    """The plugin that breaks its contracts, installed into `site` as xmcbench-mine."""
    return _installed(site, "mine", "xmcbench_sabotage")


def beginner(site: Path) -> AbstractContextManager[None]:
    """The plugin with the mistakes of beginners, installed into `site` as xmcbench-mine."""
    return _installed(site, "beginner", "xmcbench_beginner")


def cheats(site: Path) -> AbstractContextManager[None]:
    """The plugin whose accounts and models are wrong, installed into `site` as xmcbench-mine."""
    return _installed(site, "cheats", "xmcbench_cheats")


@contextmanager
def _installed(site: Path, name: str, module: str) -> Iterator[None]:
    (site / f"{module}.py").write_text(Path(__file__).with_name(f"{module}.py").read_text())
    install(site, "xmcbench-mine", {name: module})
    registry.cache_clear()
    try:
        yield
    finally:
        sys.modules.pop(module, None)
        registry.cache_clear()
