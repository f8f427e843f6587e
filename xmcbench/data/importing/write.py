"""Rows of any source become a dataset folder in the JSON layout, with a report of what was found on the way."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from xmcbench.data import formats
from xmcbench.data.importing.rows import Row
from xmcbench.data.source import CARD_FILE, LONGEST_NAME, Draft, FolderSource
from xmcbench.errors import UnknownNameError, XMCBenchError, shown, suggest
from xmcbench.files.atomic import atomic_directory, beside
from xmcbench.plugins.registry import registry

HALF = re.compile("[\ud800-\udfff]")  # half of a surrogate pair


@dataclass
class Imported:
    """The sizes of an imported dataset, its repeated texts, and its texts without a label."""

    train: int = 0
    test: int = 0
    labels: int = 0
    repeated: int = 0  # rows whose text an earlier row of their split has
    shared: int = 0  # test rows whose text a training row has
    unlabelled_train: int = 0  # rows without a label
    unlabelled_test: int = 0
    empty_rows: int = 0  # rows and labels whose text is empty
    empty_labels: int = 0
    removed: bool = False  # whether these rows were left out
    folder: Path = Path()


def split_by_hash(rows: Iterable[Row], test_share: float) -> tuple[list[Row], list[Row]]:
    """Training and test rows by the SHA-256 of the text: the same text always falls into the same split."""
    splits: tuple[list[Row], list[Row]] = [], []
    for row in rows:
        digest = int.from_bytes(sha256(row.text.encode("utf-8", "surrogatepass")).digest()[:8], "big")
        splits[digest < test_share * 2**64].append(row)
    return splits


def write_dataset(
    train: Iterable[Row],
    test: Iterable[Row],
    folder: Path,
    source: str,
    label_texts: dict[str, str] | None = None,
    deduplicate: bool = False,
    replace: bool = False,
) -> Imported:
    """Write `folder` whole or not at all, with `replace` in place of an older dataset.

    Without `label_texts` a label's key is its text.

    With `deduplicate` rows with the text of an earlier row are left out, of the test split also those with a text of
    the training split; their labels are added to those of the earlier row of their split.
    """
    report = Imported(removed=deduplicate, folder=folder)
    ids = {key: number for number, key in enumerate(label_texts or ())}
    seen: set[str] = set()
    splits = []
    for rows in (train, test):
        targets = [(row, _label_ids(row, ids, label_texts)) for row in rows]
        splits.append(_unique(targets, seen, report, deduplicate))
        seen = {row.text for row, _ in splits[0]}
    report.train, report.test, report.labels = len(splits[0]), len(splits[1]), len(ids)
    report.unlabelled_train, report.unlabelled_test = (sum(not labels for _, labels in rows) for rows in splits)
    if not (report.train and report.test and report.labels):
        sizes = f"{report.train} training rows, {report.test} test rows and {report.labels} labels"
        raise XMCBenchError(f"{source}: found {sizes}, expected some of each")
    check_sizes(report, folder.name, source)
    texts = [label_texts[key] if label_texts else key for key in ids]
    report.empty_rows = sum(not row.text.strip() for split in splits for row, _ in split)
    report.empty_labels = sum(not text.strip() for text in texts)
    train_lines, test_lines = (({"title": row.text, "target_ind": labels} for row, labels in rows) for rows in splits)
    with new_folder(folder, replace) as made:
        try:
            card = f"source: {json.dumps(source)}\n"
            write_json_layout(made, train_lines, test_lines, ({"title": text} for text in texts), {CARD_FILE: card})
        except UnicodeEncodeError as error:
            rows = (row for split in splits for row, _ in split)
            where = next((row.where for row in rows if HALF.search("".join((row.text, *row.labels)))), source)
            raise XMCBenchError(f"{where}: found half a surrogate pair, expected valid Unicode") from error
    return report


def _label_ids(row: Row, ids: dict[str, int], label_texts: dict[str, str] | None) -> list[int]:
    for key in row.labels:
        if label_texts is None:
            ids.setdefault(key, len(ids))
        elif key not in ids:
            near = suggest(key, list(ids)[:10_000])
            raise XMCBenchError(f"{row.where}: found the label {key!r}, which has no text{near}")
    return sorted({ids[key] for key in row.labels})


def _unique(
    targets: list[tuple[Row, list[int]]], elsewhere: set[str], report: Imported, deduplicate: bool
) -> list[tuple[Row, list[int]]]:
    """The rows that stay. Repeated texts, and those that are `elsewhere`, are counted in `report`."""
    kept = [(row, labels) for row, labels in targets if row.text not in elsewhere]
    report.shared += len(targets) - len(kept)
    if not deduplicate:
        kept = targets
    first: dict[str, tuple[Row, list[int]]] = {}
    for row, labels in kept:
        earlier, others = first.get(row.text, (row, []))
        first[row.text] = earlier, sorted({*others, *labels})
    report.repeated += len(kept) - len(first)
    return list(first.values()) if deduplicate else kept


Lines = Iterable[Mapping[str, Any]]


def write_json_layout(folder: Path, train: Lines, test: Lines, labels: Lines, more: Mapping[str, str]) -> None:
    """Write a dataset into `folder`; `more` are the contents of further files by name, of the card among them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in (("trn", train), ("tst", test), ("lbl", labels)):
        with (folder / f"{name}.json").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    for name, content in more.items():
        (folder / name).write_text(content, encoding="utf-8")


_SUFFIX = 40  # bytes that temporary names and the names of prepared copies add to that of a dataset


def check_name(name: str) -> None:
    """Raise XMCBenchError unless a folder `name` of the data directory is what `load(name)` reads."""
    plain = name.isprintable() and name == name.strip() and "/" not in name and "\\" not in name
    if not (plain and name and name[0] not in ".-" and len(os.fsencode(name)) <= LONGEST_NAME - _SUFFIX):
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


def check_removable(folder: Path) -> None:
    """Raise XMCBenchError unless `folder` is a dataset and holds nothing else."""
    if folder.is_symlink() or not folder.is_dir():
        raise XMCBenchError(f"{folder}: found no folder of a dataset")
    known = formats.file_names() | {CARD_FILE}
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
