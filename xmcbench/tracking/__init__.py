"""Trackers forward the events of a run to TensorBoard, MLflow, wandb or others. None is on by default."""

from xmcbench.tracking.tracker import Tracker

__all__ = ["Tracker"]
