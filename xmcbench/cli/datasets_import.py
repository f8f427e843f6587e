"""`xmcbench datasets import`, `fetch` and `export`: datasets from other files and archives, and as text files."""

from __future__ import annotations

from dataclasses import replace as changed
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xmcbench.cli.options import DatasetName, dataset_names
from xmcbench.runs.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xmcbench.data.importing.rows import Columns, Row
    from xmcbench.data.importing.write import Imported


class Format(StrEnum):
    """Formats that `datasets import` reads."""

    TABLE = "table"  # CSV, TSV, JSON lines, Parquet
    BEIR = "beir"
    HUGGING_FACE = "hf"
    ANNIF = "annif"
    PECOS = "pecos"
    LLMS4SUBJECTS = "llms4subjects"  # clones of public repositories
    SPACK = "spack"


def import_dataset(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(help="File of the training rows or of all rows; for some formats a folder.")],
    name: Annotated[
        str | None, typer.Option(help="Name of the new dataset, a folder of the data directory. [default: the file's]")
    ] = None,
    format: Annotated[Format, typer.Option(help="Format of the file or folder.")] = Format.TABLE,
    text: Annotated[str, typer.Option(help="Column of the text.")] = "text",
    labels: Annotated[str, typer.Option(help="Column of the labels: a list, or separated text.")] = "labels",
    separator: Annotated[str | None, typer.Option(help="Separates labels within a field. [default: ;]")] = None,
    label_texts: Annotated[
        Path | None, typer.Option(help="Texts of the labels: .ttl, .rdf, .txt, .tsv, .csv, .jsonl or .parquet.")
    ] = None,
    language: Annotated[str, typer.Option(help="Language of the labels in a SKOS vocabulary.")] = "en",
    test: Annotated[Path | None, typer.Option(help="File of the test rows.")] = None,
    test_share: Annotated[
        float,
        typer.Option(
            help="Without --test: share of rows that a hash of the text puts into the test split.", min=0, max=1
        ),
    ] = 0.2,
    deduplicate: Annotated[bool, typer.Option(help="Leave out repeated texts.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the dataset of that name.")] = False,
    encoding: Annotated[str | None, typer.Option(help="Encoding of CSV and JSON. [default: detected]")] = None,
    data: Annotated[Path | None, typer.Option("--data", help="Folder of datasets.")] = None,
) -> None:
    """Convert a table, or files of another tool, into a dataset folder."""
    from xmcbench.data.importing.corpora import read_beir, read_hugging_face, read_label_texts
    from xmcbench.data.importing.rows import SEPARATOR, Columns, check_separator, suspicion
    from xmcbench.data.importing.write import check_name, split_by_hash, write_dataset
    from xmcbench.data.prepared import default_data_dir

    name = path.name.partition(".")[0] if name is None else name
    check_name(name)
    folder = (data or context.obj or default_data_dir()) / name
    if format in (Format.LLMS4SUBJECTS, Format.SPACK):
        return _report(_import_clone(path, format, folder, replace))
    columns = Columns(text, labels, SEPARATOR if separator is None else separator)
    texts = read_label_texts(label_texts, language) if label_texts else None
    if format == Format.BEIR:
        splits, texts = read_beir(path)
    elif format == Format.HUGGING_FACE:
        splits = read_hugging_face(path, columns)
    elif test is not None:
        splits = {"train": _rows(path, format, columns, encoding), "test": _rows(test, format, columns, encoding)}
    else:
        train_rows, test_rows = split_by_hash(_rows(path, format, columns, encoding), test_share)
        splits = {"train": iter(train_rows), "test": iter(test_rows)}
    rows = {split: list(read) for split, read in splits.items()}
    if format in (Format.TABLE, Format.HUGGING_FACE):
        every = [*rows["train"], *rows["test"]]
        if separator is None:
            check_separator(every, str(path))
        elif found := suspicion(every):
            echo(f"note: {found[1]}")
    _report(write_dataset(rows["train"], rows["test"], folder, str(path), texts, deduplicate, replace))


def _import_clone(clone: Path, format: Format, folder: Path, replace: bool) -> Imported:
    from xmcbench.data.importing.llms4subjects import import_llms4subjects
    from xmcbench.data.importing.spack import import_spack
    from xmcbench.data.importing.write import new_folder

    read = import_spack if format == Format.SPACK else import_llms4subjects
    with new_folder(folder, replace) as made:  # refused before thousands of files are read
        return changed(read(clone, made), folder=folder)


