"""How much memory activations may take."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest

from xmcbench.engine.training import steps
from xmcbench.engine.training.steps import kept_bytes, room_now
from xmcbench.engine.workers import Workers
from xmcbench.trial.budget import Budget

GIB = 2**30


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 GiB are free, this process has taken 1 GiB, and there is no GPU."""
    monkeypatch.setattr(steps, "default_device", lambda: SimpleNamespace(type="cpu"))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=8 * GIB))
    monkeypatch.setattr(psutil.Process, "memory_info", lambda _: SimpleNamespace(rss=GIB))


def test_at_most_half_of_the_room_is_kept() -> None:
    assert kept_bytes(4.0, 100 * GIB) == 4 * GIB
    assert kept_bytes(4.0, 2 * GIB) == GIB
    assert kept_bytes(0.0, 2 * GIB) == kept_bytes(4.0, -GIB) == 0


@pytest.mark.usefixtures("machine")
def test_room_is_what_machine_and_budget_have_left() -> None:
    free = Budget(steps=1)
    assert room_now(free, Workers()) == 8 * GIB
    assert room_now(free, Workers(0, 4)) == 2 * GIB
    assert room_now(Budget(steps=1, peak_bytes=100 * GIB), Workers()) == 8 * GIB
    assert room_now(Budget(steps=1, peak_bytes=3 * GIB), Workers()) == 2 * GIB
    assert kept_bytes(4.0, room_now(Budget(steps=1, peak_bytes=GIB / 2), Workers())) == 0
