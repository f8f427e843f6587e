"""A Ray cluster that a run starts listens on all interfaces: it asks for a token, unless somebody asks otherwise."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from xmcbench.errors import XMCBenchError
from xmcbench_plugins.ray.executor import OPEN, OPEN_FILES, RayExecutor, _require_token

NAMES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", OPEN)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
    monkeypatch.delitem(sys.modules, "ray", raising=False)


def test_a_cluster_asks_for_a_token_of_its_own() -> None:
    _require_token()
    assert os.environ["RAY_AUTH_MODE"] == "token"
    first = os.environ.pop("RAY_AUTH_TOKEN")
    _require_token()
    assert len(first) == 64
    assert os.environ["RAY_AUTH_TOKEN"] != first


def test_a_token_that_is_given_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/a/file")
    _require_token()
    assert "RAY_AUTH_TOKEN" not in os.environ


def test_a_cluster_without_authentication_is_refused_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(XMCBenchError, match="RAY_AUTH_MODE=disabled: whoever reaches this machine could run code"):
        _require_token()
    monkeypatch.setenv(OPEN, "1")
    _require_token()
    assert os.environ["RAY_AUTH_MODE"] == "disabled"


def test_a_plugin_that_imported_ray_opens_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray read its mode then: a variable that is set now changes nothing."""
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    with pytest.raises(XMCBenchError, match=r"RAY_AUTH_MODE=disabled: .*expected token"), RayExecutor():
        pass
    assert "RAY_AUTH_MODE" not in os.environ
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    _require_token()
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64


@pytest.mark.skipif(sys.platform == "win32", reason="limits of open files are POSIX")
def test_too_few_open_files_are_a_line_before_anything_starts() -> None:
    import resource

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES - 1, limits[1]))
    try:
        with pytest.raises(XMCBenchError, match=rf"ulimit -n is {OPEN_FILES - 1}: "), RayExecutor():
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert "ray" not in sys.modules
