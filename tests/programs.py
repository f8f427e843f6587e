"""The programs in `benchmarks/`, as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def benchmark(name: str, patch: pytest.MonkeyPatch) -> ModuleType:
    """`benchmarks/<name>.py`, which finds its neighbours until `patch` is undone."""
    patch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    patch.setitem(sys.modules, name, loaded)
    spec.loader.exec_module(loaded)
    return loaded
