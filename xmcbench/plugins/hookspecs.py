"""The hooks of plugins. Each hook receives a function `register`, to be called once for each thing."""

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
    """Register a `Recipe` of `xmcbench.sampling`, or a subclass of its `Sampler`: each builds a named sampler."""


@hookspec
def register_evaluators(register: Callable[[Any], None]) -> None:
    """Register an `xmcbench.evaluation.Evaluator`: a named metric, computed from predictions and true labels."""


@hookspec
def register_datasets(register: Callable[[Any], None]) -> None:
    """Register an `xmcbench.data.Source`: a named dataset, or a family of datasets, and how to read it."""


@hookspec
def register_teachers(register: Callable[[type[Any]], None]) -> None:
    """Register subclasses of `xmcbench.Teacher`, which judge whether a label fits a document."""


@hookspec
def register_trackers(register: Callable[[type[Any]], None]) -> None:
    """Register subclasses of `xmcbench.Tracker`, which forward the events of a run to another tool."""
