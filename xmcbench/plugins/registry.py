"""Finds plugins, isolates broken ones, and looks registered things up by name.

Built-in things are registered through the same hooks as those of third parties, and always first. A thing that breaks
its contract, or whose name is taken, is refused alone: the other things of its plugin are registered. The home module
of a kind (`hookspecs.HOMES`) is imported when the first thing of that kind is looked up or registered, and third-party
plugins only when a name is not found among the built-in ones.

A plugin in the entry-point group `xmcbench` may register things of any kind but commands and results. One in the group
of a kind, as `xmcbench.methods`, is imported only when things of that kind are looked up. Commands have the group
`xmcbench.commands` only, and results `xmcbench.results`: `xmcbench --help` and `xmcbench leaderboard` import the
plugins that these name, and no others.

Importing a plugin should cost no framework (`FRAMEWORKS`): listings and plans import all of them.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, entry_points, version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import walk_tb
from typing import Any

import pluggy

from xmcbench.errors import UnknownNameError, XMCBenchError, reason_of, shown
from xmcbench.plugins import hookspecs
from xmcbench.plugins.hookspecs import GROUP, GROUPS, HOMES, HOOKS, VERSIONED, is_plain

STRICT = "XMCBENCH_STRICT_PLUGINS"  # "1": a broken plugin is an error, for plugin authors
ONLY = "XMCBENCH_PLUGINS"  # distributions to load plugins from, as in "xmcbench,mine"; unset: all
LONGEST_NAME = 100  # bytes: in the names of files more stands beside it
UNPACKAGED = "unpackaged"  # begins the distribution of what has no package: the digest of its code follows
FILES = "XMCBENCH_PLUGIN_FILES"  # Python files to load plugins from, as in "one.py:two.py"; `run --plugin` sets it
LEFT_OUT = {f"{GROUP}.methods", f"{GROUP}.evaluators"}  # groups of `OWN` that are loaded only if `ONLY` names it
LOOKED_UP = "xmcbench.dataset"  # the audit event of looking up a dataset, which could be read
OWN = "xmcbench"  # the distribution of the built-in methods
FIRST_PARTY = "xmcbench_plugins"  # the package of the built-in plugins, each a package in it
FRAMEWORKS = ("torch", "transformers", "sklearn", "pandas", "tensorflow", "jax", "faiss")  # seconds to import


@dataclass(frozen=True)
class Origin:
    """The distribution that a plugin belongs to."""

    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


@dataclass(frozen=True)
class Broken:
    """A plugin that could not be loaded, and why."""

    name: str
    distribution: str
    version: str
    reason: str


@dataclass(frozen=True)
class _Plugin:
    """The first entry point of a module, the names of all, and the kinds of things that their groups allow."""

    point: EntryPoint
    kinds: frozenset[str]
    names: frozenset[str]

    def is_named(self, name: str) -> bool:
        """Whether an entry point has the name of a thing, or the first words of it, as `tfidf` of `tfidf-nn`."""
        return any(f"{name}-".startswith(f"{prefix}-") for prefix in self.names)

    @property
    def origin(self) -> Origin:
        return _origin(self.point)

    @property
    def built_in(self) -> bool:
        return self.origin.distribution == OWN


@dataclass(frozen=True)
class Registered:
    """A named thing and the distribution that registered it."""

    name: str
    thing: Any
    origin: Origin
    module: str = ""  # that registered it

    @property
    def version(self) -> int:
        """The version of the thing's results: its attribute `version`, or 1."""
        version: int = getattr(self.thing, "version", 1)
        return version


