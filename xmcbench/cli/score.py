"""`xmcbench score`: metrics of predictions that another program made."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from xmcbench.cli.completion import dataset_names
from xmcbench.cli.options import DataDir
from xmcbench.runs.terminal import echo


def score(
    predictions: Annotated[
        Path, typer.Argument(help="npz (CSR, or indices and scores), sparse text, label:score lines, or Parquet.")
    ],
    dataset: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Dataset whose test queries the predictions answer.", autocompletion=dataset_names
        ),
    ],
    name: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Name of the result (default: the name of the file).")
    ] = None,
    metrics: Annotated[str | None, typer.Option(help="Metrics, as in P@1,nDCG@5.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compute the metrics a second time with pyxclib; a difference is an error.")
    ] = False,
    store: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Store a record here: imported, budget unknown.")
    ] = None,
    data: DataDir = Path("data"),
) -> None:
    """Score predictions that another program made, with 95 % intervals over test queries."""
    from xmcbench.data import load
    from xmcbench.evaluation import DEFAULT_METRICS, find_evaluators
    from xmcbench.evaluation.imported.record import import_predictions
    from xmcbench.reporting import scores_table
    from xmcbench.trial.store import Store

    names = [metric.strip() for metric in metrics.split(",")] if metrics else list(DEFAULT_METRICS)
    if check:
        names += _repeated(names)
    evaluators = find_evaluators(names, "--metrics")
    loaded = load(dataset, data_dir=data)
    imported = import_predictions(predictions, loaded, names, evaluators)
    label = name or predictions.name.partition(".")[0]
    echo(f"{label} on {dataset}, {len(imported.predictions):,} test queries, per cent")
    echo(scores_table(imported.scores))
    for warning in imported.warnings:
        echo(f"warning: {warning}", err=True)
    if store is not None:
        place = Store(store)
        record = imported.store(place, loaded, label, sys.argv)
        echo(f"stored as {record.key} in {place.directory(record.key)}: imported, budget unknown")


def _repeated(names: list[str]) -> list[str]:
    """The metrics that compute `names` a second time. Raises XMCBenchError where none does."""
    from xmcbench.errors import XMCBenchError
    from xmcbench.evaluation.evaluator import repeated_metrics

    repeated = repeated_metrics(names)
    if not repeated:
        raise XMCBenchError(
            f"--check: nothing computes {', '.join(names)} a second time; docs/metrics.md says how to install pyxclib"
        )
    return repeated
