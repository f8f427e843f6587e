"""`xmcbench teachers`: installed teachers, and their stored answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from xmcbench.cli.options import StoreDir
from xmcbench.runs.terminal import echo, listing

app = typer.Typer(help="List teachers, or export their answers.", invoke_without_command=True)

HEADERS = ("teacher", "summary", "distribution", "version", "simulated")


@app.callback()
def main(context: typer.Context) -> None:
    """List teachers, or export their answers."""
    if context.invoked_subcommand is None:
        list_teachers()


@app.command("list")
def list_teachers() -> None:
    """List installed teachers."""
    from xmcbench.plugins.registry import registry

    rows = [
        (
            plugin.name,
            plugin.thing.summary,
            plugin.origin.distribution,
            plugin.origin.version,
            "yes" if plugin.thing.simulated else "no",
        )
        for plugin in registry().all("teacher")
    ]
    echo(listing(rows, HEADERS))


@app.command()
def export(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Output file (default: standard output).")
    ] = None,
    form: Annotated[str, typer.Option("--format", help="csv, json or parquet.")] = "csv",
    teacher: Annotated[str, typer.Option(metavar="GLOB", help="Only teachers whose title matches.")] = "*",
    store: StoreDir = Path("results"),
) -> None:
    """Write the judgements of a store as a table: document, label, answer, confidence, teacher."""
    from xmcbench.teachers.database import FILE, JudgementStore
    from xmcbench.teachers.export import writer

    write = writer(form, to_file=output is not None)
    if not (store / FILE).is_file():
        from xmcbench.errors import XMCBenchError

        raise XMCBenchError(f"{store / FILE}: no judgements; trials of a method that asks a teacher store them")
    judgements = JudgementStore(store)
    try:
        written = write(judgements.rows(teacher), output)
    finally:
        judgements.close()
    if output is not None:
        echo(f"{output}: {written:,} judgements")
