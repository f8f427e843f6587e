"""`xmcbench compare`, `analyse` and `tables`: how trials differ, what their predictions show, the cells of a suite."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from xmcbench.cli.options import (
    DataDir,
    DatasetNames,
    EncoderName,
    RunName,
    Sets,
    StoreDir,
    SuitePath,
    TableFormat,
    names_in,
    trial_names,
)
from xmcbench.errors import XMCBenchError
from xmcbench.plugins.commands import Command
from xmcbench.plugins.hookspecs import hookimpl
from xmcbench.runs.terminal import echo, patience

if TYPE_CHECKING:
    import numpy as np

    from xmcbench.api import Compared
    from xmcbench.suite.suite import Suite
    from xmcbench.trial.record import Record
    from xmcbench.trial.store import Store
    from xmcbench.trial.trial import Trial


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
    from xmcbench.reporting.text_table import render_tables

    found = compared(first, second, metrics=names_in(metrics), k=k, queries=queries, store=store, data=data)
    echo(found if format == "table" else render_tables(found.tables, format))
    if found.missing:
        echo(f"\n{found.missing}", err=True)


def compared(
    first: str, second: str, *, metrics: Sequence[str], k: int, queries: int, data: Path, store: Path
) -> Compared:
    """What `xmcbench.compare` returns, and the command prints."""
    from xmcbench.api import Compared
    from xmcbench.data import load
    from xmcbench.evaluation import find_evaluators
    from xmcbench.evaluation.analysis import partitions
    from xmcbench.evaluation.evaluator import stored_predictions
    from xmcbench.reporting.find import described, find_seeds
    from xmcbench.trial.store import Store
    from xmcbench_plugins.analysis import comparing
    from xmcbench_plugins.analysis.compared import (
        changed_queries,
        comparable_metrics,
        compared_table,
        comparison_table,
        verdict,
    )

    place = Store(store)
    sides = find_seeds(place, first), find_seeds(place, second)
    records = sides[0][0], sides[1][0]
    called = [described(record) for record in records]
    names = comparable_metrics(records, called, metrics)
    several, missing = max(map(len, sides)) > 1, ""
    try:
        dataset = None if several else load(records[0].trial.dataset, data)
    except XMCBenchError as problem:
        dataset, missing = None, f"no breakdown and no example queries: {problem}"
    if dataset is None:  # the metrics alone, from their stored values on resamples, over all seeds
        found = comparing.compare_stored(place, *sides, names)
        answer = verdict([record.trial.label for record in records], found)
        return Compared(tuple(found), (comparison_table(sides, called, found),), answer, missing=missing)
    predictions = stored_predictions(place, records[0], dataset), stored_predictions(place, records[1], dataset)
    both = comparing.compare(predictions, dataset, names, find_evaluators(names), partitions(dataset), k)
    parts = [compared_table(f"P@{k} by {name}", "labels", part) for name, part in both.breakdowns.items()]
    examples = tuple(changed_queries(both, dataset, predictions, queries)) if queries else ()
    tables = (comparison_table(sides, called, both.metrics), *parts)
    answer = verdict([record.trial.label for record in records], both.metrics)
    return Compared(tuple(both.metrics), tables, answer, examples)


def tables(
    suite: SuitePath,
    format: TableFormat = "table",
    sets: Sets = None,
    datasets: DatasetNames = None,
    encoder: EncoderName = None,
    data: DataDir = Path("data"),
    store: StoreDir = Path("results"),
    to: Annotated[
        list[str] | None,
        Option(
            metavar="METRIC=VALUE", help="Also show the cost of reaching a value on held-out queries, as in P@1=50."
        ),
    ] = None,
) -> None:
    """Print the tables of a suite: its cells, quality against cost, and ranks. Runs nothing."""
    from xmcbench.runs.runner import Runner, Settings
    from xmcbench.runs.tuning import stored_samples, tuned_trials

    settings = Settings(suite=suite, data=data, store=store, sets=sets or (), datasets=datasets or (), encoder=encoder)
    runner = Runner(settings)
    tune = runner.suite.tune
    plan = runner.plan_trials(tuned_trials(runner, stored_samples)) if tune else runner.plan()
    outcomes = [(planned.trial, planned.record) for planned in plan]
    echo(of_suite(runner.suite, outcomes, runner.store, format, to or ()))


def of_suite(
    suite: Suite,
    outcomes: Iterable[tuple[Trial, Record | None]],
    store: Store,
    format: str = "table",
    targets: Sequence[str] = (),
) -> str:
    """The tables of a suite: its own, quality against cost, ranks, `targets` as P@1=50, equal budgets."""
    from xmcbench.reporting.published import published_rows
    from xmcbench.reporting.text_table import render_tables
    from xmcbench.suite.tables import Target, ranking_metric
    from xmcbench.trial.method import build_method
    from xmcbench_plugins.analysis import suite_tables

    outcomes = list(outcomes)
    entries = {variant.label: variant.entry for variant in suite.variants}
    found = suite_tables.sweep_cells(outcomes, entries, lambda trial: build_method(trial).config.unused())
    published = published_rows() if any(shape.beside for shape in suite.tables.values()) else ()
    grids = [suite_tables.cell_table(title, shape, found, published) for title, shape in suite.tables.items()]
    metric = ranking_metric(suite.metrics)
    grids += [suite_tables.cost_table(found, metric), *suite_tables.rank_tables(found, metric, store.resampled)]
    for text in targets:
        if (target := Target.parse(f"to {text}")) is None:
            raise XMCBenchError(f"--to {text}: expected a metric and its value in per cent, as in P@1=50")
        grids.append(suite_tables.time_to_quality_table(found, target))
    text = render_tables(grids, format)
    records = [record for _, record in outcomes if record]
    checks = suite_tables.check_equal_budgets(records, suite.equal) if suite.equal else []
    return text if format == "csv" else "\n\n".join([text, *checks])


def analyse(
    runs: Annotated[
        list[str],
        Argument(metavar="RUN...", help="Key or the start of it, label, or dataset/label.", autocompletion=trial_names),
    ],
    metric: Annotated[
        str | None,
        Option(help="Metric to compare methods by over several datasets (default: as tables rank)."),
    ] = None,
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
    from xmcbench.data import load
    from xmcbench.reporting.find import find_trial, find_trials
    from xmcbench.reporting.text_table import render_tables
    from xmcbench.runs.saved_model import load_calibration
    from xmcbench.suite.tables import RANKS
    from xmcbench.trial.store import Store
    from xmcbench_plugins.analysis.processor_time import processor_table
    from xmcbench_plugins.analysis.tables import (
        across_datasets_table,
        analyse_together,
        analysis_tables,
        names,
        near_table,
        write_analyses,
    )

    if figures and out is None:
        raise XMCBenchError("--figures needs a folder: expected --out DIR")
    place = Store(store)
    named = list({record.key: record for run in runs for record in find_trials(place, run)}.values())
    if len({record.trial.dataset_hash for record in named}) > 1:
        echo(render_tables([across_datasets_table(named, metric or RANKS, place.resampled)], format))
        return
    records = list({record.key: record for record in (find_trial(place, run) for run in runs)}.values())
    dataset = load(records[0].trial.dataset, data)
    vectors = _similarity(place, similarity, records[0].trial.dataset_hash) if similarity else None
    calibrations = {record.key: load_calibration(place, record) for record in records}
    analyses = analyse_together(place, records, dataset, k, vectors, calibrations)
    seconds = processor_table(names(records).items(), place.records())
    near = near_table(place, records, dataset)
    more = [table for table in (near, seconds) if table is not None]
    echo(render_tables([*analysis_tables(analyses), *more], format))
    if out is not None:
        written = [write_analyses(analyses, out)]
        if figures:
            from xmcbench_plugins.analysis.figures import write_analysis_figures

            written += write_analysis_figures(analyses, out, figures)
        echo("\n".join(f"wrote {path}" for path in written), err=True)


def _similarity(store: Store, run: str, dataset_hash: str) -> np.ndarray:
    """[L] mean similarity of each label to its neighbours, from the label vectors of a trial on the same data."""
    from xmcbench.reporting.find import find_trial
    from xmcbench.runs.saved_model import load_saved_model

    record = find_trial(store, run)
    if record.trial.dataset_hash != dataset_hash:
        raise XMCBenchError(f"--similarity {run}: ran on {record.trial.dataset}, expected the trials' own dataset")
    vectors = getattr(load_saved_model(store, record), "index_LD", None)
    if vectors is None:
        raise XMCBenchError(f"--similarity {run}: method {record.trial.method!r} has no label vectors")
    from xmcbench_plugins.analysis.similarity import mean_similarity

    return mean_similarity(vectors)


@hookimpl
def register_commands(register: Callable[[Command], None]) -> None:
    """Register `xmcbench compare`, `xmcbench analyse` and `xmcbench tables`."""
    register(Command("compare", patience("compare")(compare), compared))
    register(Command("analyse", patience("analyse")(analyse)))
    register(Command("tables", patience("tables")(tables), of_suite))
