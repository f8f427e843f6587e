"""`xmcbench environment`: Python environments of methods whose packages conflict with those of xmcbench."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xmcbench.cli.completion import method_names
from xmcbench.runs.terminal import echo

if TYPE_CHECKING:
    from xmcbench.trial.environment import Environment

app = typer.Typer(no_args_is_help=True, help="Make the Python environments that some methods need.")

MethodName = Annotated[
    str,
    typer.Argument(metavar="METHOD", help="A method that runs in its own environment.", autocompletion=method_names),
]


@app.command("make")
def make(method: MethodName) -> None:
    """Install the packages of a method in a separate environment, in the cache."""
    environment = _environment(method)
    echo(f"{method}: installing {' '.join((*environment.no_dependencies, *environment.requirements))}", err=True)
    echo(f"{method}: {environment.make()}")


@app.command("use")
def use(
    method: MethodName,
    python: Annotated[Path, typer.Argument(help="The interpreter of an environment that has the packages.")],
) -> None:
    """Use an existing environment."""
    _environment(method).use(python)
    echo(f"{method}: {python.absolute()}")


def _environment(name: str) -> Environment:
    from xmcbench.errors import XMCBenchError
    from xmcbench.plugins.registry import registry

    environment: Environment | None = getattr(registry().method(name).thing, "environment", None)
    if environment is None:
        raise XMCBenchError(f"method {name!r} runs in the environment of xmcbench, expected one with its own")
    return environment
