"""`xmcbench show`: the record of one trial."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from xmcbench.cli.options import RunName, Seed, StoreDir
from xmcbench.runs.terminal import echo, escaped

if TYPE_CHECKING:
    from xmcbench.trial.record import Record
    from xmcbench.trial.store import Store


def show(
    run: RunName,
    format: Annotated[
        Literal["text", "json", "suite"],
        typer.Option(help="json: the record; suite: a suite file that reproduces the trial."),
    ] = "text",
    seed: Seed = None,
    store: StoreDir = Path("results"),
) -> None:
    """Show a record and how to reproduce it."""
    from xmcbench.cli.find import find_record
    from xmcbench.trial.store import Store

    place = Store(store)
    record = find_record(place, run, seed)
    if format == "json":
        echo(record.model_dump_json(indent=1))
    elif format == "suite":
        from xmcbench.reporting.describe import reproducing_suite

        echo(reproducing_suite(record), nl=False)
    else:
        _print(record, place)


def _print(record: Record, store: Store) -> None:
    from rich.console import Console
    from rich.text import Text

    from xmcbench.reporting.describe import describe

    console = Console(highlight=False, soft_wrap=True)
    for section in describe(record, store.root):
        console.print(Text(section.title, style="bold"))
        width = max(len(name) for name, _ in section.rows)
        for name, value in section.rows:
            console.print(Text(f"  {name:<{width}}  ", style="dim") + Text(value))
        console.print()
    if record.failure and record.failure.log_tail:
        console.print(Text("End of the log", style="bold"))
        console.print(Text(escaped(record.failure.log_tail)))
        console.print()
    console.print(Text(escaped(f"{store.place(record.key)}: {', '.join(store.files(record.key))}"), style="dim"))
