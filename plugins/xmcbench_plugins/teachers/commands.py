"""`xmcbench teachers`: what is installed, and the answers that a store holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from typer import Context, Option, Typer

from xmcbench.cli.methods import listed
from xmcbench.cli.options import StoreDir
from xmcbench.errors import XMCBenchError
from xmcbench.plugins.commands import Command
from xmcbench.plugins.hookspecs import hookimpl
from xmcbench.runs.terminal import echo

app = Typer(help="List teachers, or export their answers.", invoke_without_command=True)


@app.callback()
def _teachers(context: Context) -> None:
    """List teachers, or export their answers."""
    if context.invoked_subcommand is None:
        list_teachers()


@app.command("list")
def list_teachers() -> None:
    """List installed teachers."""
    echo(listed("teacher", "simulated", lambda teacher: "yes" if teacher.simulated else "no"))


@app.command()
def export(
    output: Annotated[Path | None, Option("--output", "-o", help="Output file (default: standard output).")] = None,
    form: Annotated[str, Option("--format", help="csv, json or parquet.")] = "csv",
    teacher: Annotated[str, Option(metavar="GLOB", help="Only teachers whose title matches.")] = "*",
    store: StoreDir = Path("results"),
) -> None:
    """Write the judgements of a store as a table: document, label, answer, confidence, teacher."""
    from xmcbench_plugins.teachers.database import FILE, JudgementStore
    from xmcbench_plugins.teachers.export import writer

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


@hookimpl
def register_commands(register: Callable[[Command], None]) -> None:
    """Register `xmcbench teachers`."""
    register(Command("teachers", app))
