"""`xmcbench leaderboard`: what papers print, and what the records of a store say."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from xmcbench.cli.options import DataDir, StoreDir

if TYPE_CHECKING:
    from xmcbench.evaluation.analysis import Analysis
    from xmcbench.reporting import Leaderboard
    from xmcbench.trial.record import Record
    from xmcbench.trial.store import Store

Format = Literal["table", "markdown", "latex", "csv", "json", "html", "png", "pdf", "svg"]
BEST = 5  # published rows of each dataset that are shown where no dataset is asked for


def leaderboard(
    dataset: Annotated[str | None, typer.Option(help="Only this dataset.")] = None,
    source: Annotated[
        Literal["published", "measured", "imported", "all"],
        typer.Option(help="Papers' rows, trials, or predictions made elsewhere."),
    ] = "all",
    track: Annotated[Literal["supervised", "zero-shot"] | None, typer.Option(help="Only this track.")] = None,
    budget: Annotated[str | None, typer.Option(help="Measured rows under a limit: steps, or steps=1000.")] = None,
    method: Annotated[str | None, typer.Option(help="Only this method: its name, label, or a shell pattern.")] = None,
    metrics: Annotated[str | None, typer.Option(help="Figures to show, as in P@1,nDCG@5.")] = None,
    columns: Annotated[str | None, typer.Option(help="What else to show, as in batch_size,encoder.")] = None,
    sort: Annotated[str | None, typer.Option(help="The metric to rank by (P@1), or a column to order by.")] = None,
    group_by: Annotated[str | None, typer.Option(help="A table for each value of this column.")] = None,
    top: Annotated[int | None, typer.Option(min=1, help="Only so many rows of each table.")] = None,
    rows: Annotated[list[Path] | None, typer.Option(metavar="FILE", help="Published rows of one's own.")] = None,
    format: Annotated[Format, typer.Option(help="csv and json carry every digit.")] = "table",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write here; html and pictures: a folder.")
    ] = None,
    store: StoreDir = Path("results"),
    data: DataDir = Path("data"),
) -> None:
    """Rank methods: what papers print beside what was measured, datasets and settings apart."""
    from xmcbench import reporting
    from xmcbench.errors import XMCBenchError

    measured = _measured(store) if source != "published" else _Measured({}, {})
    text = format in reporting.FORMATS
    published = reporting.published_rows(*(rows or [])) if source in ("all", "published") else ()
    overview = text and not dataset
    if overview and (own := measured.datasets(store)):
        overview = False
        measured = measured.of(own)
        published = tuple(row for row in published if row.dataset in own)
    if not measured.records and not published:
        raise XMCBenchError(f"{store}: no records yet; `xmcbench run SUITE --store {store}` makes some")
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
    )
    with _uncollected():
        table = reporting.leaderboard(measured.records.values(), published, view, measured.resampled)
        if text:
            _write_text(reporting.render(table, format, _width()), output)
        else:
            _write_folder(table, measured, format, output, data)


@dataclass(frozen=True)
class _Measured:
    """Records by key, and where each lies."""

    records: dict[str, Record]
    places: dict[str, Store]

    def datasets(self, store: Path) -> set[str]:
        """Those that something in `store` was measured on."""
        return {record.trial.dataset for key, record in self.records.items() if self.places[key].root == store}

    def of(self, datasets: Container[str]) -> _Measured:
        """What was measured on `datasets`."""
        kept = {key: record for key, record in self.records.items() if record.trial.dataset in datasets}
        return _Measured(kept, self.places)

    def resampled(self, key: str, metrics: Sequence[str]) -> Mapping[str, Any]:
        """The figures on resamples that are kept of a trial."""
        return self.places[key].resampled(self.records[key], metrics)

    def analyses(self, table: Leaderboard, data: Path) -> dict[str, Analysis]:
        """What the predictions of the trials in `table` tell, where they and their dataset are at hand."""
        from xmcbench.reporting.analyses import analyses

        found: dict[str, Analysis] = {}
        shown = {key for group in table.groups for row in group.rows for key in row.keys}
        for place in {id(place): place for place in self.places.values()}.values():
            own = [record for key, record in self.records.items() if key in shown and self.places[key] is place]
            found |= analyses(place, own, data, missed=lambda line: typer.echo(f"warning: {line}", err=True))
        return found


def _measured(store: Path) -> _Measured:
    """What lies in the stores that are there: accepted submissions, and the user's own, which counts for both's."""
    from xmcbench.reporting.published import ACCEPTED

    folders = [place for place in (ACCEPTED, store) if (place / "trials").is_dir()]
    found = _Measured({}, {})
    if folders:  # numpy is spared where there is no record
        from xmcbench.trial.store import Store

        for place in map(Store, folders):
            with _uncollected():
                own = {record.key: record for record in place.records()}
            found.records.update(own)
            found.places.update(dict.fromkeys(own, place))
    return found


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without garbage collection: nothing is dropped, and to walk a million objects again and again takes seconds."""
    import gc

    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # nor does the end of the process walk them
        gc.enable()


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in text.split(",")] if text else []


def _width() -> int | None:
    """Of the terminal; None where the output goes elsewhere."""
    import shutil
    import sys

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _write_text(text: str, output: Path | None) -> None:
    if output is None:
        typer.echo(text)
        return
    from xmcbench.files.atomic import atomic_write

    with atomic_write(output) as file:
        file.write(text.encode() + b"\n")


def _write_folder(table: Leaderboard, measured: _Measured, format: str, output: Path | None, data: Path) -> None:
    """A page, or figures, in a folder."""
    analyses = measured.analyses(table, data)
    if format == "html":
        from xmcbench.reporting.page import write_page

        written = write_page(table, measured.records, output or Path("leaderboard-site"), analyses)
    else:
        from xmcbench.reporting.plots import write_figures

        written = write_figures(table, measured.records, output or Path("leaderboard-figures"), format, analyses)
    others = f" and {len(written) - 1} more files beside it" if len(written) > 1 else ""
    typer.echo(f"{written[0]}{others}" if written else "nothing to draw")
