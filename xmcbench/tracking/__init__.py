"""What happens in a run, told to the tools that people watch experiments with. Off unless asked for."""

from xmcbench.tracking.listening import tracked
from xmcbench.tracking.tracker import Tracker

__all__ = ["Tracker", "tracked"]
