"""`xmcbench teachers`: what is installed, and the answers that a store holds, to export or to drop."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Context, Option, Typer, confirm

from xmcbench.cli.methods import listed
from xmcbench.cli.options import StoreDir
from xmcbench.errors import XMCBenchError
from xmcbench.plugins.commands import Command
from xmcbench.plugins.hookspecs import hookimpl
from xmcbench.runs.terminal import echo

if TYPE_CHECKING:
    from xmcbench_plugins.teachers.database import JudgementStore

app = Typer(help="List teachers, export or drop their answers.", invoke_without_command=True)


@app.callback()
def _teachers(context: Context) -> None:
    """List teachers, export or drop their answers."""
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
    from xmcbench_plugins.teachers.export import writer

    write = writer(form, to_file=output is not None)
    judgements = _opened(store)
    try:
        written = write(judgements.rows(teacher), output)
    finally:
        judgements.close()
    if output is not None:
        echo(f"{output}: {written:,} judgements")


@app.command()
def drop(
    teacher: Annotated[str, Option(metavar="GLOB", help="Delete only answers of teachers whose title matches.")] = "*",
    served: Annotated[
        str, Option("--served-as", metavar="GLOB", help="Delete only answers of models that a server gave this name.")
    ] = "*",
    answer: Annotated[
        Literal["yes", "no"] | None,
        Option(help="Delete only these; texts that a teacher wrote count as yes."),
    ] = None,
    before: Annotated[
        datetime | None,
        Option(formats=["%Y-%m-%d"], metavar="DATE", help="Delete only answers from before this day."),
    ] = None,
    yes: Annotated[bool, Option("--yes", help="Do not ask for confirmation.")] = False,
    store: StoreDir = Path("results"),
) -> None:
    """Delete stored answers to which all given rules apply, so that the next trial asks again.

    Replies without an answer are never stored. Records stay as they are.
    """
    from xmcbench_plugins.teachers.database import WORDS, Rule

    kinds = {word: kind for kind, word in WORDS.items()}
    rule = Rule(teacher, served, kinds.get(answer or ""), int(before.timestamp()) if before else None)
    if rule == Rule():
        raise XMCBenchError("teachers drop: expected a rule: --teacher, --served-as, --answer or --before")
    judgements = _opened(store)
    try:
        if not (held := judgements.held(rule)):
            raise XMCBenchError(f"{judgements.path}: no answer fits; `xmcbench teachers export` shows what is there")
        for title, count in held:
            echo(f"{title}: {count:,} answers")
        if not yes:
            confirm("Delete them?", abort=True)
        echo(f"deleted {judgements.drop(rule):,} answers")
    finally:
        judgements.close()


def _opened(store: Path) -> JudgementStore:
    """The answers of a store. Raises XMCBenchError where there are none."""
    from xmcbench_plugins.teachers.database import FILE, JudgementStore

    if not (store / FILE).is_file():
        raise XMCBenchError(f"{store / FILE}: no judgements; trials of a method that asks a teacher store them")
    return JudgementStore(store)


@hookimpl
def register_commands(register: Callable[[Command], None]) -> None:
    """Register `xmcbench teachers`."""
    register(Command("teachers", app))
