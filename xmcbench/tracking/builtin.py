"""The trackers that come with the harness, registered through the hook that plugins use."""

from __future__ import annotations

from collections.abc import Callable

from xmcbench.plugins.hookspecs import hookimpl
from xmcbench.tracking.mlflow import MLflow
from xmcbench.tracking.tensorboard import TensorBoard
from xmcbench.tracking.tracker import Tracker


@hookimpl
def register_trackers(register: Callable[[type[Tracker]], None]) -> None:
    """Register TensorBoard and MLflow."""
    register(TensorBoard)
    register(MLflow)
