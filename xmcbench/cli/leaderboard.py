"""`xmcbench leaderboard`: what the records of a store say."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def leaderboard(
    dataset: Annotated[str | None, typer.Option(help="Only this dataset.")] = None,
    format: Annotated[
        Literal["table", "markdown", "latex", "csv", "json"], typer.Option(help="csv and json carry every digit.")
    ] = "table",
    metrics: Annotated[str | None, typer.Option(help="Columns, as in P@1,nDCG@5. csv and json show all.")] = None,
    sort: Annotated[str | None, typer.Option(help="The metric to rank by; P@1 by default.")] = None,
    store: Annotated[Path, typer.Option(envvar="XMCBENCH_STORE", help="Where records are kept.")] = Path("results"),
) -> None:
    """Rank the methods in a store, datasets and budgets apart."""
    from xmcbench import reporting
    from xmcbench.errors import XMCBenchError
    from xmcbench.store import Store

    records = Store(store).records()
    if not records:
        raise XMCBenchError(f"{store}: no records yet; `xmcbench run SUITE --store {store}` makes some")
    columns = [name.strip() for name in metrics.split(",")] if metrics else None
    if columns is None and format in ("csv", "json"):
        columns = list(reporting.recorded_metrics(records))
    typer.echo(reporting.render(reporting.leaderboard(records, dataset, columns, sort), format))
