"""Whether a trial that is about to run will fit the memory of its budget, by prediction, on this machine."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from xmcbench.engine.planning.accelerators import HERE, accelerator
from xmcbench.engine.planning.trials import Machine, Planner, too_large
from xmcbench.engine.planning.workload import Lengths
from xmcbench.errors import XMCBenchError
from xmcbench.trial.trial import Trial


def predicted_too_large(trial: Trial, data: Path, cache_dir: Path, workers: int) -> str | None:
    """Why a worker will not fit, or None where it will, or where nothing can be said before it is tried."""
    try:
        return too_large(_planner(data, cache_dir, workers).plan(trial))
    except XMCBenchError:
        return None  # its memory is measured while it runs


@cache
def _planner(data: Path, cache_dir: Path, workers: int) -> Planner:
    return Planner(data, cache_dir, Lengths(), Machine(accelerator(HERE), workers))
