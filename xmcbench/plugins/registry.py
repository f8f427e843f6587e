"""Finds plugins, keeps a broken one from harming the rest, and looks names up.

Core samplers, evaluators and datasets are plugins too, but each kind is imported only when it is asked for, and
third-party distributions only when a name is not found in the core: asking for a dataset must not import torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from typing import Any

import pluggy

from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.plugins import hookspecs
from xmcbench.teachers.teacher import Teacher
from xmcbench.tracking.tracker import Tracker
from xmcbench.trial.method import Method, MethodInfo

GROUP = "xmcbench"
STRICT = "XMCBENCH_STRICT_PLUGINS"  # set to 1: a broken plugin stops the tool, for who writes one
ONLY = "XMCBENCH_PLUGINS"  # distributions to take plugins from, as in "xmcbench,mine"; all where it is not set
KINDS = {
    "method": "register_methods",
    "sampler": "register_samplers",
    "evaluator": "register_evaluators",
    "dataset": "register_datasets",
    "teacher": "register_teachers",
    "tracker": "register_trackers",
}
CORE = {
    "sampler": "xmcbench.engine.sampling.builtin",
    "evaluator": "xmcbench.evaluation.builtin",
    "dataset": "xmcbench.data.builtin",
    "teacher": "xmcbench.teachers.builtin",
    "tracker": "xmcbench.tracking.builtin",
}


@dataclass(frozen=True)
class Origin:
    """The distribution a plugin came with."""

    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


@dataclass(frozen=True)
class Broken:
    """A plugin that could not be used; the tool goes on without it."""

    name: str
    distribution: str
    version: str
    reason: str


@dataclass(frozen=True)
class Registered:
    """A named thing and the distribution that registered it."""

    name: str
    thing: Any
    origin: Origin


class Registry:
    """All that plugins registered, by kind and name."""

    def __init__(self, found: Iterable[EntryPoint] | None = None, strict: bool | None = None) -> None:
        self.broken: list[Broken] = []
        self._manager = pluggy.PluginManager(GROUP)
        self._manager.add_hookspecs(hookspecs)
        self._things: dict[str, dict[str, Registered]] = {kind: {} for kind in KINDS}
        waiting = _installed() if found is None else found
        self._waiting = sorted(waiting, key=lambda point: (_origin(point).distribution, point.name))
        self._core_waiting = dict(CORE)
        self._strict = os.environ.get(STRICT) == "1" if strict is None else strict

    def method(self, name: str, distribution: str | None = None) -> Registered:
        """The method `name`. With `distribution` only that one's plugins are imported, where they have the name."""
        if distribution is not None:
            self._load_plugins(distribution)
        return self._find("method", name)

    def sampler(self, name: str) -> Any:
        return self._find("sampler", name).thing

    def evaluator(self, name: str) -> Any:
        return self._find("evaluator", name).thing

    def dataset(self, name: str) -> Any:
        """The `Source` called `name`, or the family the name belongs to (`catalog-131k` is one of `catalog-*`)."""
        return self._find("dataset", name).thing

    def teacher(self, name: str) -> Any:
        """The subclass of `xmcbench.Teacher` called `name`."""
        return self._find("teacher", name).thing

    def tracker(self, name: str) -> Any:
        """The subclass of `xmcbench.Tracker` called `name`."""
        return self._find("tracker", name).thing

    def all(self, kind: str) -> list[Registered]:
        """Everything of one kind, by name; imports every plugin."""
        self._load_core(kind)
        self._load_plugins()
        return [self._things[kind][name] for name in sorted(self._things[kind])]

    def _find(self, kind: str, name: str) -> Registered:
        self._load_core(kind)
        if (known := self._get(kind, name)) is None:
            self._load_plugins()
            known = self._get(kind, name)
        if known is None:
            problem = UnknownNameError(kind, name, self._things[kind])
            if self.broken:
                names = ", ".join(sorted({broken.name for broken in self.broken}))
                problem.args = (f"{problem}; broken plugins: {names} (`xmcbench methods` says why)",)
            raise problem
        return known

    def _get(self, kind: str, name: str) -> Registered | None:
        things = self._things[kind]
        if name in things:
            return things[name]
        families = (known for known in things.values() if getattr(known.thing, "matches", lambda _: False)(name))
        return next(families, None)

    def _load_core(self, kind: str) -> None:
        if module := self._core_waiting.pop(kind, None):
            self._register(module, import_module(module), Origin("xmcbench", own_version()))

    def _load_plugins(self, distribution: str | None = None) -> None:
        """Import what entry points name, one by one; what one of them does wrong is its own affair."""
        wanted = [p for p in self._waiting if distribution in (None, _origin(p).distribution)]
        self._waiting = [p for p in self._waiting if p not in wanted]
        for point in wanted:
            origin = _origin(point)
            try:
                self._register(point.name, point.load(), origin)
            except (Exception, SystemExit) as problem:
                if self._strict:
                    raise
                kind = "" if isinstance(problem, XMCBenchError) else f"{type(problem).__name__}: "
                reason = " ".join(f"{kind}{problem}".split())
                self.broken.append(Broken(point.name, origin.distribution, origin.version, reason))

    def _register(self, name: str, plugin: Any, origin: Origin) -> None:
        """Take in all that one plugin registers, or nothing of it."""
        if self._manager.is_registered(plugin):
            raise XMCBenchError(f"{origin} names a plugin that is registered already")
        try:
            self._manager.register(plugin, name=f"{origin.distribution}:{name}")
            self._manager.check_pending()
            found = {kind: self._collect(kind, plugin, origin) for kind in KINDS}
        except Exception:
            if self._manager.is_registered(plugin):
                self._manager.unregister(plugin)
            raise
        for kind, things in found.items():
            self._things[kind].update(things)

    def _collect(self, kind: str, plugin: Any, origin: Origin) -> dict[str, Registered]:
        """Call the plugin's own hook of this kind. A name twice, or a thing of a wrong type, is an error."""
        if kind in self._core_waiting and hasattr(plugin, KINDS[kind]):
            self._load_core(kind)  # a third-party name must not take the place of a core one
        found: dict[str, Registered] = {}

        def register(thing: Any) -> None:
            name = _checked_name(kind, thing)
            if known := found.get(name) or self._things[kind].get(name):
                raise XMCBenchError(f"{kind} {name!r} of {origin} is already registered by {known.origin}")
            found[name] = Registered(name, thing, origin)

        others = self._manager.get_plugins() - {plugin}
        hook: Callable[..., Any] = self._manager.subset_hook_caller(KINDS[kind], others)
        hook(register=register)
        return found


