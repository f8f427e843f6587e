"""The hooks of plugins and the kinds of things that they register.

Each hook receives a function `register`, to be called once for each thing. The registry knows no contract. Each kind
has a home module in the room that owns the contract. The home module registers the built-in things of its kind through
the same hook as a third-party plugin, and defines `check_plugin(thing)`, which raises TypeError for a thing that breaks
the contract.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pluggy

hookspec = pluggy.HookspecMarker("xmcbench")
hookimpl = pluggy.HookimplMarker("xmcbench")
GROUP = "xmcbench"  # the entry-point group of plugins
HOMES = {
    "method": "xmcbench.trial.method",
    "sampler": "xmcbench.engine.sampling.builtin",
    "evaluator": "xmcbench.evaluation.evaluator",
    "dataset": "xmcbench.data.source",
    "teacher": "xmcbench.teachers",
    "judge": "xmcbench.teachers.judges",
    "tracker": "xmcbench.tracking",
    "command": "xmcbench.cli",
    "executor": "xmcbench.runs.local",
    "importer": "xmcbench.data.importer",
    "format": "xmcbench.reporting.formats",
    "result": "xmcbench.reporting.published",
}
HOOKS = {kind: f"register_{kind}s" for kind in HOMES}
VERSIONED = ("sampler", "teacher", "evaluator")  # kinds that a trial looks up by name, as in its `versions`
ALONE = frozenset({"command", "result"})  # kinds that are looked up often: each has only its own entry-point group
GROUPS = {GROUP: frozenset(HOMES) - ALONE} | {f"{GROUP}.{kind}s": frozenset({kind}) for kind in HOMES}
"""The kinds that a plugin of an entry-point group may register: of `xmcbench.methods` methods, of `xmcbench` all kinds
but commands and results."""


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
    """Register subclasses of `xmcbench.teachers.Teacher`, which judge whether a label fits a document."""


@hookspec
def register_judges(register: Callable[[type[Any]], None]) -> None:
    """Register subclasses of `xmcbench.teachers.JudgeMaker`, through which methods ask teachers."""


@hookspec
def register_trackers(register: Callable[[type[Any]], None]) -> None:
    """Register subclasses of `xmcbench.tracking.Tracker`, which forward the events of a run to another tool."""


@hookspec
def register_commands(register: Callable[[Any], None]) -> None:
    """Register `xmcbench.Command`s, as `xmcbench NAME`. The module is in the entry-point group `xmcbench.commands`."""


@hookspec
def register_executors(register: Callable[[type[Any]], None]) -> None:
    """Register subclasses of `xmcbench.Executor`, which run trials for `xmcbench run --executor NAME`."""


@hookspec
def register_importers(register: Callable[[Any], None]) -> None:
    """Register `xmcbench.data.Importer`s, which read files for `xmcbench datasets import --format NAME`."""


@hookspec
def register_formats(register: Callable[[Any], None]) -> None:
    """Register `xmcbench.Format`s, which write a leaderboard for `xmcbench leaderboard --format NAME`."""


@hookspec
def register_results(register: Callable[[Any], None]) -> None:
    """Register `xmcbench.Results` of others. The module is in the entry-point group `xmcbench.results`."""


def is_plain(name: str) -> bool:
    """Whether a name can stand in a suite, in an option and in the name of a file."""
    plain = name.isprintable() and name == name.strip() and "/" not in name and "\\" not in name
    return plain and name[:1] not in ("", ".", "-")


def check_subclass(thing: Any, base: type[Any], name: str) -> None:
    """Raise TypeError unless `thing` is a subclass of `base`, which is public as `name`, and no abstract one."""
    if not (isinstance(thing, type) and issubclass(thing, base)):
        raise TypeError(f"{thing!r} is not a subclass of {name}")
    if missing := sorted(getattr(thing, "__abstractmethods__", ())):
        raise TypeError(f"{thing.__name__} does not define {', '.join(missing)}")


def check_texts(values: Any, where: str) -> None:
    """Raise TypeError unless `values`, which is public as `where`, are several texts."""
    if isinstance(values, str):
        raise TypeError(f"{where} is the text {values!r}, expected a tuple: ({values!r},)")
    if not isinstance(values, tuple | list | frozenset | set) or not all(isinstance(each, str) for each in values):
        raise TypeError(f"{where} is {values!r}, expected a tuple of texts")


def check_config(thing: Any, base: Any) -> None:
    """Raise TypeError unless the settings of `thing`, its `Config`, extend those of `base`."""
    settings: Any = thing.Config
    extends = isinstance(settings, type) and issubclass(settings, base.Config)
    if not extends:
        expected = f"expected class Config({base.__name__}.Config)"
        raise TypeError(f"{thing.__name__}.Config does not extend {base.__name__}.Config: {expected}")
    if not settings.__pydantic_fields_complete__:
        settings.model_rebuild()  # of types that are defined below it; raises where nothing defines one
