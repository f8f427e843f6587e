"""Fixtures shared by all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture
def shared() -> Path:
    """The folder of real datasets and golden values; the project works without it, its tests then say so."""
    if not SHARED.is_dir():
        pytest.skip("needs ../shared (real datasets and golden values), which is not beside this checkout")
    return SHARED
