"""Trackers forward the events of a run to TensorBoard, MLflow, wandb or others. None is on by default."""

from collections.abc import Callable
from typing import Any

from xmcbench.plugins.hookspecs import check_subclass, hookimpl
from xmcbench.tracking.tools import MLflow, TensorBoard, Wandb
from xmcbench.tracking.tracker import Tracker
from xmcbench.trial.record import Record
from xmcbench.trial.run import TrialProgress
from xmcbench.trial.trial import Trial

__all__ = ["Record", "Tracker", "Trial", "TrialProgress"]


@hookimpl
def register_trackers(register: Callable[[type[Tracker]], None]) -> None:
    """Register the built-in trackers through the hook that third parties use."""
    for tracker in (TensorBoard, MLflow, Wandb):
        register(tracker)


def check_plugin(thing: Any) -> None:
    """Raise TypeError if `thing` cannot be registered as a tracker."""
    check_subclass(thing, Tracker, "xmcbench.tracking.Tracker")
