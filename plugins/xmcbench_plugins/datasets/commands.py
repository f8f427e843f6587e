"""`xmcbench datasets`: list, import, fetch, prepare, show, export and remove datasets."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Context, Option, Typer, confirm

from xmcbench.cli.options import DataDir, DatasetName, dataset_names
from xmcbench.errors import XMCBenchError
from xmcbench.plugins.commands import Command
from xmcbench.plugins.hookspecs import hookimpl
from xmcbench.runs.terminal import echo, listing, patience
from xmcbench_plugins.datasets.import_command import import_dataset, say

if TYPE_CHECKING:
    from xmcbench.data.dataset import DatasetCard
    from xmcbench.data.extent import Extent
    from xmcbench.data.prepared import Spread, Statistics
    from xmcbench.data.source import Source

SHOWN_LABELS, SHOWN_CHARACTERS = 5, 120  # of a sample row

app = Typer(help="List, prepare or show datasets.", invoke_without_command=True)

app.command("import")(patience("import")(import_dataset))


@app.command("remove")
def remove_dataset(
    name: Annotated[
        str, Argument(help="Name of a dataset in a folder of the data directory.", autocompletion=dataset_names)
    ],
    yes: Annotated[bool, Option("--yes", help="Do not ask for confirmation.")] = False,
    data: DataDir = Path("data"),
) -> None:
    """Delete the folder of a dataset, and its prepared copies."""
    from xmcbench.data.prepared import prepared_copies
    from xmcbench_plugins.datasets.importing.write import check_name, check_removable, remove

    check_name(name)
    folder = data / name
    check_removable(folder)
    copies = prepared_copies(name)
    if not yes:
        confirm(f"Delete {folder} and {len(copies)} files and folders of prepared copies?", abort=True)
    remove(folder)
    for copy in copies:
        shutil.rmtree(copy) if copy.is_dir() else copy.unlink()
    echo(f"deleted {folder}")


@app.command()
def fetch(
    name: Annotated[str, Argument(help="Name of a dataset of the catalogue.", autocompletion=dataset_names)],
    archive: Annotated[Path | None, Option("--from", help="A downloaded .zip or .tar archive to unpack.")] = None,
    sha256: Annotated[str, Option(help="Expected SHA-256 of the archive, in hexadecimal.")] = "",
    data: DataDir = Path("data"),
) -> None:
    """Download and unpack a dataset, or say where to get it.

    A download that was interrupted goes on where it stopped.
    """
    from xmcbench.data.prepared import find_source
    from xmcbench_plugins.datasets.download import check_digest, listed, unpack

    source = find_source(name, data)
    message = source.missing(data)
    if message is None:
        echo(f"{name} is already on disk")
        return
    if archive is None and not source.download:
        raise XMCBenchError(f"{message}; or download the archive and pass it with --from FILE")
    if archive and not archive.is_file():
        raise XMCBenchError(f"{archive}: found no such file")
    packed = archive or _downloaded(source.download, data)
    check_digest(packed, sha256)
    found = unpack(packed, data / source.name)
    if archive is None:
        packed.unlink()
    echo(f"{data / source.name}: {', '.join(found.files)}")
    if found.left_out:
        echo(listed(found.left_out))


def _downloaded(url: str, data: Path) -> Path:
    """The archive at `url`, downloaded into the data directory if it is not there already."""
    from rich.progress import DownloadColumn, Progress, TimeRemainingColumn

    from xmcbench_plugins.datasets.download import download

    path = data / url.rpartition("/")[2]
    if not path.exists():
        with Progress("{task.description}", DownloadColumn(), TimeRemainingColumn()) as bars:
            task = bars.add_task(path.name, total=None)
            download(url, path, lambda here, total: bars.update(task, completed=here, total=total or None))
    return path


@app.command()
@patience("export")
def export(
    name: DatasetName,
    folder: Annotated[Path, Argument(help="Folder to write, which is not there yet.")],
    layout: Annotated[
        Literal["text", "json"], Option(help="Raw text, which other programs read, or JSON, which keeps line breaks.")
    ] = "text",
    data: DataDir = Path("data"),
) -> None:
    """Write a dataset with its card in a layout of the Extreme Classification Repository."""
    from xmcbench.data import load
    from xmcbench.data.prepared import find_source
    from xmcbench.data.source import label_keys
    from xmcbench_plugins.datasets.exporting import export as write

    source = find_source(name, data)
    dataset = load(name, data)
    changed_texts = write(dataset, folder, source.draft, label_keys(source, data), layout)
    echo(f"{folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")
    if changed_texts:
        echo(
            f"{changed_texts:,} texts are other ones: a text is a line there, and a line break became a space; "
            "--layout json keeps them"
        )


@app.callback()
def main(context: Context, data: DataDir = Path("data")) -> None:
    """List, prepare or show datasets."""
    source = context.get_parameter_source("data")
    if context.invoked_subcommand is None:
        list_datasets(data)
    elif source and source.name == "COMMANDLINE":
        raise XMCBenchError(f"datasets --data {data}: expected it after {context.invoked_subcommand}")


@app.command("list")
def list_datasets(data: DataDir = Path("data")) -> None:
    """List every dataset: whether its files are on disk, sizes, A and B, licence and source."""
    from xmcbench.data.source import Family, own_names, own_source
    from xmcbench.plugins.registry import registry

    things = [registered.thing for registered in registry().all("dataset")]
    families = [thing for thing in things if isinstance(thing, Family)]
    sources = [thing for thing in things if not isinstance(thing, Family)]
    known = {source.name for source in sources}
    unreadable = []
    for name in sorted(set(own_names(data)) - known):
        try:
            sources.append(own_source(data / name))
        except XMCBenchError as problem:
            unreadable.append([name, "no", *"?????", "", str(problem)])
    header = ["dataset", "here", "train", "test", "labels", "A", "B", "licence", "source"]
    rows = [_row(source, data) for source in sources] + unreadable
    echo(listing(rows, header, maxcolwidths=[None] * 7 + [20, 60]))
    echo()
    echo(listing([[family.name, family.summary] for family in families], ["any size", "what it is"]))
    echo(f"\nData directory: {data}. `xmcbench datasets show NAME` shows details and where to get the files.")


@app.command()
def prepare(
    name: DatasetName,
    encoder: Annotated[
        str | None, Option(help="Also tokenise for this encoder: tiny, or a model name as in a suite.")
    ] = None,
    data: DataDir = Path("data"),
) -> None:
    """Read a dataset into its prepared copy, and tokenise it, before a trial has to.

    Parts that are there already are checked and used. A killed or failed run continues with the part it was at.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from xmcbench.data.prepared import default_cache_dir, find_source, load, prepared_directory

    cache = default_cache_dir()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as bars:
        tasks = {"copy": bars.add_task("prepared copy", total=1)}

        def progress(stage: str, total: int, done: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done)

        dataset = load(name, data)
        bars.update(tasks["copy"], completed=1)
        directory = prepared_directory(find_source(name, data), data, cache)
        if encoder is not None:
            from xmcbench.files.atomic import atomic_write
            from xmcbench_plugins.datasets.tokens import prepare_tokens

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
    name: DatasetName,
    data: DataDir = Path("data"),
    samples: Annotated[int, Option(help="Training queries to show with their labels.", min=0)] = 3,
    figures: Annotated[Path | None, Option(help="Folder for a figure of the label distribution.")] = None,
) -> None:
    """Show what will hurt, the worst first, then sizes, statistics, sample rows and content hash of a dataset."""
    from xmcbench.data.extent import extent
    from xmcbench.data.prepared import Spread, default_cache_dir, find_source, load, prepared_directory, read_statistics
    from xmcbench_plugins.datasets.importing.write import report_of

    dataset, source = load(name, data), find_source(name, data)
    directory = prepared_directory(source, data, default_cache_dir())
    limits = extent(name, data)
    assert limits is not None  # it is on disk
    rows = list(_statistics(dataset.card, read_statistics(directory), limits))
    for path in sorted(_token_lengths(directory).glob("*.json")):
        lengths = json.loads(path.read_bytes()).items()
        rows += [(f"tokens per {kind} ({path.stem})", _spread(Spread(**spread))) for kind, spread in lengths]
    rows += [("content hash", dataset.card.content_hash), ("prepared copy", str(directory))]
    say(report_of(dataset, data / name))
    echo()
    echo(listing(rows, [dataset.card.name, ""]))
    for query in range(min(samples, dataset.card.num_train)):
        echo(f"\ntraining query {query}: {_short(dataset.train.texts[query])}")
        labels = dataset.train.targets[[query]].indices
        for label in labels[:SHOWN_LABELS]:
            echo(f"  label {label}: {_short(dataset.label_texts[int(label)])}")
        if len(labels) > SHOWN_LABELS:
            echo(f"  and {len(labels) - SHOWN_LABELS:,} more labels")
    if figures is not None:
        from xmcbench_plugins.datasets.figure import label_distribution

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
    from xmcbench.data.lengths import share_cut

    lengths = {"query": (limits.query_limit or card.max_length, counts.query_percentiles)}
    lengths["label"] = (limits.label_limit or card.max_label_length, counts.label_percentiles)
    for kind, (limit, percentiles) in lengths.items():
        yield f"maximum tokens of a {kind}", f"{limit}, which cuts about {share_cut(percentiles, limit):.0%}"
    yield "licence", card.licence or "not stated"
    yield "source", card.source


def _token_lengths(directory: Path) -> Path:
    """The folder of text lengths in tokens, one file per encoder."""
    return directory.with_name(f"{directory.name}.tokens")


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _row(source: Source, data: Path) -> list[str]:
    draft, here = source.draft, "no" if source.missing(data) else "yes"
    sizes = [f"{n:,}" if n else "?" for n in (draft.num_train, draft.num_test, draft.num_labels)]
    propensity = (f"{draft.propensity_a:g}", f"{draft.propensity_b:g}")
    return [source.name, here, *sizes, *propensity, draft.licence, draft.source]


def _spread(spread: Spread) -> str:
    return f"mean {spread.mean:.2f}, median {spread.median:g}, {spread.least:,} to {spread.most:,}"


@hookimpl
def register_commands(register: Callable[[Command], None]) -> None:
    """Register `xmcbench datasets`."""
    register(Command("datasets", app))
