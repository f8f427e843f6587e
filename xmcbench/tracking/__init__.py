"""Trackers forward the events of a run to TensorBoard, MLflow, wandb or others. None is on by default."""

from xmcbench.tracking.tracker import Tracker
from xmcbench.trial.record import Record
from xmcbench.trial.run import TrialProgress
from xmcbench.trial.trial import Trial

__all__ = ["Record", "Tracker", "Trial", "TrialProgress"]
