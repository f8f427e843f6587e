"""The contract of a tracker, which forwards the events of a run to another tool. None is on by default."""

from typing import Any

from xmcbench.plugins.hookspecs import check_subclass
from xmcbench.tracking.tracker import Point, Tracker
from xmcbench.trial.record import Record
from xmcbench.trial.run import TrialProgress
from xmcbench.trial.trial import Trial

__all__ = ["Point", "Record", "Tracker", "Trial", "TrialProgress"]


def check_plugin(thing: Any) -> None:
    """Raise TypeError if `thing` cannot be registered as a tracker."""
    check_subclass(thing, Tracker, "xmcbench.tracking.Tracker")