class Registry:
    """The things that plugins registered, by kind and name."""

    def __init__(self, installed: Iterable[EntryPoint] | None = None, strict: bool | None = None) -> None:
        self.broken: list[Broken] = []
        self._frameworks: dict[str, list[str]] = {}  # by distribution: those that importing its plugins imported
        self._manager = pluggy.PluginManager(GROUP)
        self._manager.add_hookspecs(hookspecs)
        self._things: dict[str, dict[str, Registered]] = {kind: {} for kind in HOOKS}
        self._homes: dict[str, Any] = {}  # by kind: the modules that are loaded
        self._modules: dict[str, Origin] = {}  # top-level packages of third-party plugins
        self._waiting = _plugins(_installed() if installed is None else installed)
        self.sources: dict[type[Any], str] = {}  # of methods that are classes of this process
        self._strict = os.environ.get(STRICT) == "1" if strict is None else strict

    def method(self, name: str, distribution: str | None = None) -> Registered:
        """The method `name`. With `distribution`, the plugins of that distribution are imported first."""
        if distribution not in (None, OWN):
            self._load_plugins(lambda plugin: plugin.origin.distribution == distribution, built_in_first=False)
        return self._find("method", name)

    def version(self, kind: str, name: str) -> int:
        """The version of the sampler, evaluator or teacher called `name`."""
        return self._find(kind, name).version

    def origin(self, kind: str, name: str) -> str:
        """The distribution that registered what is called `name`."""
        return self._find(kind, name).origin.distribution

    def registered(self, kind: str, name: str) -> Registered | None:
        """What answers to this name among the things that are loaded."""
        return self._get(kind, name) if kind in self._homes else None

    def packages(self, kind: str, name: str) -> tuple[str, ...]:
        """The packages of plugins that a thing is written in, with those it inherits from and that registers it."""
        known = self._find(kind, name)
        kinds = getattr(known.thing, "__mro__", type(known.thing).__mro__)
        modules = [*(one.__module__ for one in kinds), *([known.module] if known.module else [])]
        names = dict.fromkeys(map(plugin_package, modules))
        return tuple(one for one in names if one.startswith(f"{FIRST_PARTY}.") or self.origin_of(one))

    def thing(self, kind: str, name: str) -> Any:
        """What is registered as `name`: a dataset's `Family` where the name belongs to one (`catalog-131k`)."""
        if kind == "dataset":
            sys.audit(LOOKED_UP, name)
        return self._find(kind, name).thing

    def all(self, kind: str) -> list[Registered]:
        """All things of one kind, sorted by name. Imports every plugin that may register one."""
        self._load_home(kind)
        self._load_all(kind)
        return [self._things[kind][name] for name in sorted(self._things[kind])]

    def load_third_party(self) -> None:
        """Import every plugin of a third party, whatever it registers: those that are broken are listed then."""
        self._load_plugins(lambda plugin: not plugin.built_in)

    def add_file(self, path: Path) -> None:
        """Register the things of a plugin that is a file. Raises XMCBenchError where anything of it is broken."""
        try:
            source = path.read_bytes()
        except OSError as problem:
            raise XMCBenchError(f"{path}: {problem.strerror}, expected a Python file with a plugin") from None
        digest = _digest(source)
        name, origin = f"{UNPACKAGED}_{digest}", Origin(f"{UNPACKAGED}-{digest}", "0")
        if name in sys.modules and name in self._modules:
            return
        spec = spec_from_file_location(name, path.absolute())
        if spec is None or spec.loader is None:
            raise XMCBenchError(f"{path}: expected a Python file, whose name ends in .py")
        plugin = sys.modules[name] = module_from_spec(spec)
        self._modules[name] = origin
        try:
            with redirect_stdout(sys.stderr):
                spec.loader.exec_module(plugin)
            self._add(plugin, origin)
        except BaseException as problem:
            del sys.modules[name], self._modules[name]
            self._forget(plugin, origin)
            if self._strict or isinstance(problem, KeyboardInterrupt):
                raise
            raise XMCBenchError(f"{path}: {reason_of(problem)}{_needs_package(path, problem)}") from problem

    def _forget(self, plugin: Any, origin: Origin) -> None:
        """Take back what a plugin without a package registered."""
        if self._manager.is_registered(plugin):
            self._manager.unregister(plugin)
        for kind, things in self._things.items():
            self._things[kind] = {name: each for name, each in things.items() if each.origin != origin}

    def _add(self, plugin: Any, origin: Origin) -> None:
        """Register the things of a plugin without a package, after those that are installed."""
        for kind in _kinds_of(plugin, HOOKS):
            self._load_home(kind)
            self._load_all(kind)
        known = len(self.broken)
        self._register(plugin.__name__, plugin, origin)
        if len(self.broken) > known:
            raise XMCBenchError(self.broken.pop().reason)

    def add_class(self, method: type[Any]) -> None:
        """Register a method that is a class of this process, as in a notebook, in the place of an earlier one.

        Its trials run in this process. The digest is that of the files or cells that define it and what it inherits.
        """
        from xmcbench.plugins.unpackaged import source_of

        self._load_home("method")
        self._load_all("method")
        try:
            self._check("method", method)
        except Exception as problem:
            raise XMCBenchError(reason_of(problem)) from problem
        source = source_of(method)
        digest = _digest(source.encode())
        known = self._things["method"].get(method.name)
        if known and known.thing not in self.sources:
            raise XMCBenchError(f"method {method.name!r} is already registered by {known.origin}")
        self.sources[method] = source
        self._things["method"][method.name] = Registered(method.name, method, Origin(f"{UNPACKAGED}-{digest}", "0"))

    def renew_classes(self) -> None:
        """Register the classes of this process anew: what their functions read may have changed since."""
        for known in [each for each in self._things["method"].values() if each.thing in self.sources]:
            self.add_class(known.thing)

    def import_remark(self, distribution: str) -> str:
        """A line about the frameworks that importing the plugins of a distribution imports; empty if there are none."""
        frameworks = self._frameworks.get(distribution)
        if not frameworks:
            return ""
        names, settings = ", ".join(frameworks), ", ".join(map(repr, frameworks))
        return (
            f"hint: importing the plugins of {distribution} imports {names}, which every listing and plan waits for: "
            f"import them in functions, and set late_imports = ({settings},)"
        )

    def origin_of(self, module: str) -> Origin | None:
        """The distribution of the third-party plugin that the module called `module` belongs to, if it is loaded."""
        return self._modules.get(module.partition(".")[0])

    def _find(self, kind: str, name: str) -> Registered:
        self._load_home(kind)
        look_up = partial(self._get, kind, name)
        if not look_up():  # most entry points are named after the method or the command that they lead to
            self._load_plugins(lambda plugin: plugin.built_in and kind in plugin.kinds and plugin.is_named(name))
        if not look_up():
            self.load_built_in(kind)
        if not look_up():
            self._load_all(kind)
        if known := look_up():
            return known
        raise self.unknown(kind, name, self._things[kind])

    def unknown(self, kind: str, name: str, known: Iterable[str], where: str = "") -> UnknownNameError:
        """The error for an unknown name. It mentions broken plugins: one of them may have been meant to register it."""
        problem = UnknownNameError(kind, name, known, where)
        if self.broken:
            names = ", ".join(sorted({broken.name for broken in self.broken}))
            problem.args = (f"{problem}; broken plugins: {names} (`xmcbench methods` shows why)",)
        return problem

    def _get(self, kind: str, name: str) -> Registered | None:
        things = self._things[kind]
        if name in things:
            return things[name]
        answers_to = getattr(self._homes[kind], "answers_to", None)  # of a kind that has families
        return next((known for known in things.values() if answers_to and answers_to(known.thing, name)), None)

    def _load_home(self, kind: str) -> None:
        """Register the built-in things of one kind."""
        if kind not in self._homes:
            self._homes[kind] = import_module(HOMES[kind])
            self._register(kind, self._homes[kind], Origin(OWN, own_version()))

    def _load_all(self, kind: str) -> None:
        """Import the plugins that may register things of one kind."""
        self.load_built_in(kind)
        self._load_plugins(lambda plugin: kind in plugin.kinds)

    def load_built_in(self, kind: str) -> None:
        """Import the built-in plugins that may register things of one kind."""
        self._load_plugins(lambda plugin: plugin.built_in and kind in plugin.kinds)

    def _load_plugins(self, wanted: Callable[[_Plugin], bool], built_in_first: bool = True) -> None:
        """Import installed plugins one by one. A plugin that fails is listed in `broken`.

        With `built_in_first` the built-in things of a kind are registered before those of a third party.
        """
        plugins = [plugin for plugin in self._waiting if wanted(plugin)]
        self._waiting = [plugin for plugin in self._waiting if plugin not in plugins]
        for waiting in plugins:
            point, origin = waiting.point, waiting.origin
            try:
                if not point.pattern.match(point.value):
                    raise XMCBenchError(f"found the entry point {shown(point.value)}, expected a module")
                if origin.distribution != OWN:
                    self._modules[point.module.partition(".")[0]] = origin
                before = set(sys.modules)
                with redirect_stdout(sys.stderr):  # what a plugin prints when it is imported is no output of a command
                    plugin = point.load()
                new = [name for name in FRAMEWORKS if name in sys.modules and name not in before]
                self._frameworks.setdefault(origin.distribution, []).extend(new)
                kinds = _kinds_of(plugin, waiting.kinds)
                for kind in kinds if built_in_first and not waiting.built_in else ():
                    self.load_built_in(kind)
                self._register(point.name, plugin, origin)
            except BaseException as problem:  # also an exit, or an exception that no `Exception` is
                self._note_broken(point.name, origin, problem)

    def _note_broken(self, plugin: str, origin: Origin, problem: BaseException) -> None:
        """List a plugin, or one thing of it, as broken. The author of a plugin gets the exception itself."""
        if self._strict or isinstance(problem, KeyboardInterrupt):
            raise problem
        self.broken.append(Broken(plugin, origin.distribution, origin.version, reason_of(problem)))

    def _register(self, name: str, plugin: Any, origin: Origin) -> None:
        """Register the things of one plugin. A thing that is refused is listed as broken, and the others stay."""
        if self._manager.is_registered(plugin):
            raise XMCBenchError(f"{origin} names a plugin that is already registered")
        try:
            self._manager.register(plugin, name=f"{origin.distribution}:{getattr(plugin, '__name__', name)}")
            self._manager.check_pending()
        except BaseException:
            if self._manager.is_registered(plugin):
                self._manager.unregister(plugin)
            raise
        for kind in (kind for kind, hook in HOOKS.items() if hasattr(plugin, hook)):
            try:
                self._collect(kind, name, plugin, origin)
            except BaseException as problem:  # of one hook: the things of the others are registered
                self._note_broken(name, origin, problem)

    def _check(self, kind: str, thing: Any) -> str:
        """The name of a thing. Raises TypeError if it cannot be registered."""
        self._homes[kind].check_plugin(thing)
        name = getattr(thing, "name", None)
        if not isinstance(name, str) or not name:
            raise TypeError(f"{thing!r} has no name")
        if not is_plain(name) or len(name.encode()) > LONGEST_NAME:
            expected = f"at most {LONGEST_NAME} printable characters without / and \\ that begin with neither . nor -"
            raise TypeError(f"a {kind} is called {shown(name)}, expected {expected}")
        if kind in VERSIONED and type(version := getattr(thing, "version", 1)) is not int:
            raise TypeError(f"the version of {kind} {name!r} is {shown(version)}, expected a whole number")
        return name

    def _collect(self, kind: str, plugin_name: str, plugin: Any, origin: Origin) -> None:
        """Register the things of one kind of a plugin."""
        self._load_home(kind)

        def register(thing: Any) -> None:
            try:
                name = self._check(kind, thing)
                if known := self._get(kind, name):
                    where = _defined(thing)
                    raise XMCBenchError(f"{kind} {name!r} of {origin}{where} is already registered by {known.origin}")
                module = str(getattr(plugin, "__name__", type(plugin).__module__))
                self._things[kind][name] = Registered(name, thing, origin, module)
            except BaseException as problem:
                self._note_broken(plugin_name, origin, problem)

        others = self._manager.get_plugins() - {plugin}
        hook: Callable[..., Any] = self._manager.subset_hook_caller(HOOKS[kind], others)
        hook(register=register)


