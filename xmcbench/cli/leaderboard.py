"""`xmcbench leaderboard`: published results beside the records of a store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from xmcbench.cli.completion import dataset_names, method_names
from xmcbench.cli.options import DataDir, StoreDir
from xmcbench.runs.terminal import echo, width

if TYPE_CHECKING:
    from xmcbench.api import Board

Format = Literal["table", "markdown", "latex", "csv", "json", "html", "every-eval-ever", "png", "pdf", "svg"]


def leaderboard(
    dataset: Annotated[str | None, typer.Option(help="Only this dataset.", autocompletion=dataset_names)] = None,
    source: Annotated[
        Literal["published", "measured", "imported", "all"],
        typer.Option(help="Which rows: of papers, of trials, or of imported predictions."),
    ] = "all",
    track: Annotated[Literal["supervised", "zero-shot"] | None, typer.Option(help="Only this track.")] = None,
    budget: Annotated[str | None, typer.Option(help="Only this limit of measured rows: steps, or steps=1000.")] = None,
    method: Annotated[
        str | None,
        typer.Option(help="Only this method: its name, label, or a shell pattern.", autocompletion=method_names),
    ] = None,
    metrics: Annotated[str | None, typer.Option(help="Metrics to show, as in P@1,nDCG@5.")] = None,
    columns: Annotated[str | None, typer.Option(help="Other columns to show, as in batch,encoder.")] = None,
    sort: Annotated[str | None, typer.Option(help="Metric to rank by, or column to order by.")] = None,
    group_by: Annotated[str | None, typer.Option(help="One table for each value of this column.")] = None,
    top: Annotated[int | None, typer.Option(min=1, help="Only the best rows of each table.")] = None,
    variants: Annotated[bool, typer.Option("--all", help="Every row: also variants, and every printed one.")] = False,
    rows: Annotated[list[Path] | None, typer.Option(metavar="FILE", help="Your own published rows.")] = None,
    format: Annotated[Format, typer.Option(help="csv and json carry every digit.")] = "table",
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Output file; for html, every-eval-ever and pictures a folder."),
    ] = None,
    bib: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the BibTeX entries of the papers.")] = None,
    store: StoreDir = Path("results"),
    data: DataDir = Path("data"),
) -> None:
    """Rank methods: published and measured rows apart, each dataset and setting on its own."""
    from xmcbench import api, reporting

    text = format in reporting.FORMATS
    board = api.leaderboard(
        dataset,
        source=source,
        track=track,
        budget=budget,
        method=method,
        metrics=_names(metrics),
        columns=_names(columns),
        sort=sort,
        group_by=group_by,
        top=top,
        variants=variants,
        whole=not text,
        paper=format == "latex",
        rows=rows or (),
        data=data,
        store=store,
    )
    if bib is not None:
        _write_text(reporting.bibliography(board.table, board.published), bib)
    if text:
        _write_text(str(board) if format == "table" else reporting.render(board.table, format, width()), output)
    else:
        _write_folder(board, format, output, data)


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in text.split(",")] if text else []


def _write_text(text: str, output: Path | None) -> None:
    if output is None:
        echo(text)
        return
    from xmcbench.files.atomic import atomic_write

    with atomic_write(output) as file:
        file.write(text.encode() + b"\n")


def _write_folder(board: Board, format: str, output: Path | None, data: Path) -> None:
    """Write a page, logs in a common schema, or figures into a folder."""
    written = _written(board, format, output, data)
    others = f" and {len(written) - 1} more files beside it" if len(written) > 1 else ""
    echo(f"{written[0]}{others}" if written else "nothing to write")


def _written(board: Board, format: str, output: Path | None, data: Path) -> Sequence[Path]:
    from xmcbench import reporting

    def warn(line: str) -> None:
        echo(f"warning: {line}", err=True)

    measured, table = board.measured, board.table
    if format == "every-eval-ever":
        from xmcbench.reporting.every_eval_ever import write_evaluations

        return write_evaluations(measured, table.keys, data, output or Path("every-eval-ever"), warn)
    analyses = measured.analyses(table, data, warn)
    if format == "html":
        from xmcbench.reporting.page import write_page

        bibtex = {row.paper: reporting.bibtex_entry(row) for row in board.published}
        claims, folder = reporting.read_claims(), output or Path("leaderboard-site")
        return write_page(table, measured.records, folder, analyses, claims, bibtex, measured.resampled)
    from xmcbench.reporting.plots import write_figures

    return write_figures(table, measured.records, output or Path("leaderboard-figures"), format, analyses)
