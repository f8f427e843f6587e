"""`xmcbench datasets`: list, prepare and show datasets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xmcbench.cli.datasets_import import export, fetch, import_dataset, remove_dataset
from xmcbench.cli.options import DatasetName
from xmcbench.runs.terminal import echo, listing, patience

if TYPE_CHECKING:
    from xmcbench.data.dataset import DatasetCard
    from xmcbench.data.extent import Extent
    from xmcbench.data.source import Source
    from xmcbench.data.statistics import Spread, Statistics

SHOWN_LABELS, SHOWN_CHARACTERS = 5, 120  # of a sample row

app = typer.Typer(help="List, prepare or show datasets.", invoke_without_command=True)

DataDir = Annotated[Path | None, typer.Option("--data", help="Folder of datasets. [default: $XMCBENCH_DATA or data]")]


app.command("import")(patience("import")(import_dataset))
app.command("remove")(remove_dataset)
app.command()(fetch)
app.command()(patience("export")(export))


@app.callback()
def main(context: typer.Context, data: DataDir = None) -> None:
    """List, prepare or show datasets."""
    context.obj = data
    if context.invoked_subcommand is None:
        list_datasets(context, data)


@app.command("list")
def list_datasets(context: typer.Context, data: DataDir = None) -> None:
    """List every dataset: whether its files are on disk, sizes, A and B, licence and source."""
    from xmcbench.data.prepared import default_data_dir
    from xmcbench.data.source import Family, own_names, own_source
    from xmcbench.plugins.registry import registry

    data_dir = data or context.obj or default_data_dir()
    things = [registered.thing for registered in registry().all("dataset")]
    families = [thing for thing in things if isinstance(thing, Family)]
    sources = [thing for thing in things if not isinstance(thing, Family)]
    known = {source.name for source in sources}
    sources += [own_source(data_dir / name) for name in own_names(data_dir) if name not in known]
    header = ["dataset", "here", "train", "test", "labels", "A", "B", "licence", "source"]
    rows = [_row(source, data_dir) for source in sources]
    echo(listing(rows, header, maxcolwidths=[None] * 7 + [20, 60]))
    echo()
    echo(listing([[family.name, family.summary] for family in families], ["any size", "what it is"]))
    echo(f"\nData directory: {data_dir}. `xmcbench datasets show NAME` shows details and where to get the files.")


@app.command()
def prepare(
    context: typer.Context,
    name: DatasetName,
    encoder: Annotated[
        str | None, typer.Option(help="Also tokenise for this encoder: tiny, or a model name as in a suite.")
    ] = None,
    data: DataDir = None,
) -> None:
    """Read a dataset into its prepared copy, and tokenise it, before a trial has to.

    Parts that are there already are checked and used. A killed or failed run continues with the part it was at.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from xmcbench.data.prepared import default_cache_dir, default_data_dir, find_source, load, prepared_directory

    data_dir, cache = data or context.obj or default_data_dir(), default_cache_dir()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as bars:
        tasks = {"copy": bars.add_task("prepared copy", total=1)}

        def progress(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done)

        dataset = load(name, data_dir)
        bars.update(tasks["copy"], completed=1)
        directory = prepared_directory(find_source(name, data_dir), data_dir, cache)
        if encoder is not None:
            from xmcbench.engine.encoders.build import prepare_tokens
            from xmcbench.files.atomic import atomic_write

            lengths = prepare_tokens(dataset, encoder, cache, progress)
            content = {kind: spread.model_dump() for kind, spread in lengths.items()}
            with atomic_write(_token_lengths(directory) / f"{encoder.replace('/', '--')}.json") as file:
                file.write(json.dumps(content, indent=1).encode())
    card = dataset.card
    echo(f"{name}: {card.num_train:,} training queries, {card.num_test:,} test queries, {card.num_labels:,} labels")
    echo(f"prepared copy: {directory}")


