"""`xmcbench leaderboard` and `show`: the records of a store ranked, and one by one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Option

from xmcbench.cli.options import (
    DataDir,
    RunName,
    Seed,
    StoreDir,
    dataset_names,
    format_names,
    method_names,
    names_in,
)
from xmcbench.runs.terminal import echo, escaped, width

if TYPE_CHECKING:
    from xmcbench.api import Board
    from xmcbench.reporting.formats import Format


def leaderboard(
    dataset: Annotated[str | None, Option(help="Show only this dataset.", autocompletion=dataset_names)] = None,
    source: Annotated[
        Literal["published", "measured", "imported", "all"],
        Option(help="Show rows of papers, of trials, or of imported predictions."),
    ] = "all",
    track: Annotated[Literal["supervised", "zero-shot"] | None, Option(help="Show only this track.")] = None,
    budget: Annotated[
        str | None, Option(help="Tables of measured rows with this budget: steps, or steps=1000; or all budgets: all.")
    ] = None,
    method: Annotated[
        str | None,
        Option(help="Show only this method: its name, label, or a pattern.", autocompletion=method_names),
    ] = None,
    metrics: Annotated[str | None, Option(help="Metrics to show, as in P@1,nDCG@5.")] = None,
    columns: Annotated[str | None, Option(help="Other columns to show, as in batch,encoder.")] = None,
    sort: Annotated[str | None, Option(help="Metric to rank by, or column to order by.")] = None,
    group_by: Annotated[str | None, Option(help="One table for each value of this column.")] = None,
    top: Annotated[int | None, Option(min=1, help="Show only the best rows of each table.")] = None,
    variants: Annotated[bool, Option("--all", help="Show every row, with variants and all printed ones.")] = False,
    notes: Annotated[
        bool, Option("--notes", help="Also explain how to read the tables, and what they leave out.")
    ] = False,
    claims: Annotated[
        bool, Option("--claims", help="Also show what was seen of the papers' claims about the rows.")
    ] = False,
    rows: Annotated[
        list[Path] | None, Option(metavar="FILE", help="A file or folder with your own published rows.")
    ] = None,
    format: Annotated[
        str,
        Option(
            metavar="NAME",
            help="table, markdown, latex, csv, json; html, every-eval-ever; png, pdf, svg; or one of a plugin.",
            autocompletion=format_names,
        ),
    ] = "table",
    output: Annotated[
        Path | None, Option("-o", "--output", help="Output file; for html, every-eval-ever and pictures a folder.")
    ] = None,
    bib: Annotated[Path | None, Option(metavar="FILE", help="Write the BibTeX entries of the papers.")] = None,
    store: StoreDir = Path("results"),
    data: DataDir = Path("data"),
) -> None:
    """Rank methods: published and measured rows apart, each dataset and setting on its own."""
    from xmcbench import api
    from xmcbench.plugins.registry import registry
    from xmcbench.reporting.leaderboard_text import FORMATS, bibliography, render

    text = format in FORMATS
    if not text:
        registry().thing("format", format)  # an unknown name is an error before anything is read
    board = api.leaderboard(
        dataset,
        source=source,
        track=track,
        budget=budget,
        method=method,
        metrics=names_in(metrics),
        columns=names_in(columns),
        sort=sort,
        group_by=group_by,
        top=top,
        variants=variants,
        whole=not text,
        paper=format == "latex",
        notes=notes,
        claims=claims,
        rows=rows or (),
        data=data,
        store=store,
    )
    if bib is not None:
        _write_text(bibliography(board.table, board.published), bib)
    if text:
        _write_text(str(board) if format == "table" else render(board.table, format, width()), output)
    elif isinstance(written := _written(board, format, output, data, variants), str):
        _write_text(written, output)
    else:
        others = f" and {len(written) - 1} more files beside it" if len(written) > 1 else ""
        echo(f"{written[0]}{others}" if written else "nothing to write")


def _write_text(text: str, output: Path | None) -> None:
    if output is None:
        echo(text)
        return
    from xmcbench.files.atomic import atomic_write

    with atomic_write(output) as file:
        file.write(text.encode() + b"\n")


def _written(board: Board, format: str, output: Path | None, data: Path, every_row: bool) -> str | Sequence[Path]:
    """The text, or the files, of a format that is written by a plugin or into a folder."""
    from xmcbench.plugins.registry import calling, registry
    from xmcbench.reporting.formats import Shown, check_written

    def warn(line: str) -> None:
        echo(f"warning: {line}", err=True)

    writer: Format = registry().thing("format", format)
    shown = Shown(board.table, board.measured, board.published, data, warn, every_row)
    with calling("format", format):
        return check_written(writer.write(shown, output))


def show(
    run: RunName,
    format: Annotated[
        Literal["text", "json", "suite"],
        Option(help="json: the record; suite: a suite file that reproduces the trial."),
    ] = "text",
    everything: Annotated[bool, Option("--all", help="Show all settings, counts, digests and provenance.")] = False,
    seed: Seed = None,
    store: StoreDir = Path("results"),
) -> None:
    """Show a record and how to reproduce it."""
    from xmcbench import api
    from xmcbench.reporting.describe import reproducing_suite
    from xmcbench.trial.store import Store

    place, description = Store(store), api.show(run, everything=everything, seed=seed, store=store)
    record = description.record
    if format == "json":
        return echo(record.model_dump_json(indent=1))
    if format == "suite":
        return echo(reproducing_suite(record), nl=False)
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for title, rows in description.sections.items():
        console.print(Text(title, style="bold"))
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            console.print(Text(f"  {name:<{width}}  ", style="dim") + Text(value))
        console.print()
    if record.failure and record.failure.log_tail:
        console.print(Text("End of the log", style="bold"))
        console.print(Text(escaped(record.failure.log_tail)))
        console.print()
    console.print(Text(escaped(f"{place.place(record.key)}: {', '.join(place.files(record.key))}"), style="dim"))
