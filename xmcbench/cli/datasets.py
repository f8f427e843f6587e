"""`xmcbench datasets`: what can be loaded, and what a dataset is like."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from xmcbench.data.source import Source
    from xmcbench.data.statistics import Spread

app = typer.Typer(help="List datasets, or show one.", invoke_without_command=True)

DataDir = Annotated[
    Path | None, typer.Option("--data", help="Folder that datasets lie in. [default: $XMCBENCH_DATA or data]")
]


@app.callback()
def main(context: typer.Context, data: DataDir = None) -> None:
    """List datasets, or show one."""
    context.obj = data
    if context.invoked_subcommand is None:
        list_datasets(context, data)


@app.command("list")
def list_datasets(context: typer.Context, data: DataDir = None) -> None:
    """List every dataset by name: whether it is here, its sizes, A and B, licence and source."""
    from tabulate import tabulate

    from xmcbench.data.folder import own_names, own_source
    from xmcbench.data.prepared import default_data_dir
    from xmcbench.data.source import Family
    from xmcbench.plugins.registry import registry

    data_dir = data or context.obj or default_data_dir()
    things = [registered.thing for registered in registry().all("dataset")]
    families = [thing for thing in things if isinstance(thing, Family)]
    sources = [thing for thing in things if not isinstance(thing, Family)]
    known = {source.name for source in sources}
    sources += [own_source(data_dir / name) for name in own_names(data_dir) if name not in known]
    header = ["dataset", "here", "train", "test", "labels", "A", "B", "licence", "source"]
    rows = [_row(source, data_dir) for source in sources]
    typer.echo(tabulate(rows, header, disable_numparse=True, maxcolwidths=[None] * 7 + [20, 60]))
    typer.echo()
    typer.echo(tabulate([[family.name, family.summary] for family in families], ["any size", "what it is"]))
    typer.echo(
        f"\nData directory: {data_dir}. `xmcbench datasets show NAME` tells more, and where to get what is not here."
    )


@app.command()
def show(
    context: typer.Context, name: Annotated[str, typer.Argument(help="Name of a dataset.")], data: DataDir = None
) -> None:
    """Show sizes, counts, head/torso/tail and content hash of a dataset."""
    from tabulate import tabulate

    from xmcbench.data.prepared import default_cache_dir, default_data_dir, find_source, load, prepared_directory
    from xmcbench.data.statistics import statistics

    data_dir = data or context.obj or default_data_dir()
    dataset = load(name, data_dir)
    card, counts = dataset.card, statistics(dataset)
    source = find_source(name, data_dir)
    rows = [
        ("training queries", f"{card.num_train:,}"),
        ("test queries", f"{card.num_test:,}"),
        ("labels", f"{card.num_labels:,}"),
        ("labels a training query", _spread(counts.labels_per_train_query)),
        ("labels a test query", _spread(counts.labels_per_test_query)),
        ("training queries a label", _spread(counts.train_queries_per_label)),
        ("words a query", _spread(counts.query_words)),
        ("words a label", _spread(counts.label_words)),
        (f"head labels (>= {card.head_at_least} training queries)", f"{counts.head:,}"),
        ("torso labels", f"{counts.torso:,}"),
        (f"tail labels (<= {card.tail_at_most} training queries)", f"{counts.tail:,}"),
        ("labels without a training query", f"{counts.labels_without_training:,}"),
        ("training queries without a label", f"{counts.train_queries_without_labels:,}"),
        ("test queries without a label", f"{counts.test_queries_without_labels:,}"),
        ("ignored pairs, train", f"{counts.ignored_train:,}"),
        ("ignored pairs, test", f"{counts.ignored_test:,}"),
        ("propensity A, B", f"{card.propensity_a:g}, {card.propensity_b:g}"),
        ("maximum tokens, query and label", f"{card.max_length}, {card.max_label_length}"),
        ("licence", card.licence or "not stated"),
        ("source", card.source),
        ("content hash", card.content_hash),
        ("prepared copy", str(prepared_directory(source, data_dir, default_cache_dir()))),
    ]
    typer.echo(tabulate(rows, [card.name, ""], disable_numparse=True))


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