def plugin_package(module: str) -> str:
    """The package of the plugin that holds a module: `xmcbench_plugins.lmtx` for `xmcbench_plugins.lmtx.cycles`."""
    parts = module.split(".")
    return ".".join(parts[:2] if parts[0] == FIRST_PARTY else parts[:1])


def _kinds_of(plugin: Any, kinds: Collection[str]) -> list[str]:
    """The kinds of things that a plugin registers.

    Raises XMCBenchError where a plugin registers nothing, where a hook lacks its mark, and where its entry points are
    in groups for other `kinds`.
    """
    hooks = [name for name in vars(plugin) if name.startswith("register_")] if hasattr(plugin, "__dict__") else []
    implemented = [kind for kind, hook in HOOKS.items() if hook in hooks]
    for kind in implemented:
        hook = HOOKS[kind]
        if not hasattr(getattr(plugin, hook), f"{GROUP}_impl"):
            raise XMCBenchError(f"{hook} lacks the decorator @hookimpl: write @xmcbench.hookimpl above it")
        if kind not in kinds:
            raise XMCBenchError(f"{hook} is not called: name its module in the entry-point group {GROUP}.{kind}s")
    if not hooks:
        raise XMCBenchError(f"it registers nothing, expected a function among {', '.join(HOOKS.values())}")
    return implemented


