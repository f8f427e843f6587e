"""What a plugin may register. Each hook hands over a `register` function to call once a thing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pluggy

hookspec = pluggy.HookspecMarker("xmcbench")
hookimpl = pluggy.HookimplMarker("xmcbench")


@hookspec
def register_methods(register: Callable[[type[Any]], None]) -> None:
    """Register subclasses of `xmcbench.Method`."""


@hookspec
def register_samplers(register: Callable[[Any], None]) -> None:
    """Register a `Recipe` of `xmcbench.sampling`, or a subclass of its `Sampler`: what makes a named sampler."""


@hookspec
def register_evaluators(register: Callable[[Any], None]) -> None:
    """Register an `xmcbench.evaluation.Evaluator`: a named figure computed from predictions and truth."""


@hookspec
def register_datasets(register: Callable[[Any], None]) -> None:
    """Register an `xmcbench.data.Source`: a named dataset, or a family of them, and how to read it."""


@hookspec
def register_teachers(register: Callable[[type[Any]], None]) -> None:
    """Register subclasses of `xmcbench.Teacher`: who judges whether a label fits a document."""


@hookspec
def register_trackers(register: Callable[[type[Any]], None]) -> None:
    """Register subclasses of `xmcbench.Tracker`: who is told what happens to the trials of a run."""
