"""`xmcbench score`, `fuse` and `rescore`: metrics of predictions that are there already. Nothing is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from warnings import warn_explicit

from typer import Argument, Option

from xmcbench.cli.options import DataDir, Seed, StoreDir, dataset_names, names_in, trial_names
from xmcbench.errors import XMCBenchError
from xmcbench.plugins.commands import Command
from xmcbench.plugins.hookspecs import hookimpl
from xmcbench.runs.terminal import echo, patience

if TYPE_CHECKING:
    from xmcbench.api import Scored
    from xmcbench.data import Dataset
    from xmcbench.trial.record import Record
    from xmcbench.trial.store import Store


def score(
    predictions: Annotated[
        Path,
        Argument(
            help="npz (a sparse matrix, or indices and scores), npy, text of label:score, a TREC run, or Parquet."
        ),
    ],
    dataset: Annotated[
        str,
        Option(metavar="NAME", help="Dataset whose test queries the predictions answer.", autocompletion=dataset_names),
    ],
    name: Annotated[
        str | None, Option("--as", metavar="NAME", help="Name of the result (default: the name of the file).")
    ] = None,
    metrics: Annotated[str | None, Option(help="Metrics, as in P@1,nDCG@5.")] = None,
    check: Annotated[
        bool, Option("--check", help="Compute the metrics a second time with pyxclib; a difference is an error.")
    ] = False,
    store: Annotated[Path | None, Option(metavar="DIR", help="Store a record here: imported, budget unknown.")] = None,
    data: DataDir = Path("data"),
) -> None:
    """Score predictions that another program made, with 95 % intervals over test queries."""
    from xmcbench.data import load
    from xmcbench.evaluation import DEFAULT_METRICS, find_evaluators
    from xmcbench.evaluation.evaluator import repeated_metrics
    from xmcbench.reporting.text_table import render_tables
    from xmcbench.trial.store import Store
    from xmcbench_plugins.scoring.doubts import doubt_text
    from xmcbench_plugins.scoring.imported import METHOD, Origin, import_predictions, scores_table, write_unbudgeted

    names = names_in(metrics) or list(DEFAULT_METRICS)
    repeated = repeated_metrics(names) if check else []
    if check and not repeated:
        text = f"--check: nothing computes {', '.join(names)} a second time"
        raise XMCBenchError(f"{text}; docs/metrics.md says how to install pyxclib")
    names += repeated
    evaluators = find_evaluators(names, "--metrics")
    loaded = load(dataset, data_dir=data)
    imported = import_predictions(predictions, loaded, names, evaluators)
    label = name or predictions.name.partition(".")[0]
    echo(f"{label} on {dataset}, {len(imported.predictions):,} test queries, per cent")
    echo(render_tables([scores_table(imported.scores)]))
    for doubt in imported.doubts:
        echo(f"warning: {doubt_text(doubt)}", err=True)
    if store is not None:
        place, origin = Store(store), Origin(METHOD, file=predictions.name)
        record = write_unbudgeted(place, loaded, label, origin, imported.predictions, imported.scores)
        echo(f"stored as {record.key} in {place.directory(record.key)}: imported, budget unknown")


def scored(predictions: Any, truth: Dataset | str, *, metrics: Sequence[str], data: Path) -> Scored:
    """What `xmcbench.score` returns."""
    from xmcbench.api import Scored
    from xmcbench.data import Dataset, load
    from xmcbench.evaluation import DEFAULT_METRICS, check_predictions, find_evaluators
    from xmcbench.trial.predictions import Predictions
    from xmcbench_plugins.scoring.doubts import doubt_text
    from xmcbench_plugins.scoring.imported import import_predictions, score_checked, scores_table

    dataset = load(truth, data_dir=data) if isinstance(truth, str) else truth
    if not isinstance(dataset, Dataset):
        raise XMCBenchError(f"truth: found {type(truth).__name__}, expected a dataset (xb.load) or its name")
    names = list(metrics or DEFAULT_METRICS)
    evaluators = find_evaluators(names, "metrics")
    if isinstance(predictions, Predictions):
        check_predictions(predictions, *dataset.test.targets.shape, dataset.ignore_test)
        imported = score_checked(predictions, dataset, names, evaluators)
    else:
        imported = import_predictions(predictions, dataset, names, evaluators)
    texts = tuple(map(doubt_text, imported.doubts))
    for text in texts:
        warn_explicit(text, UserWarning, "xmcbench.score", 0)  # the place of the call says nothing in a notebook
    return Scored(imported.scores, scores_table(imported.scores), texts)


def fuse(
    runs: Annotated[
        list[str],
        Argument(
            metavar="RUN",
            help="Two or more trials: keys, beginnings of keys, or dataset/label.",
            autocompletion=trial_names,
        ),
    ],
    rule: Annotated[
        Literal["reciprocal-ranks", "weighted", "tree"],
        Option(help="weighted and tree are fitted on the training queries that the trials held out."),
    ] = "reciprocal-ranks",
    name: Annotated[
        str | None, Option("--as", metavar="NAME", help="Name of the result (default: the runs and the rule).")
    ] = None,
    metric: Annotated[str, Option(metavar="NAME", help="The metric by which the weights are chosen.")] = "nDCG@5",
    metrics: Annotated[str | None, Option(help="Metrics, as in P@1,nDCG@5.")] = None,
    seed: Seed = None,
    store: StoreDir = Path("results"),
    data: DataDir = Path("data"),
) -> None:
    """Fuse the predictions of finished trials on one dataset, score the ranking and store it. Trains nothing else.

    `xmcbench predict` and `serve` take the result as any other, as long as the models of its parts are there.
    """
    from xmcbench.data import load
    from xmcbench.evaluation import DEFAULT_METRICS, find_evaluators
    from xmcbench.evaluation.evaluator import score_predictions
    from xmcbench.reporting.find import find_trial
    from xmcbench.reporting.text_table import render_tables
    from xmcbench.reporting.words import chosen_on
    from xmcbench.trial.store import Store
    from xmcbench_plugins.scoring.fusing import fuse_trials, keep_model
    from xmcbench_plugins.scoring.imported import scores_table, write_unbudgeted

    names = names_in(metrics) or list(DEFAULT_METRICS)
    evaluators = find_evaluators(names, "--metrics")
    find_evaluators([metric], "--metric")
    place = Store(store)
    records = [find_trial(place, run, seed) for run in runs]
    dataset = load(records[0].trial.dataset, data_dir=data)
    predictions, origin, fusion = fuse_trials(place, records, dataset, rule, metric)
    scores = score_predictions(predictions, dataset, names, evaluators)
    label = name or f"{' + '.join(record.trial.label for record in records)} ({rule})"
    record = write_unbudgeted(place, dataset, label, origin, predictions, scores)
    record = keep_model(place, record, fusion, dataset.card.num_labels)
    echo(f"{label} on {dataset.card.name}, {len(predictions):,} test queries, per cent")
    echo(render_tables([scores_table(scores)]))
    if rule != "reciprocal-ranks":
        echo(f"fitted on: {chosen_on(origin.chosen_by)}")
    if weights := origin.settings.get("weights"):
        parts = zip(weights, records, strict=True)
        echo("weights: " + ", ".join(f"{weight:.2f} {part.trial.label}" for weight, part in parts))
    echo(f"stored as {record.key} in {place.directory(record.key)}: fused, budget unknown")


def rescore(
    trials: Annotated[
        list[str] | None, Argument(metavar="KEY_OR_GLOB", help="Trial keys or method labels (default: all).")
    ] = None,
    metrics: Annotated[str | None, Option(help="Metrics to add, as in P@1,nDCG@5.")] = None,
    store: StoreDir = Path("results"),
    data: DataDir = Path("data"),
) -> None:
    """Recompute metrics from stored predictions. Trains nothing."""
    from xmcbench.data import load
    from xmcbench.evaluation import find_evaluators
    from xmcbench.reporting.find import find_scored
    from xmcbench.trial.store import Store

    place = Store(store)
    chosen = find_scored(place, trials or ["*"])
    added = names_in(metrics)
    find_evaluators(added, "--metrics")  # a misspelt metric is an error before any record changes
    dataset = cache(lambda name: load(name, data_dir=data))
    refused = []
    for record in chosen:
        try:
            rescored = _rescored(place, record, dataset(record.trial.dataset), added)
        except XMCBenchError as problem:
            refused.append(f"{record.key} {record.trial.label}: {problem}")
            continue
        if rescored != record:
            place.write_record(rescored)
        echo(f"{record.key} {record.trial.label} on {record.trial.dataset}: {_changes(record, rescored)}")
    if refused:
        others = f" (and {len(refused) - 1} more of {len(chosen)} records)" if len(refused) > 1 else ""
        raise XMCBenchError(f"not rescored: {refused[0]}{others}")


def _rescored(store: Store, record: Record, dataset: Dataset, added: list[str]) -> Record:
    """The record with its metrics recomputed, and those in `added`."""
    from xmcbench.evaluation import DEFAULT_METRICS, find_evaluators, truth_hash
    from xmcbench.evaluation.evaluator import lower_is_better, score_predictions, stored_predictions
    from xmcbench.reporting.find import unscored
    from xmcbench.trial.budget import over_budget
    from xmcbench.trial.provenance import evaluator_digests
    from xmcbench.trial.record import METRIC_VERSION, Status
    from xmcbench.trial.store import PREDICTIONS, RESAMPLED

    predictions = stored_predictions(store, record, dataset)
    names = list(dict.fromkeys([*(record.metrics or DEFAULT_METRICS), *added]))
    evaluators = find_evaluators(names)
    scores = score_predictions(predictions, dataset, names, evaluators)
    resampled = store.write_resampled(record.key, scores.resampled, truth_hash(dataset))
    rescored: dict[str, Any] = {
        "digests": {**record.digests, PREDICTIONS: store.digest(record, PREDICTIONS), RESAMPLED: resampled},
        "metrics": scores.metrics,
        "intervals": scores.intervals,
        "metric_version": METRIC_VERSION,
        "evaluators": evaluator_digests(evaluators),
        "lower_is_better": tuple(sorted({*record.lower_is_better, *lower_is_better(evaluators)})),
    }
    if unscored(store, record):
        over = over_budget(record.trial.budget, record.spent)
        rescored |= {"failure": None, "status": Status.OVER_BUDGET if over else Status.OK}
    return record.model_copy(update=rescored)


def _changes(before: Record, after: Record) -> str:
    """The metrics that changed, as text."""
    changes = [
        f"{name} {100 * before.metrics[name]:.4f} -> {100 * figure:.4f}"
        for name, figure in after.metrics.items()
        if name in before.metrics and before.metrics[name] != figure
    ]
    changes += [f"{name} {100 * after.metrics[name]:.4f} (new)" for name in after.metrics if name not in before.metrics]
    if before.metric_version != after.metric_version:
        changes.append(f"metric version {before.metric_version} -> {after.metric_version}")
    changes += [f"{name} by its new code" for name in after.metrics if _code_changed(name, before, after)]
    return ", ".join(changes) or f"{len(after.metrics)} metrics unchanged"


def _code_changed(metric: str, before: Record, after: Record) -> bool:
    """Whether the metric's evaluator changed its code, and not its value."""
    same = before.metrics.get(metric) == after.metrics[metric]
    return same and before.definition(metric)[1] != after.definition(metric)[1]


@hookimpl
def register_commands(register: Callable[[Command], None]) -> None:
    """Register `xmcbench score`, `xmcbench fuse` and `xmcbench rescore`."""
    register(Command("score", patience("score")(score), scored))
    register(Command("fuse", patience("fuse")(fuse)))
    register(Command("rescore", patience("rescore")(rescore)))