def _rows(path: Path, format: Format, columns: Columns, encoding: str | None) -> Iterator[Row]:
    from xmcbench.data.importing.corpora import read_annif, read_pecos
    from xmcbench.data.importing.rows import read_rows

    if format == Format.ANNIF:
        return read_annif(path)
    return read_pecos(path) if format == Format.PECOS else read_rows(path, columns, encoding)


def _report(imported: Imported) -> None:
    echo(
        f"{imported.folder}: {imported.train:,} training rows, {imported.test:,} test rows, {imported.labels:,} labels"
    )
    what = "left out" if imported.removed else "kept, --deduplicate leaves them out"
    if imported.repeated:
        echo(f"{imported.repeated:,} rows repeat a text of their split: {what}")
    if imported.shared:
        echo(f"{imported.shared:,} test rows have a text of the training split: {what}")
    if imported.unlabelled_train or imported.unlabelled_test:
        rows = f"{imported.unlabelled_train:,} training rows and {imported.unlabelled_test:,} test rows"
        echo(f"{rows} have no label: the former train nothing, the latter count as misses")


def remove_dataset(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(help="Name of a dataset in a folder of the data directory.", autocompletion=dataset_names)
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    data: Annotated[Path | None, typer.Option("--data", help="Folder of datasets.")] = None,
) -> None:
    """Delete the folder of a dataset, and its prepared copies."""
    import shutil

    from xmcbench.data.importing.write import check_name, check_removable, remove
    from xmcbench.data.prepared import default_data_dir, prepared_copies

    check_name(name)
    folder = (data or context.obj or default_data_dir()) / name
    check_removable(folder)
    copies = prepared_copies(name)
    if not yes:
        typer.confirm(f"Delete {folder} and {len(copies)} files and folders of prepared copies?", abort=True)
    remove(folder)
    for copy in copies:
        shutil.rmtree(copy) if copy.is_dir() else copy.unlink()
    echo(f"deleted {folder}")


def fetch(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of a dataset of the catalogue.", autocompletion=dataset_names)],
    archive: Annotated[Path | None, typer.Option("--from", help="A downloaded .zip or .tar archive to unpack.")] = None,
    sha256: Annotated[str, typer.Option(help="Expected SHA-256 of the archive, in hexadecimal.")] = "",
    data: Annotated[Path | None, typer.Option("--data", help="Folder of datasets.")] = None,
) -> None:
    """Download and unpack a dataset, or say where to get it.

    A download that was interrupted goes on where it stopped.
    """
    from xmcbench.data.download import check_digest, unpack
    from xmcbench.data.prepared import default_data_dir, find_source
    from xmcbench.errors import XMCBenchError

    data_dir = data or context.obj or default_data_dir()
    source = find_source(name, data_dir)
    message = source.missing(data_dir)
    if message is None:
        echo(f"{name} is already on disk")
        return
    if archive is None and not source.download:
        raise XMCBenchError(f"{message}; or download the archive and pass it with --from FILE")
    if archive and not archive.is_file():
        raise XMCBenchError(f"{archive}: found no such file")
    packed = archive or _downloaded(source.download, data_dir)
    check_digest(packed, sha256)
    files = unpack(packed, data_dir / source.name)
    if archive is None:
        packed.unlink()
    echo(f"{data_dir / source.name}: {', '.join(files)}")


def _downloaded(url: str, data_dir: Path) -> Path:
    """The archive at `url`, downloaded into the data directory if it is not there already."""
    from rich.progress import DownloadColumn, Progress, TimeRemainingColumn

    from xmcbench.data.download import download

    path = data_dir / url.rpartition("/")[2]
    if not path.exists():
        with Progress("{task.description}", DownloadColumn(), TimeRemainingColumn()) as bars:
            task = bars.add_task(path.name, total=None)
            download(url, path, lambda here, total: bars.update(task, completed=here, total=total or None))
    return path


def export(
    context: typer.Context,
    name: DatasetName,
    folder: Annotated[Path, typer.Argument(help="Folder to write, which is not there yet.")],
    data: Annotated[Path | None, typer.Option("--data", help="Folder of datasets.")] = None,
) -> None:
    """Write a dataset as text files, for programs that read the Extreme Classification Repository's."""
    from xmcbench.data import exporting, load
    from xmcbench.data.prepared import default_data_dir

    exporting.export(load(name, data or context.obj or default_data_dir()), folder)
    echo(f"{folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")