def _plugins(points: Iterable[EntryPoint]) -> list[_Plugin]:
    """The plugins of some entry points, those of this distribution first; a module in several groups is one."""
    first: dict[tuple[str, str], EntryPoint] = {}
    kinds: dict[tuple[str, str], frozenset[str]] = {}
    names: dict[tuple[str, str], frozenset[str]] = {}
    for point in points:
        which = _origin(point).distribution, point.value
        first.setdefault(which, point)
        kinds[which] = kinds.get(which, frozenset()) | GROUPS[point.group]
        names[which] = names.get(which, frozenset()) | {point.name}
    plugins = [_Plugin(point, kinds[which], names[which]) for which, point in first.items()]
    return sorted(plugins, key=lambda plugin: (not plugin.built_in, plugin.origin.distribution, plugin.point.name))


def _installed() -> list[EntryPoint]:
    """The entry points of the installed distributions, or of those that `ONLY` names."""
    try:
        every = entry_points()
        points = [point for group in GROUPS for point in every.select(group=group)]
    except UnicodeDecodeError as problem:
        raise XMCBenchError(f"installed packages: found an entry_points.txt that is not UTF-8: {problem}") from None
    if (wanted := os.environ.get(ONLY)) is None:
        return points
    return [
        point
        for point in points
        if (of := _origin(point).distribution) in wanted.split(",") or (of == OWN and point.group not in LEFT_OUT)
    ]


