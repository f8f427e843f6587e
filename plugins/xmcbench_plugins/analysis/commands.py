"""`xmcbench compare` and `analyse`: how trials differ, with what significance, and what their predictions show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from xmcbench.cli.options import DataDir, RunName, StoreDir, TableFormat, names_in, trial_names
from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.plugins.commands import Command
from xmcbench.plugins.hookspecs import hookimpl
from xmcbench.runs.terminal import echo, patience

if TYPE_CHECKING:
    import numpy as np

    from xmcbench.trial.record import Record
    from xmcbench.trial.store import Store


def compare(
    first: RunName,
    second: Annotated[str, Argument(metavar="RUN", help="The trial to compare with.", autocompletion=trial_names)],
    metrics: Annotated[str | None, Option(help="Metrics to compare, as in P@1,nDCG@5 (default: all).")] = None,
    k: Annotated[int, Option("-k", min=1, help="Labels per query in the breakdown and in example queries.")] = 5,
    queries: Annotated[
        int, Option(min=0, help="Number of example queries with the largest gain, and with the largest loss.")
    ] = 3,
    format: TableFormat = "table",
    store: StoreDir = Path("results"),
    data: DataDir = Path("data"),
) -> None:
    """Compare two trials on one test split: metrics, label bins, queries; or all seeds of two configurations."""
    from xmcbench.cli.find import described, find_seeds
    from xmcbench.data import load
    from xmcbench.evaluation import find_evaluators
    from xmcbench.evaluation.analysis import partitions
    from xmcbench.evaluation.comparison import compare as compared
    from xmcbench.evaluation.comparison import compare_stored
    from xmcbench.evaluation.evaluator import stored_predictions
    from xmcbench.reporting.text_table import render_tables
    from xmcbench.trial.store import Store
    from xmcbench_plugins.analysis.tables import changed_queries, compared_table, comparison_table

    place = Store(store)
    sides = find_seeds(place, first), find_seeds(place, second)
    records = sides[0][0], sides[1][0]
    called = [described(record) for record in records]
    names = _names(records, called, metrics)
    several, missing = max(map(len, sides)) > 1, ""
    try:
        dataset = None if several else load(records[0].trial.dataset, data)
    except XMCBenchError as problem:
        dataset, missing = None, f"\nno breakdown and no example queries: {problem}"
    if dataset is None:  # the metrics alone, from their stored values on resamples, over all seeds
        echo(render_tables([comparison_table(sides, called, compare_stored(place, *sides, names))], format))
        if missing:
            echo(missing, err=True)
        return
    predictions = stored_predictions(place, records[0], dataset), stored_predictions(place, records[1], dataset)
    comparison = compared(predictions, dataset, names, find_evaluators(names), partitions(dataset), k)
    parts = comparison.breakdowns.items()
    breakdowns = [compared_table(f"P@{k} by {name}", "labels", part) for name, part in parts]
    echo(render_tables([comparison_table(sides, called, comparison.metrics), *breakdowns], format))
    if format == "table" and queries:
        echo("\n" + "\n".join(changed_queries(comparison, dataset, predictions, queries)))


def _names(records: tuple[Record, Record], called: Sequence[str], metrics: str | None) -> list[str]:
    """The metrics to compare. Raises XMCBenchError if the trials were scored against different test targets."""
    if records[0].truth_hash != records[1].truth_hash:
        raise XMCBenchError(f"{' and '.join(called)} have different test labels: nothing to compare")
    known = [name for name in records[0].metrics if name in records[1].metrics]
    names = names_in(metrics) or known
    if unknown := [name for name in names if name not in known]:
        raise UnknownNameError("metric", unknown[0], known, "in both records")
    other = [name for name in names if records[0].definition(name) != records[1].definition(name)]
    if other:
        raise XMCBenchError(
            f"{' and '.join(called)} have {other[0]} by different definitions: `xmcbench rescore` computes it again"
        )
    return names


def analyse(
    runs: Annotated[
        list[str],
        Argument(metavar="RUN...", help="Key or the start of it, label, or dataset/label.", autocompletion=trial_names),
    ],
    metric: Annotated[str, Option(help="Metric to compare methods by over several datasets.")] = "P@1",
    k: Annotated[int, Option("-k", min=1, max=100, help="Labels per query.")] = 5,
    similarity: Annotated[
        str | None, Option(metavar="RUN", help="Also bin labels by similarity, with the label vectors of this trial.")
    ] = None,
    format: TableFormat = "table",
    out: Annotated[Path | None, Option("--out", "-o", help="Folder for analysis.json, in full precision.")] = None,
    figures: Annotated[Literal["svg", "pdf", "png"] | None, Option(help="Also draw figures; needs --out.")] = None,
    store: StoreDir = Path("results"),
    data: DataDir = Path("data"),
) -> None:
    """Break the metrics of trials on one dataset down: label frequency, similarity, precision against recall, scores.

    Of trials on several datasets: mean rank, win rate and improvability of their methods.
    """
    from xmcbench.cli.find import find_trial, find_trials
    from xmcbench.data import load
    from xmcbench.reporting.processor_time import processor_table
    from xmcbench.reporting.text_table import render_tables
    from xmcbench.runs.saved_model import load_calibration
    from xmcbench.trial.store import Store
    from xmcbench_plugins.analysis.tables import (
        across_datasets_table,
        analyse_together,
        analysis_tables,
        names,
        write_analyses,
    )

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
    calibrations = {record.key: load_calibration(place, record) for record in records}
    analyses = analyse_together(place, records, dataset, k, vectors, calibrations)
    seconds = processor_table(names(records).items(), place.records())
    echo(render_tables([*analysis_tables(analyses), *([seconds] if seconds else [])], format))
    if out is not None:
        written = [write_analyses(analyses, out)]
        if figures:
            from xmcbench_plugins.analysis.figures import write_analysis_figures

            written += write_analysis_figures(analyses, out, figures)
        echo("\n".join(f"wrote {path}" for path in written), err=True)


def _similarity(store: Store, run: str, dataset_hash: str) -> np.ndarray:
    """[L] mean similarity of each label to its neighbours, from the label vectors of a trial on the same data."""
    from xmcbench.cli.find import find_trial
    from xmcbench.runs.saved_model import load_saved_model

    record = find_trial(store, run)
    if record.trial.dataset_hash != dataset_hash:
        raise XMCBenchError(f"--similarity {run}: ran on {record.trial.dataset}, expected the trials' own dataset")
    vectors = getattr(load_saved_model(store, record), "index_LD", None)
    if vectors is None:
        raise XMCBenchError(f"--similarity {run}: method {record.trial.method!r} has no label vectors")
    from xmcbench.engine.search.index import mean_similarity

    return mean_similarity(vectors)


@hookimpl
def register_commands(register: Callable[[Command], None]) -> None:
    """Register `xmcbench compare` and `xmcbench analyse`."""
    for command in (compare, analyse):
        register(Command(command.__name__, patience(command.__name__)(command)))
