"""Runs trials and the samples of a tuning on a Ray cluster: `xmcbench run --executor ray`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xmcbench import hookimpl
from xmcbench_plugins.ray.executor import RayExecutor


@hookimpl
def register_executors(register: Callable[[type[Any]], None]) -> None:
    """Register the executor `ray`."""
    register(RayExecutor)
