"""The built-in trackers, registered through the hook that third parties use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xmcbench.plugins.hookspecs import check_subclass, hookimpl
from xmcbench.tracking.mlflow import MLflow
from xmcbench.tracking.tensorboard import TensorBoard
from xmcbench.tracking.tracker import Tracker
from xmcbench.tracking.wandb import Wandb


@hookimpl
def register_trackers(register: Callable[[type[Tracker]], None]) -> None:
    """Register TensorBoard, MLflow and wandb."""
    register(TensorBoard)
    register(MLflow)
    register(Wandb)


def check_plugin(thing: Any) -> None:
    """Raise TypeError if `thing` cannot be registered as a tracker."""
    check_subclass(thing, Tracker, "xmcbench.tracking.Tracker")