@app.command()
@patience("show")
def show(
    context: typer.Context,
    name: DatasetName,
    data: DataDir = None,
    samples: Annotated[int, typer.Option(help="Training queries to show with their labels.", min=0)] = 3,
    figures: Annotated[Path | None, typer.Option(help="Folder for a figure of the label distribution.")] = None,
) -> None:
    """Show sizes, statistics, sample rows and content hash of a dataset."""
    from xmcbench.data.extent import extent
    from xmcbench.data.prepared import (
        default_cache_dir,
        default_data_dir,
        find_source,
        load,
        prepared_directory,
        read_statistics,
    )

    data_dir = data or context.obj or default_data_dir()
    dataset, source = load(name, data_dir), find_source(name, data_dir)
    directory = prepared_directory(source, data_dir, default_cache_dir())
    limits = extent(name, data_dir)
    assert limits is not None  # it is on disk
    rows = [*_statistics(dataset.card, read_statistics(directory), limits), *_tokens(directory)]
    rows += [("content hash", dataset.card.content_hash), ("prepared copy", str(directory))]
    echo(listing(rows, [dataset.card.name, ""]))
    for query in range(min(samples, dataset.card.num_train)):
        echo(f"\ntraining query {query}: {_short(dataset.train.texts[query])}")
        targets = dataset.train.targets
        labels = targets.indices[targets.indptr[query] : targets.indptr[query + 1]]
        for label in labels[:SHOWN_LABELS]:
            echo(f"  label {label}: {_short(dataset.label_texts[int(label)])}")
        if len(labels) > SHOWN_LABELS:
            echo(f"  and {len(labels) - SHOWN_LABELS:,} more labels")
    if figures is not None:
        from xmcbench.reporting.plots.of_analyses import label_distribution

        path = figures / f"{name}-labels.svg"
        label_distribution(dataset, path)
        echo(f"\n{path}")


def _statistics(card: DatasetCard, counts: Statistics, limits: Extent) -> Iterator[tuple[str, str]]:
    yield "training queries", f"{card.num_train:,}"
    yield "test queries", f"{card.num_test:,}"
    yield "labels", f"{card.num_labels:,}"
    yield "labels per training query", _spread(counts.labels_per_train_query)
    yield "labels per test query", _spread(counts.labels_per_test_query)
    yield "training queries per label", _spread(counts.train_queries_per_label)
    yield "words per query", _spread(counts.query_words)
    yield "words per label", _spread(counts.label_words)
    yield f"head labels (>= {card.head_at_least} training queries)", f"{counts.head:,}"
    yield "torso labels", f"{counts.torso:,}"
    yield f"tail labels (<= {card.tail_at_most} training queries)", f"{counts.tail:,}"
    yield "labels without a training query", f"{counts.labels_without_training:,}"
    yield "of these in the test split", f"{counts.test_labels_without_training:,}"
    yield "training queries without a label", f"{counts.train_queries_without_labels:,}"
    yield "test queries without a label", f"{counts.test_queries_without_labels:,}"
    yield "training queries with a repeated text", f"{counts.repeated_train_texts:,}"
    yield "test queries with a text of the training split", f"{counts.test_texts_in_train:,}"
    yield "ignored pairs, train", f"{counts.ignored_train:,}"
    yield "ignored pairs, test", f"{counts.ignored_test:,}"
    yield "propensity A, B", f"{card.propensity_a:g}, {card.propensity_b:g}"
    from xmcbench.data.extent import share_cut

    lengths = {"query": (limits.query_limit or card.max_length, counts.query_percentiles)}
    lengths["label"] = (limits.label_limit or card.max_label_length, counts.label_percentiles)
    for kind, (limit, percentiles) in lengths.items():
        yield f"maximum tokens of a {kind}", f"{limit}, which cuts about {share_cut(percentiles, limit):.0%}"
    yield "licence", card.licence or "not stated"
    yield "source", card.source


def _token_lengths(directory: Path) -> Path:
    """The folder of text lengths in tokens, one file per encoder."""
    return directory.with_name(f"{directory.name}.tokens")


def _tokens(directory: Path) -> Iterator[tuple[str, str]]:
    from xmcbench.data.statistics import Spread

    for path in sorted(_token_lengths(directory).glob("*.json")):
        for kind, spread in json.loads(path.read_bytes()).items():
            yield f"tokens per {kind} ({path.stem})", _spread(Spread(**spread))


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _row(source: Source, data_dir: Path) -> list[str]:
    draft = source.draft
    sizes = [f"{n:,}" if n else "?" for n in (draft.num_train, draft.num_test, draft.num_labels)]
    here = "no" if source.missing(data_dir) else "yes"
    return [
        source.name,
        here,
        *sizes,
        f"{draft.propensity_a:g}",
        f"{draft.propensity_b:g}",
        draft.licence,
        draft.source,
    ]


def _spread(spread: Spread) -> str:
    return f"mean {spread.mean:.2f}, median {spread.median:g}, {spread.least:,} to {spread.most:,}"
