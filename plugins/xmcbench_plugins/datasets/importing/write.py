"""Rows of any source become a dataset folder in the JSON layout, with a report of what was found on the way."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace as changed
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from xmcbench.data import formats
from xmcbench.data.dataset import Dataset
from xmcbench.data.formats import CARD_FILE, write_json_layout
from xmcbench.data.importer import Imported, Row
from xmcbench.data.source import LONGEST_NAME, Draft, FolderSource
from xmcbench.errors import UnknownNameError, XMCBenchError, shown, suggest
from xmcbench.files.atomic import atomic_directory, beside
from xmcbench.files.regular import read_regular
from xmcbench.plugins.hookspecs import is_plain
from xmcbench.plugins.registry import registry
from xmcbench_plugins.datasets.importing.formats import Read
from xmcbench_plugins.datasets.inspection import Content, Kind, Report, Severity, inspect, inspect_dataset
from xmcbench_plugins.datasets.split_inspection import inspect_splits

IMPORT_BYTES = 1 << 20  # of the file that an import left, at most
SHOWN_NAMES = 5
HALF = re.compile("[\ud800-\udfff]")  # half of a surrogate pair


Targets = list[tuple[Row, list[int]]]  # rows with the numbers of their labels


@dataclass(frozen=True)
class Assembled:
    """A dataset that is ready to be written: rows with the numbers of their labels, keys and texts of the labels."""

    train: Targets
    test: Targets
    keys: list[str]
    texts: list[str]
    sizes: Imported


def assemble(read: Read, name: str, source: str, deduplicate: bool, report: Report) -> Assembled:
    """Number the labels, join or count repeated texts, and add to `report` what texts and labels show.

    Without label texts a label's key is its text. With `deduplicate` rows with the text of an earlier row are left out,
    of the test split also those with a text of the training split; their labels are added to those of the earlier row
    of their split. Raises XMCBenchError where a split is empty, or other than the catalogue has it.
    """
    sizes = Imported(removed=deduplicate)
    ids = {key: number for number, key in enumerate(read.label_texts or ())}
    train_targets, test_targets = (
        [(row, _label_ids(row, ids, read.label_texts)) for row in rows] for rows in (read.train, read.test)
    )
    train = _unique(train_targets, set(), sizes, deduplicate)
    test = _unique(test_targets, {row.text for row, _ in train}, sizes, deduplicate)
    sizes.train, sizes.test, sizes.labels = len(train), len(test), len(ids)
    sizes.unlabelled_train, sizes.unlabelled_test = (sum(not labels for _, labels in rows) for rows in (train, test))
    if not (sizes.train and sizes.test and sizes.labels):
        found = f"{sizes.train} training rows, {sizes.test} test rows and {sizes.labels} labels"
        raise XMCBenchError(f"{source}: found {found}, expected some of each")
    check_sizes(sizes, name, source)
    texts = [read.label_texts[key] if read.label_texts else key for key in ids]
    sizes.empty_rows = sum(not row.text.strip() for split in (train, test) for row, _ in split)
    sizes.empty_labels = sum(not text.strip() for text in texts)
    splits = [[row.text for row, _ in split] for split in (train, test)]
    counts = [
        np.bincount(np.fromiter(chain.from_iterable(own for _, own in split), np.int64), minlength=len(texts))
        for split in (train, test)
    ]
    alike = read.label_texts is not None or read.by_hash
    inspect(Content.of(splits, texts, np.stack(counts), sizes, alike), report)
    return Assembled(train, test, list(ids) if read.label_texts else [], texts, sizes)


def write_assembled(
    assembled: Assembled, folder: Path, source: str, more: Mapping[str, str], replace: bool = False
) -> Imported:
    """Write `folder` whole or not at all, with `replace` in place of an older dataset.

    `more` are the contents of further files by name, of the card among them.
    """
    train_lines, test_lines = (
        ({"title": row.text, "target_ind": labels} for row, labels in rows)
        for rows in (assembled.train, assembled.test)
    )
    keyed: list[dict[str, str]] = [{"uid": key} for key in assembled.keys] or [{}] * len(assembled.texts)
    labels = ({**key, "title": text} for key, text in zip(keyed, assembled.texts, strict=True))
    with new_folder(folder, replace) as made:
        try:
            write_json_layout(made, train_lines, test_lines, labels, more)
        except UnicodeEncodeError as error:
            rows = (row for split in (assembled.train, assembled.test) for row, _ in split)
            where = next((row.where for row in rows if HALF.search("".join((row.text, *row.labels)))), source)
            raise XMCBenchError(f"{where}: found half a surrogate pair, expected valid Unicode") from error
    return changed(assembled.sizes, folder=folder)


def _label_ids(row: Row, ids: dict[str, int], label_texts: dict[str, str] | None) -> list[int]:
    if label_texts is None:
        return sorted({ids.setdefault(key, len(ids)) for key in row.labels})
    try:
        return sorted({ids[key] for key in row.labels})
    except KeyError as error:
        (key,) = error.args
        near = suggest(key, list(ids)[:10_000])
        raise XMCBenchError(f"{row.where}: found the label {key!r}, which has no text{near}") from None


def _unique(targets: Targets, elsewhere: set[str], sizes: Imported, deduplicate: bool) -> Targets:
    """The rows that stay. Repeated texts, and those that are `elsewhere`, are counted in `sizes`."""
    kept = [(row, labels) for row, labels in targets if row.text not in elsewhere]
    sizes.shared += len(targets) - len(kept)
    if not deduplicate:
        sizes.repeated += len(targets) - len({row.text for row, _ in targets})
        return targets
    first: dict[str, tuple[Row, list[int]]] = {}
    for row, labels in kept:
        earlier, others = first.get(row.text, (row, []))
        first[row.text] = earlier, sorted({*others, *labels})
    sizes.repeated += len(kept) - len(first)
    return list(first.values())


def write_dataset(
    train: Iterable[Row], test: Iterable[Row], folder: Path, source: str, label_texts: dict[str, str]
) -> Imported:
    """Write rows that were made for a purpose, and that nobody has to be told about."""
    assembled = assemble(Read(list(train), list(test), label_texts), folder.name, source, False, Report())
    return write_assembled(assembled, folder, source, {CARD_FILE: f"source: {json.dumps(source)}\n"})


_SUFFIX = 40  # bytes that temporary names and the names of prepared copies add to that of a dataset


def check_name(name: str) -> None:
    """Raise XMCBenchError unless a folder `name` of the data directory is what `load(name)` reads."""
    if not is_plain(name) or len(os.fsencode(name)) > LONGEST_NAME - _SUFFIX:
        raise XMCBenchError(f"dataset name: found {shown(name)}, expected a plain folder name")
    if not isinstance(_source(name), FolderSource):
        raise XMCBenchError(f"dataset name: found {name!r}, which is generated: a folder of that name is never read")


def check_sizes(imported: Imported, name: str, source: str) -> None:
    """Raise XMCBenchError unless a dataset `name` of these sizes can be loaded: the catalogue may say others."""
    _source(name).draft.card(imported.train, imported.test, imported.labels, source)


def _source(name: str) -> Any:
    """What is registered as `name`, or the source of a folder."""
    try:
        return registry().thing("dataset", name)
    except UnknownNameError:
        return FolderSource(Draft(name=name))


def report_of(dataset: Dataset, folder: Path) -> Report:
    """What is suspicious about a dataset: what its texts and labels show, what its import said, and unread files.

    `folder` is the one it is read from; of a generated dataset there is none.
    """
    report = Report()
    inspect_dataset(dataset, report)
    inspect_splits(dataset, report)
    if not folder.is_dir():
        return report
    if unread := formats.unread_files(folder):
        names = [path.name for path in unread]
        report.add(Kind.UNREAD_FILES, Severity.NOTE, len(unread), place=str(folder), names=names[:SHOWN_NAMES])
    path = folder / formats.IMPORT_FILE
    if path.is_file():
        try:
            report.restore(json.loads(read_regular(path, IMPORT_BYTES))["findings"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise XMCBenchError(f"{path}: {str(error).splitlines()[0]}, expected what an import wrote") from error
    return report


def check_removable(folder: Path) -> None:
    """Raise XMCBenchError unless `folder` is a dataset and holds nothing else."""
    if folder.is_symlink() or not folder.is_dir():
        raise XMCBenchError(f"{folder}: found no folder of a dataset")
    known = formats.file_names() | formats.OWN_FILES
    for path in sorted(folder.rglob("*")):
        if path.relative_to(folder).as_posix() not in known and not (path.is_dir() and path.name == "raw"):
            raise XMCBenchError(f"{path}: is no file of a dataset; nothing is deleted, remove the folder by hand")


def remove(folder: Path) -> None:
    """Remove the folder of a dataset. It is gone at once: under its name it is never there in part."""
    check_removable(folder)
    doomed = beside(folder)
    folder.rename(doomed)
    shutil.rmtree(doomed)


@contextmanager
def new_folder(folder: Path, replace: bool = False) -> Iterator[Path]:
    """A new folder that becomes `folder` when the block succeeds, with `replace` in place of an older dataset.

    Raises XMCBenchError if there is such a folder already.
    """
    with atomic_directory(folder, replace=replace) as made:  # which brings back what a killed import moved away
        _check_free(folder, replace)
        yield made
        _check_free(folder, replace)  # another import may have made it meanwhile


def _check_free(folder: Path, replace: bool) -> None:
    if folder.exists() and replace:
        check_removable(folder)
    elif folder.exists():
        raise XMCBenchError(f"{folder}: found a dataset of this name, expected a new --name, or --replace")
