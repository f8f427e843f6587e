"""`xmcbench methods` and `environment`: what is installed, and environments of methods.

Methods whose packages conflict with those of xmcbench run in a Python environment of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Typer

from xmcbench.cli.options import method_names
from xmcbench.errors import XMCBenchError
from xmcbench.runs.terminal import echo, listing

if TYPE_CHECKING:
    from xmcbench.trial.programs import Environment


def listed(kind: str, last: str, value: Callable[[Any], str]) -> str:
    """The installed plugins of a kind, with a last column."""
    from xmcbench.plugins.registry import registry

    rows = []
    for plugin in registry().all(kind):
        thing, origin = plugin.thing, plugin.origin
        rows.append(
            (plugin.name, getattr(thing, "info", thing).summary, origin.distribution, origin.version, value(thing))
        )
    return listing(rows, (kind, "summary", "distribution", "version", last))


def methods() -> None:
    """List installed methods, and plugins that could not be loaded."""
    from xmcbench.plugins.registry import registry

    plugins = registry()
    plugins.load_third_party()
    echo(listed("method", "needs", lambda method: ", ".join(method.info.all_needs)))
    for distribution in sorted({method.origin.distribution for method in plugins.all("method")}):
        if remark := plugins.import_remark(distribution):
            echo(f"\n{remark}")
    if plugins.broken:
        echo("\nbroken (XMCBENCH_STRICT_PLUGINS=1 shows the traceback)")
        broken = [(plugin.name, plugin.distribution, plugin.version, plugin.reason) for plugin in plugins.broken]
        echo(listing(broken, ("plugin", "distribution", "version", "reason")))


environments = Typer(no_args_is_help=True, help="Make the Python environments that some methods need.")

MethodName = Annotated[
    str, Argument(metavar="METHOD", help="A method that runs in its own environment.", autocompletion=method_names)
]


@environments.command("make")
def make(method: MethodName) -> None:
    """Install the packages of a method in a separate environment, in the cache."""
    environment = _environment(method)
    echo(f"{method}: installing {' '.join((*environment.no_dependencies, *environment.requirements))}", err=True)
    echo(f"{method}: {environment.make()}")


@environments.command("use")
def use(
    method: MethodName,
    python: Annotated[Path, Argument(help="The interpreter of an environment that has the packages.")],
) -> None:
    """Use an existing environment."""
    _environment(method).use(python)
    echo(f"{method}: {python.absolute()}")


def _environment(name: str) -> Environment:
    from xmcbench.plugins.registry import registry

    environment: Environment | None = getattr(registry().method(name).thing, "environment", None)
    if environment is None:
        raise XMCBenchError(f"method {name!r} runs in the environment of xmcbench, expected one with its own")
    return environment
