"""Trackers forward the events of a run to experiment trackers such as TensorBoard and MLflow. None is on by default."""

from xmcbench.tracking.tracker import Tracker

__all__ = ["Tracker"]
