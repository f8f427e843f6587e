"""`xmcbench datasets import`: files of other tools become a dataset, with a report of what is suspicious about them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace as changed
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from xmcbench.cli.options import DataDir, importer_names
from xmcbench.errors import XMCBenchError, shown
from xmcbench.runs.terminal import echo

if TYPE_CHECKING:
    from xmcbench.data.importer import Imported, Importer
    from xmcbench_plugins.datasets.importing.options import Options
    from xmcbench_plugins.datasets.inspection import Report


def import_dataset(
    path: Annotated[Path, Argument(help="File of the training rows or of all rows; for some formats a folder.")],
    name: Annotated[
        str | None, Option(help="Name of the new dataset, a folder of the data directory. [default: the file's]")
    ] = None,
    format: Annotated[
        str,
        Option(
            metavar="NAME",
            help="Format of the file or folder: table, beir, hf, annif, pecos, fasttext, libmultilabel, layout; clones "
            "for llms4subjects, spack; or one of a plugin.",
            autocompletion=importer_names,
        ),
    ] = "table",
    text: Annotated[str | None, Option(help="Column of the text. [default: text]")] = None,
    labels: Annotated[
        str | None, Option(help="Column of the labels: a list, or separated text. [default: labels]")
    ] = None,
    separator: Annotated[str | None, Option(help="Separates labels within a field. [default: ;]")] = None,
    quoting: Annotated[
        Literal["none", "double"] | None,
        Option(help="Whether quotation marks enclose fields. [default: double in CSV, none in TSV]"),
    ] = None,
    group_by: Annotated[
        str | None, Option(help="Column whose equal values make one row: for files with a row per text and label.")
    ] = None,
    label_texts: Annotated[
        Path | None,
        Option(help="Texts of the labels: .ttl, .nt, .rdf, .jsonld, .txt, .tsv, .csv, .json, .jsonl or .parquet."),
    ] = None,
    label_key: Annotated[str | None, Option(help="Column of the keys in a table of label texts.")] = None,
    label_name: Annotated[str | None, Option(help="Column of the texts in a table of label texts.")] = None,
    language: Annotated[str | None, Option(help="Language of the label texts in a vocabulary. [default: en]")] = None,
    test: Annotated[Path | None, Option(help="File of the test rows.")] = None,
    test_share: Annotated[
        float | None,
        Option(
            help="Without --test: share of rows that a hash of the text puts into the test split. [default: 0.2]",
            min=0,
            max=1,
        ),
    ] = None,
    config: Annotated[str | None, Option(help="Configuration of a Hugging Face dataset.")] = None,
    test_split: Annotated[
        str | None, Option(help="Split of a Hugging Face dataset to test on. [default: test]")
    ] = None,
    strict: Annotated[
        bool, Option("--strict", help="Refuse lines without a tab and unknown subjects of an Annif corpus.")
    ] = False,
    deduplicate: Annotated[bool, Option("--deduplicate", help="Leave out repeated texts.")] = False,
    replace: Annotated[bool, Option("--replace", help="Replace the dataset of that name.")] = False,
    yes: Annotated[bool, Option("--yes", help="Import even if the report names a serious problem.")] = False,
    encoding: Annotated[str | None, Option(help="Encoding of text files. [default: detected]")] = None,
    data: DataDir = Path("data"),
) -> None:
    """Convert a table, or files of another tool, into a dataset folder, and say what is suspicious about them."""
    from xmcbench_plugins.datasets.importing.options import Options
    from xmcbench_plugins.datasets.importing.write import check_name
    from xmcbench_plugins.datasets.inspection import Report

    name = path.name.partition(".")[0] if name is None else name
    check_name(name)
    options = Options(
        text=text, labels=labels, separator=separator, quoting=quoting, group_by=group_by, label_texts=label_texts,
        label_key=label_key, label_name=label_name, language=language, test=test, test_share=test_share, config=config,
        test_split=test_split, strict=strict, deduplicate=deduplicate, encoding=encoding,
    )  # fmt: skip
    report = Report(of_import=True)
    imported = _import(path, format, data / name, options, replace, report, yes)
    echo(
        f"{imported.folder}: {imported.train:,} training rows, {imported.test:,} test rows, {imported.labels:,} labels"
    )
    say(report)


def _import(
    path: Path, format: str, folder: Path, options: Options, replace: bool, report: Report, yes: bool
) -> Imported:
    """Write the dataset `folder` from the files in `path`, unless the report stops it."""
    from xmcbench.data.importer import Importer
    from xmcbench_plugins.datasets.importing.formats import FileFormat, read_plugin
    from xmcbench_plugins.datasets.importing.write import assemble, write_assembled

    importer = find_importer(format)
    if type(importer).read is Importer.read:
        options.check_taken(format)
        return _write_whole(importer.write, path, format, folder, replace, report, yes)
    if isinstance(importer, FileFormat):
        read = importer.read_with(path, options, report)
    else:
        read = read_plugin(importer, path, options, report)
    assembled = assemble(read, folder.name, str(path), options.deduplicate, report)
    options.check_taken(format)
    more = _accepted(path, format, options, assembled.sizes, folder, report, yes)
    return write_assembled(assembled, folder, str(path), more, replace)


def find_importer(format: str) -> Importer:
    """The importer of a format. Raises `UnknownNameError` with the nearest format."""
    from xmcbench.plugins.registry import calling, registry

    importers = {registered.name: registered.thing for registered in registry().all("importer")}
    if format not in importers:
        raise registry().unknown("format", format, importers, "--format")
    with calling("importer", format):
        importer: Importer = importers[format]()
    return importer


def _write_whole(
    write: Callable[[Path, Path], Imported],
    path: Path,
    format: str,
    folder: Path,
    replace: bool,
    report: Report,
    yes: bool,
) -> Imported:
    """Import what `write` makes a dataset of; it is looked at before it takes its place."""
    from xmcbench.data.importer import Imported
    from xmcbench.data.source import own_source
    from xmcbench.plugins.registry import calling
    from xmcbench_plugins.datasets.importing.options import Options
    from xmcbench_plugins.datasets.importing.write import check_sizes, new_folder
    from xmcbench_plugins.datasets.inspection import inspect_dataset

    with new_folder(folder, replace) as made:  # refused before thousands of files are read
        with calling("importer", format):
            if not isinstance(written := write(path, made), Imported):
                raise TypeError(f"write returned {shown(written)}, expected an xmcbench.data.importer.Imported")
        imported = changed(written, folder=folder)
        check_sizes(imported, folder.name, str(path))
        inspect_dataset(own_source(made).read(made.parent), report)
        for name, content in _accepted(path, format, Options(), imported, folder, report, yes).items():
            if not (made / name).exists():
                (made / name).write_text(content, encoding="utf-8")
    return imported


def _accepted(
    path: Path, format: str, options: Options, sizes: Imported, folder: Path, report: Report, yes: bool
) -> dict[str, str]:
    """Card, facts and datasheet of an import by file name. Raises XMCBenchError where the report stops it."""
    from xmcbench.data.formats import CARD_FILE, DATASHEET_FILE, IMPORT_FILE
    from xmcbench.plugins.registry import own_version
    from xmcbench_plugins.datasets.sentences import datasheet, why_stopped

    if report.grave and not yes:
        say(report)
        raise XMCBenchError(why_stopped(report))
    facts = {
        "source": str(path),
        "format": format,
        "options": options.as_facts(),
        "training rows": sizes.train,
        "test rows": sizes.test,
        "labels": sizes.labels,
        "xmcbench": own_version(),
    }
    language = f"language: {json.dumps(options.language)}\n" if report.names_by_language else ""
    return {
        CARD_FILE: f"source: {json.dumps(str(path))}\n{language}",
        IMPORT_FILE: json.dumps({**facts, "findings": report.stored()}, indent=1, ensure_ascii=False) + "\n",
        DATASHEET_FILE: datasheet(folder.name, facts, report.worst_first()),
    }


def say(report: Report) -> None:
    """Print a report, the worst first."""
    from xmcbench_plugins.datasets.sentences import report_lines

    for line in report_lines(report.worst_first()):
        echo(line)