def _checked_name(kind: str, thing: Any) -> str:
    """The name of a registered thing; methods are checked for all that the harness will ask of them."""
    if kind == "method":
        if not (isinstance(thing, type) and issubclass(thing, Method)):
            raise TypeError(f"{thing!r} is not a subclass of xmcbench.Method")
        if missing := sorted(thing.__abstractmethods__):
            raise TypeError(f"{thing.__name__} does not define {', '.join(missing)}")
        if not isinstance(getattr(thing, "info", None), MethodInfo):
            raise TypeError(f"{thing.__name__}.info is not a MethodInfo")
        if not issubclass(thing.Config, Method.Config):
            raise TypeError(f"{thing.__name__}.Config does not extend Method.Config")
    if kind == "teacher":
        _check_teacher(thing)
    if kind == "tracker" and not (isinstance(thing, type) and issubclass(thing, Tracker)):
        raise TypeError(f"{thing!r} is not a subclass of xmcbench.Tracker")
    name = getattr(thing, "name", None)
    if not isinstance(name, str) or not name:
        raise TypeError(f"{thing!r} has no name")
    return name


def _check_teacher(thing: Any) -> None:
    if not (isinstance(thing, type) and issubclass(thing, Teacher)):
        raise TypeError(f"{thing!r} is not a subclass of xmcbench.Teacher")
    if missing := sorted(thing.__abstractmethods__):
        raise TypeError(f"{thing.__name__} does not define {', '.join(missing)}")
    if not isinstance(getattr(thing, "summary", None), str):
        raise TypeError(f"{thing.__name__} has no summary")
    if not issubclass(thing.Config, Teacher.Config):
        raise TypeError(f"{thing.__name__}.Config does not extend Teacher.Config")


def _installed() -> list[EntryPoint]:
    """The entry points of the installed distributions, or of those that are asked for."""
    points = list(entry_points(group=GROUP))
    wanted = os.environ.get(ONLY)
    return points if wanted is None else [point for point in points if _origin(point).distribution in wanted.split(",")]


def _origin(point: EntryPoint) -> Origin:
    return Origin(point.dist.name, point.dist.version) if point.dist else Origin("unknown", "0")


def own_version() -> str:
    """The version of the installed xmcbench; a bare checkout has none."""
    try:
        return version("xmcbench")
    except PackageNotFoundError:
        return "not installed"


@cache
def registry() -> Registry:
    """The registry of this process."""
    return Registry()
