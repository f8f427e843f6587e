"""Trackers that forward the events of a run to TensorBoard, MLflow or Weights & Biases."""

from __future__ import annotations

from collections.abc import Callable

from xmcbench import hookimpl, tracking
from xmcbench_plugins.trackers.tools import MLflow, TensorBoard, Wandb


@hookimpl
def register_trackers(register: Callable[[type[tracking.Tracker]], None]) -> None:
    """Register the three trackers."""
    for tracker in (TensorBoard, MLflow, Wandb):
        register(tracker)
