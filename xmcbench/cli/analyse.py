"""`xmcbench analyse`: break down the metrics of finished trials, from their stored predictions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from xmcbench.cli.completion import trial_names
from xmcbench.cli.options import DataDir, StoreDir, TableFormat
from xmcbench.runs.terminal import echo

if TYPE_CHECKING:
    import numpy as np

    from xmcbench.trial.store import Store


def analyse(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...", help="Key or the start of it, label, or dataset/label.", autocompletion=trial_names
        ),
    ],
    metric: Annotated[str, typer.Option(help="Metric to compare methods by over several datasets.")] = "P@1",
    k: Annotated[int, typer.Option("-k", min=1, max=100, help="Labels per query.")] = 5,
    similarity: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Also bin labels by similarity, with the label vectors of this trial."),
    ] = None,
    format: TableFormat = "table",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for CSV and JSON in full precision.")] = None,
    figures: Annotated[
        Literal["svg", "pdf", "png"] | None, typer.Option(help="Also draw figures; needs --out.")
    ] = None,
    store: StoreDir = Path("results"),
    data: DataDir = Path("data"),
) -> None:
    """Break the metrics of trials on one dataset down: label frequency, similarity, precision against recall, scores.

    Of trials on several datasets: mean rank, win rate and improvability of their methods.
    """
    from xmcbench.cli.find import find_trial, find_trials
    from xmcbench.data import load
    from xmcbench.errors import XMCBenchError
    from xmcbench.reporting.across_datasets import across_datasets_table
    from xmcbench.reporting.analyses import analyse_together, analysis_tables, write_analyses
    from xmcbench.reporting.text_table import render_tables
    from xmcbench.trial.store import Store

    if figures and out is None:
        raise XMCBenchError("--figures needs a folder: expected --out DIR")
    place = Store(store)
    named = list({record.key: record for run in runs for record in find_trials(place, run)}.values())
    if len({record.trial.dataset_hash for record in named}) > 1:
        echo(render_tables([across_datasets_table(named, metric, place.resampled)], format))
        return
    records = list({record.key: record for record in (find_trial(place, run) for run in runs)}.values())
    dataset = load(records[0].trial.dataset, data)
    vectors = _similarity(place, similarity, records[0].trial.dataset_hash) if similarity else None
    analyses = analyse_together(place, records, dataset, k, vectors)
    echo(render_tables(analysis_tables(analyses), format))
    if out is not None:
        written = write_analyses(analyses, out)
        if figures:
            from xmcbench.reporting.plots import write_analysis_figures

            written += write_analysis_figures(analyses, out, figures)
        echo("\n".join(f"wrote {path}" for path in written), err=True)


def _similarity(store: Store, run: str, dataset_hash: str) -> np.ndarray:
    """[L] mean similarity of each label to its neighbours, from the label vectors of a trial on the same data."""
    from xmcbench.cli.find import find_trial
    from xmcbench.errors import XMCBenchError
    from xmcbench.runs.saved_model import load_saved_model

    record = find_trial(store, run)
    if record.trial.dataset_hash != dataset_hash:
        raise XMCBenchError(f"--similarity {run}: ran on {record.trial.dataset}, expected the trials' own dataset")
    vectors = getattr(load_saved_model(store, record), "index_LD", None)
    if vectors is None:
        raise XMCBenchError(f"--similarity {run}: method {record.trial.method!r} has no label vectors")
    from xmcbench.engine.search.similarity import mean_similarity

    return mean_similarity(vectors)
