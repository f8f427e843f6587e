"""`xmcbench compare`: how two trials differ, and whether the difference is significant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xmcbench.cli.options import DataDir, RunName, StoreDir, TableFormat

if TYPE_CHECKING:
    from xmcbench.data import Dataset
    from xmcbench.evaluation.comparison import ComparedMetric, Comparison
    from xmcbench.reporting import TextTable
    from xmcbench.trial.predictions import Predictions
    from xmcbench.trial.record import Record
    from xmcbench.trial.store import Store


def compare(
    first: RunName,
    second: Annotated[str, typer.Argument(metavar="RUN", help="The trial to compare with.")],
    metrics: Annotated[str | None, typer.Option(help="Metrics to compare, as in P@1,nDCG@5 (default: all).")] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Labels per query in the breakdown and in example queries.")] = 5,
    queries: Annotated[
        int, typer.Option(min=0, help="Number of example queries with the largest gain, and with the largest loss.")
    ] = 3,
    format: TableFormat = "table",
    store: StoreDir = Path("results"),
    data: DataDir = Path("data"),
) -> None:
    """Compare two trials on one test split: metrics, label bins, queries. Paired bootstrap over test queries."""
    from xmcbench.cli.find import find_trial
    from xmcbench.data import load
    from xmcbench.errors import XMCBenchError
    from xmcbench.reporting import render_tables
    from xmcbench.trial.store import Store

    place = Store(store)
    records = find_trial(place, first), find_trial(place, second)
    names = _names(records, metrics)
    try:
        dataset = load(records[0].trial.dataset, data)
    except XMCBenchError as problem:
        typer.echo(render_tables([_stored_metrics(place, records, names)], format))
        typer.echo(f"\nno breakdown and no example queries: {problem}", err=True)
        return
    predictions, comparison = _compare(place, records, dataset, names, k)
    typer.echo(render_tables([*_tables(records, comparison)], format))
    if format == "table" and queries:
        typer.echo("\n" + "\n".join(_queries(comparison, dataset, predictions, queries)))


def _names(records: tuple[Record, Record], metrics: str | None) -> list[str]:
    """The metrics to compare. Raises XMCBenchError if the trials were scored against different test targets."""
    from xmcbench.cli.find import described
    from xmcbench.errors import UnknownNameError, XMCBenchError

    if records[0].truth_hash != records[1].truth_hash:
        raise XMCBenchError(
            f"{described(records[0])} and {described(records[1])} have different test labels: nothing to compare"
        )
    known = [name for name in records[0].metrics if name in records[1].metrics]
    names = [name.strip() for name in metrics.split(",")] if metrics else known
    for name in names:
        if name not in known:
            raise UnknownNameError("metric", name, known, "in both records")
    return names


def _compare(
    store: Store, records: tuple[Record, Record], dataset: Dataset, names: Sequence[str], k: int
) -> tuple[tuple[Predictions, Predictions], Comparison]:
    from xmcbench.evaluation import find_evaluators
    from xmcbench.evaluation.analysis import partitions
    from xmcbench.evaluation.comparison import compare
    from xmcbench.evaluation.stored import stored_predictions

    predictions = stored_predictions(store, records[0], dataset), stored_predictions(store, records[1], dataset)
    evaluators = find_evaluators(names)
    return predictions, compare(predictions, dataset, names, evaluators, partitions(dataset), k)


def _stored_metrics(store: Store, records: tuple[Record, Record], names: Sequence[str]) -> TextTable:
    """The metrics alone, from their stored values on resamples."""
    from xmcbench.evaluation.comparison import compare_resampled

    resampled = store.resampled(records[0], names), store.resampled(records[1], names)
    return _metrics_table(records, compare_resampled((records[0].metrics, records[1].metrics), resampled))


def _tables(records: tuple[Record, Record], comparison: Comparison) -> Iterator[TextTable]:
    yield _metrics_table(records, comparison.metrics)
    for name, parts in comparison.breakdowns.items():
        yield _table(f"P@{comparison.k} by {name}", "labels", parts, ())


def _metrics_table(records: tuple[Record, Record], figures: Sequence[ComparedMetric]) -> TextTable:
    from xmcbench.cli.find import described

    notes = (
        f"1: {described(records[0])}",
        f"2: {described(records[1])}",
        "Per cent. Difference: 1 minus 2, with 95 % interval and two-sided p (paired bootstrap over test queries); "
        "* the interval excludes 0.",
    )
    return _table(
        f"{records[0].trial.dataset}: {records[0].trial.label} and {records[1].trial.label}", "", figures, notes
    )


def _table(title: str, kind: str, compared: Sequence[ComparedMetric], notes: tuple[str, ...]) -> TextTable:
    from xmcbench.reporting import TextTable

    rows = []
    for result in compared:
        difference = result.difference
        low, high = difference.interval
        star = "*" if difference.significant else ""
        figures = (f"{100 * result.first:.2f}", f"{100 * result.second:.2f}", f"{100 * difference.value:+.2f}{star}")
        rows.append((result.name, *figures, f"{100 * low:+.2f} to {100 * high:+.2f}", f"{difference.p:.3f}"))
    return TextTable(title, (kind or "metric", "1", "2", "difference", "95 %", "p"), tuple(rows), notes)


def _queries(
    comparison: Comparison, dataset: Dataset, predictions: tuple[Predictions, Predictions], count: int
) -> Iterator[str]:
    """The number of queries that change, and the texts and labels of those that change most."""
    change = comparison.change
    better, worse = int((change > 0).sum()), int((change < 0).sum())
    yield (
        f"{len(change):,} test queries, hits among the first {comparison.k}: 1 has more for {better:,}, "
        f"2 for {worse:,}, equal for {len(change) - better - worse:,}."
    )
    gained, lost = comparison.most_changed(count)
    for query in (*gained, *lost):
        true = dataset.test.targets[[query]].indices.tolist()
        yield f"\nquery {query}: {_line(dataset.test.texts[query])}"
        yield f"  true: {_labels(dataset, true, set())}"
        for number, (own, hits) in enumerate(zip(predictions, comparison.hits, strict=True), start=1):
            best = [label for label in own.indices[query, : comparison.k].tolist() if label >= 0]
            yield f"  {number} ({int(hits[query])}): {_labels(dataset, best, set(true))}"


def _labels(dataset: Dataset, labels: Sequence[int], true: set[int]) -> str:
    """Label texts; true labels are marked with +."""
    marked = (("+" if label in true else "") + _line(dataset.label_texts[label], 40) for label in labels)
    return "; ".join(marked) or "none"


def _line(text: str, width: int = 160) -> str:
    from textwrap import shorten

    from xmcbench.reporting.numbers import printable

    return printable(shorten(text, width, placeholder="…"))
