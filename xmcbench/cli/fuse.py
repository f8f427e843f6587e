"""`xmcbench fuse`: one ranking from the predictions of several trials."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from xmcbench.cli.completion import trial_names
from xmcbench.cli.options import DataDir, Seed, StoreDir
from xmcbench.runs.terminal import echo


def fuse(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            help="Two or more trials: keys or starts of them, or dataset/label.",
            autocompletion=trial_names,
        ),
    ],
    rule: Annotated[
        Literal["reciprocal-ranks", "weighted", "tree"],
        typer.Option(help="weighted and tree are fitted on the training queries that the trials held out."),
    ] = "reciprocal-ranks",
    name: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Name of the result (default: the runs and the rule).")
    ] = None,
    metric: Annotated[str, typer.Option(metavar="NAME", help="What the weights are chosen by.")] = "nDCG@5",
    metrics: Annotated[str | None, typer.Option(help="Metrics, as in P@1,nDCG@5.")] = None,
    seed: Seed = None,
    store: StoreDir = Path("results"),
    data: DataDir = Path("data"),
) -> None:
    """Fuse the predictions of finished trials on one dataset, score the ranking and store it. Trains nothing else."""
    from xmcbench.cli.find import find_trial
    from xmcbench.data import load
    from xmcbench.evaluation import DEFAULT_METRICS, find_evaluators
    from xmcbench.evaluation.scoring import score_predictions
    from xmcbench.evaluation.unbudgeted import write_unbudgeted
    from xmcbench.reporting import scores_table
    from xmcbench.runs.fusing import fuse_trials
    from xmcbench.trial.store import Store

    names = [each.strip() for each in metrics.split(",")] if metrics else list(DEFAULT_METRICS)
    evaluators = find_evaluators(names, "--metrics")
    find_evaluators([metric], "--metric")
    place = Store(store)
    records = [find_trial(place, run, seed) for run in runs]
    dataset = load(records[0].trial.dataset, data_dir=data)
    fused = fuse_trials(place, records, dataset, rule, metric)
    scores = score_predictions(fused.predictions, dataset, names, evaluators)
    label = name or f"{' + '.join(record.trial.label for record in records)} ({rule})"
    record = write_unbudgeted(place, dataset, label, fused.origin, fused.predictions, scores, sys.argv)
    echo(f"{label} on {dataset.card.name}, {len(fused.predictions):,} test queries, per cent")
    echo(scores_table(scores))
    if rule != "reciprocal-ranks":
        echo(f"fitted on: {fused.origin.selection_split}")
    if weights := fused.origin.settings.get("weights"):
        parts = zip(weights, records, strict=True)
        echo("weights: " + ", ".join(f"{weight:.2f} {part.trial.label}" for weight, part in parts))
    echo(f"stored as {record.key} in {place.directory(record.key)}: fused, budget unknown")
