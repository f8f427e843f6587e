"""`xmcbench leaderboard`: published results beside the records of a store."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from xmcbench.cli.options import DataDir, StoreDir
from xmcbench.cli.terminal import echo

if TYPE_CHECKING:
    from xmcbench.evaluation.analysis import Analysis
    from xmcbench.reporting import Leaderboard
    from xmcbench.reporting.claims import ClaimFile
    from xmcbench.reporting.published import PublishedRow
    from xmcbench.trial.record import Record
    from xmcbench.trial.store import Store

Format = Literal["table", "markdown", "latex", "csv", "json", "html", "png", "pdf", "svg"]
BEST = 5  # published rows of each dataset that are shown where no dataset and no method is chosen


def leaderboard(
    dataset: Annotated[str | None, typer.Option(help="Only this dataset.")] = None,
    source: Annotated[
        Literal["published", "measured", "imported", "all"],
        typer.Option(help="Which rows: of papers, of trials, or of imported predictions."),
    ] = "all",
    track: Annotated[Literal["supervised", "zero-shot"] | None, typer.Option(help="Only this track.")] = None,
    budget: Annotated[str | None, typer.Option(help="Only this limit of measured rows: steps, or steps=1000.")] = None,
    method: Annotated[str | None, typer.Option(help="Only this method: its name, label, or a shell pattern.")] = None,
    metrics: Annotated[str | None, typer.Option(help="Metrics to show, as in P@1,nDCG@5.")] = None,
    columns: Annotated[str | None, typer.Option(help="Other columns to show, as in batch,encoder.")] = None,
    sort: Annotated[str | None, typer.Option(help="Metric to rank by, or column to order by.")] = None,
    group_by: Annotated[str | None, typer.Option(help="One table for each value of this column.")] = None,
    top: Annotated[int | None, typer.Option(min=1, help="Only the best rows of each table.")] = None,
    variants: Annotated[bool, typer.Option("--all", help="Every printed row, not one per method and kind.")] = False,
    rows: Annotated[list[Path] | None, typer.Option(metavar="FILE", help="Your own published rows.")] = None,
    format: Annotated[Format, typer.Option(help="csv and json carry every digit.")] = "table",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Output file; for html and pictures a folder.")
    ] = None,
    bib: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the BibTeX entries of the papers.")] = None,
    store: StoreDir = Path("results"),
    data: DataDir = Path("data"),
) -> None:
    """Rank methods: published and measured rows apart, each dataset and setting on its own."""
    from xmcbench import reporting

    text = format in reporting.FORMATS
    measured, published = _rows(store, source, rows or [])
    claims = reporting.read_claims()
    shown = () if format == "latex" else claims.claims  # a paper has its own
    overview = text and not dataset and not method and not variants
    if overview and (own := measured.datasets(store)):
        overview = False
        measured = measured.of(own)
        published = tuple(row for row in published if row.dataset in own)
    view = reporting.View(
        dataset=dataset,
        source=source,
        track=track,
        budget=budget,
        method=method,
        metrics=_names(metrics),
        columns=_names(columns),
        sort=sort,
        group_by=group_by,
        top=BEST if top is None and overview else top,
        variants=variants,
        paper=format == "latex",
    )
    with _uncollected():
        records, known = measured.records.values(), measured.recomputable(data)
        board = reporting.leaderboard(records, published, view, measured.resampled, shown, known)
        if bib is not None:
            _write_text(reporting.bibliography(board, published), bib)
        if text:
            _write_text(reporting.render(board, format, _width()), output)
        else:
            _write_folder(board, measured, format, output, data, published, claims)


def _rows(store: Path, source: str, files: list[Path]) -> tuple[_Measured, tuple[PublishedRow, ...]]:
    """The measured and the published rows of these sources. Raises XMCBenchError if there are none."""
    from xmcbench.errors import XMCBenchError
    from xmcbench.reporting import published_rows

    measured = _measured(store) if source != "published" else _Measured({}, {})
    published = tuple(published_rows(*files)) if source in ("all", "published") else ()
    if not measured.records and not published:
        raise XMCBenchError(f"{store}: no records yet; `xmcbench run SUITE --store {store}` makes some")
    return measured, published


@dataclass(frozen=True)
class _Measured:
    """Records by key, and where each lies."""

    records: dict[str, Record]
    places: dict[str, Store]

    def datasets(self, store: Path) -> set[str]:
        """The datasets of the records in `store`."""
        return {record.trial.dataset for key, record in self.records.items() if self.places[key].root == store}

    def of(self, datasets: Container[str]) -> _Measured:
        """The records on `datasets`."""
        records = {key: record for key, record in self.records.items() if record.trial.dataset in datasets}
        return _Measured(records, self.places)

    def resampled(self, key: str, metrics: Sequence[str]) -> Mapping[str, Any]:
        """The metrics of a trial on resamples of the test queries."""
        return self.places[key].resampled(self.records[key], metrics)

    def recomputable(self, data: Path) -> Callable[[Record], bool]:
        """Whether the predictions of a trial are here, and its dataset is known."""
        from functools import cache

        from xmcbench.errors import XMCBenchError

        @cache
        def is_known(dataset: str) -> bool:
            from xmcbench.data import find_source  # imports numpy, which papers' results do not need

            try:
                find_source(dataset, data)
            except XMCBenchError:
                return False
            return True

        return lambda record: is_known(record.trial.dataset) and self.places[record.key].has_predictions(record.key)

    def analyses(self, board: Leaderboard, data: Path) -> dict[str, Analysis]:
        """The analyses of the trials shown whose predictions and dataset are at hand."""
        from xmcbench.reporting.analyses import analyses

        results: dict[str, Analysis] = {}
        shown = {key for group in board.groups for row in group.rows for key in row.keys}
        for place in {id(place): place for place in self.places.values()}.values():
            own = [record for key, record in self.records.items() if key in shown and self.places[key] is place]
            results |= analyses(place, own, data, on_problem=lambda line: echo(f"warning: {line}", err=True))
        return results


def _measured(store: Path) -> _Measured:
    """The records of accepted submissions and of the user's store; of a trial in both, the user's record."""
    from xmcbench.reporting.published import ACCEPTED

    folders = [place for place in (ACCEPTED, store) if (place / "trials").exists() or place.is_file()]
    measured = _Measured({}, {})
    if folders:  # without records numpy need not be imported
        from xmcbench.trial.store import Store

        for place in map(Store, folders):
            with _uncollected():
                own = {record.key: record for record in place.records()}
            measured.records.update(own)
            measured.places.update(dict.fromkeys(own, place))
    return measured


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without garbage collection, which would walk a million live objects several times."""
    import gc

    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # so that the end of the process does not walk them either
        gc.enable()


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in text.split(",")] if text else []