def _origin(point: EntryPoint) -> Origin:
    return _origin_of(point.dist) if point.dist else Origin("unknown", "0")


@cache
def _origin_of(distribution: Distribution) -> Origin:
    """Name and version; a distribution parses its metadata each time it is asked."""
    try:
        return Origin(distribution.name, distribution.version)
    except UnicodeDecodeError:
        raise XMCBenchError(f"{distribution.locate_file('')}: found a package with METADATA not in UTF-8") from None


def own_version() -> str:
    """The version of the installed xmcbench, or "not installed" for a bare checkout."""
    try:
        return version(OWN)
    except PackageNotFoundError:
        return "not installed"


@cache
def registry() -> Registry:
    """The registry of this process: the only way to reach it. A test that installs a plugin clears the cache."""
    made = Registry()
    for file in filter(None, os.environ.get(FILES, "").split(os.pathsep)):
        try:
            made.add_file(Path(file))
        except XMCBenchError as problem:
            made.broken.append(Broken(file, UNPACKAGED, "0", str(problem)))
    return made


def add_files(files: Iterable[Path]) -> None:
    """Register plugins that are files, in this process and in those that it starts."""
    paths = [str(file.absolute()) for file in files]
    for path in paths:
        registry().add_file(Path(path))
    known = [path for path in os.environ.get(FILES, "").split(os.pathsep) if path]
    os.environ[FILES] = os.pathsep.join(dict.fromkeys([*known, *paths]))


def register(method: type[Any]) -> type[Any]:
    """Register a method that has no package, as a class in a notebook: suites of this process may name it.

    Usable as a decorator. Registering a class of the same name again takes the place of the first. The digest of its
    code is in the keys of its trials, so that changed code trains again; a submission needs a package. Raises
    XMCBenchError where the source of the class cannot be read, or the name is taken.
    """
    registry().add_class(method)
    return method


def _defined(thing: Any) -> str:
    """File and line of a class, or of an object's class, in brackets.

    Empty where the class is one of xmcbench, or its source is not to be had.
    """
    kind = thing if isinstance(thing, type) else type(thing)
    if kind.__module__.partition(".")[0] == OWN:
        return ""
    try:
        return f" ({Path(inspect.getfile(kind)).name}:{inspect.getsourcelines(kind)[1]})"
    except (OSError, TypeError):
        return ""


def _needs_package(path: Path, problem: BaseException) -> str:
    """What to do where a plugin that is a file imports a module beside it; empty if it does not."""
    if not isinstance(problem, ImportError):
        return ""
    beside = path.parent / (problem.name or "").partition(".")[0]
    if "relative import" in str(problem) or (problem.name and (beside.is_dir() or beside.with_suffix(".py").exists())):
        return "; expected one file: a plugin of several is a package, `xmcbench new` makes one"
    return ""


def _digest(source: bytes) -> str:
    """The beginning of the digest of code without a package."""
    from hashlib import sha256  # loads OpenSSL, which listings do without

    return sha256(source).hexdigest()[:12]


@contextmanager
def calling(kind: str, name: str) -> Iterator[None]:
    """A block that calls what a plugin registered, and looks at what it returns.

    An exception that no line of the plugin raised, as where it takes other arguments, is one line that names it.
    """
    try:
        yield
    except (XMCBenchError, OSError):
        raise
    except Exception as problem:
        known = registry().registered(kind, name)
        if known is None or known.origin.distribution == OWN or os.environ.get(STRICT) == "1":
            raise
        told = plugin_failure(problem) or f"{kind} {name!r} of {known.origin}: {reason_of(problem)}"
        raise XMCBenchError(told) from problem


def plugin_failure(problem: BaseException) -> str | None:
    """A line that names the plugin and the line of its code that raised `problem`.

    None if no third-party plugin raised it, or if the author of a plugin asks for tracebacks (`STRICT`).
    """
    if os.environ.get(STRICT) == "1":
        return None
    for frame, line in reversed(list(walk_tb(problem.__traceback__))):
        origin = registry().origin_of(str(frame.f_globals.get("__name__", "")))
        if origin is not None:
            where = f"{Path(frame.f_code.co_filename).name}:{line}"
            return f"plugin {origin}: {where}: {reason_of(problem)} ({STRICT}=1 shows the traceback)"
    return None
