"""`xmcbench methods`, `environment` and `teachers`: what is installed, environments of methods, teachers' answers.

Methods whose packages conflict with those of xmcbench run in a Python environment of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Option, Typer

from xmcbench.cli.options import StoreDir, method_names
from xmcbench.errors import XMCBenchError
from xmcbench.runs.terminal import echo, listing

if TYPE_CHECKING:
    from xmcbench.trial.programs import Environment


def _listed(kind: str, last: str, value: Callable[[Any], str]) -> str:
    """The installed plugins of a kind, with a last column."""
    from xmcbench.plugins.registry import registry

    rows = []
    for own in registry().all(kind):
        thing, origin = own.thing, own.origin
        rows.append(
            (own.name, getattr(thing, "info", thing).summary, origin.distribution, origin.version, value(thing))
        )
    return listing(rows, (kind, "summary", "distribution", "version", last))


def methods() -> None:
    """List installed methods, and plugins that could not be loaded."""
    from xmcbench.plugins.registry import registry

    plugins = registry()
    plugins.load_third_party()
    echo(_listed("method", "needs", lambda method: ", ".join(method.info.needs)))
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


teachers = Typer(help="List teachers, or export their answers.", invoke_without_command=True)


@teachers.callback()
def _teachers(context: Context) -> None:
    """List teachers, or export their answers."""
    if context.invoked_subcommand is None:
        list_teachers()


@teachers.command("list")
def list_teachers() -> None:
    """List installed teachers."""
    echo(_listed("teacher", "simulated", lambda teacher: "yes" if teacher.simulated else "no"))


@teachers.command()
def export(
    output: Annotated[Path | None, Option("--output", "-o", help="Output file (default: standard output).")] = None,
    form: Annotated[str, Option("--format", help="csv, json or parquet.")] = "csv",
    teacher: Annotated[str, Option(metavar="GLOB", help="Only teachers whose title matches.")] = "*",
    store: StoreDir = Path("results"),
) -> None:
    """Write the judgements of a store as a table: document, label, answer, confidence, teacher."""
    from xmcbench.teachers.database import FILE, JudgementStore
    from xmcbench.teachers.export import writer

    write = writer(form, to_file=output is not None)
    if not (store / FILE).is_file():
        raise XMCBenchError(f"{store / FILE}: no judgements; trials of a method that asks a teacher store them")
    judgements = JudgementStore(store)
    try:
        written = write(judgements.rows(teacher), output)
    finally:
        judgements.close()
    if output is not None:
        echo(f"{output}: {written:,} judgements")