def _width() -> int | None:
    """The width of the terminal in characters; None if the output is no terminal."""
    import os
    import shutil
    import sys

    chosen = "COLUMNS" in os.environ
    return shutil.get_terminal_size().columns if chosen or sys.stdout.isatty() else None


def _write_text(text: str, output: Path | None) -> None:
    if output is None:
        echo(text)
        return
    from xmcbench.files.atomic import atomic_write

    with atomic_write(output) as file:
        file.write(text.encode() + b"\n")


def _write_folder(
    board: Leaderboard,
    measured: _Measured,
    format: str,
    output: Path | None,
    data: Path,
    published: Sequence[PublishedRow],
    claims: ClaimFile,
) -> None:
    """Write a page or figures into a folder."""
    analyses = measured.analyses(board, data)
    if format == "html":
        from xmcbench.reporting import bibtex_entry
        from xmcbench.reporting.page import write_page

        bibtex = {row.paper: bibtex_entry(row) for row in published}
        folder = output or Path("leaderboard-site")
        written = write_page(board, measured.records, folder, analyses, claims, bibtex)
    else:
        from xmcbench.reporting.plots import write_figures

        written = write_figures(board, measured.records, output or Path("leaderboard-figures"), format, analyses)
    others = f" and {len(written) - 1} more files beside it" if len(written) > 1 else ""
    echo(f"{written[0]}{others}" if written else "nothing to draw")
