"""The formats that `xmcbench datasets import` reads: the importers of this room, which know the command's options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

from xmcbench.data.bag_of_words import check_has_texts
from xmcbench.data.importer import Imported, Importer, Row
from xmcbench.errors import shown
from xmcbench.plugins.registry import calling
from xmcbench_plugins.datasets.exporting import import_layout
from xmcbench_plugins.datasets.importing.annif import read_annif
from xmcbench_plugins.datasets.importing.beir import read_beir
from xmcbench_plugins.datasets.importing.hugging_face import read_hugging_face
from xmcbench_plugins.datasets.importing.line_formats import read_fasttext, read_libmultilabel, read_pecos
from xmcbench_plugins.datasets.importing.options import Options
from xmcbench_plugins.datasets.importing.records import suffix_of
from xmcbench_plugins.datasets.importing.rows import look_at_separator, read_rows
from xmcbench_plugins.datasets.importing.vocabulary import read_label_texts
from xmcbench_plugins.datasets.inspection import Report


@dataclass(frozen=True)
class Read:
    """The rows of both splits, and the text of each label by its key; without texts a label's key is its text.

    `by_hash` tells whether a hash of the texts dealt the rows of one file to the splits.
    """

    train: list[Row]
    test: list[Row]
    label_texts: dict[str, str] | None
    by_hash: bool = False


class FileFormat(Importer):
    """An importer that takes the options of the command, and reports what is suspicious about the files."""

    def read_with(self, path: Path, options: Options, report: Report) -> Read:
        """The rows in `path`. What is suspicious is added to `report`; what cannot be read raises XMCBenchError."""
        raise NotImplementedError

    def read(self, path: Path) -> Mapping[str, Iterable[Row]]:
        """The rows of both splits without any option; their labels are keys."""
        read = self.read_with(path, Options(), Report())
        return {"train": read.train, "test": read.test}


class RowFormat(FileFormat):
    """A format whose files hold rows: two files are the splits, or a hash of the texts divides one."""

    rows: ClassVar[Callable[[Path, Options, Report], Iterator[Row]]]  # of one file

    def read_with(self, path: Path, options: Options, report: Report) -> Read:
        texts = _given_texts(options, report)
        return _read_files(path, options, lambda file: type(self).rows(file, options, report), texts)


def _table_rows(path: Path, options: Options, report: Report) -> Iterator[Row]:
    if suffix_of(path) in ("", ".txt", ".svm", ".libsvm"):
        check_has_texts(path)
    return read_rows(path, options, report)


class Table(RowFormat):
    name, rows = "table", _table_rows
    summary = "CSV, TSV, JSON, Parquet or Arrow: a row for each text, or for each pair of a text and a label"

    def read_with(self, path: Path, options: Options, report: Report) -> Read:
        read = super().read_with(path, options, report)
        look_at_separator([*read.train, *read.test], options, report, str(path))
        return read


class Pecos(RowFormat):
    name, summary, rows = "pecos", "text of PECOS: labels, a tab, the text", read_pecos


class FastText(RowFormat):
    name, summary, rows = "fasttext", "fastText: each label with __label__ before it", read_fasttext


class LibMultiLabel(RowFormat):
    name, summary, rows = "libmultilabel", "LibMultiLabel: labels, a tab, the text", read_libmultilabel


class Annif(FileFormat):
    name = "annif"
    summary = "a corpus of Annif: lines with subjects, or a folder of texts"

    def read_with(self, path: Path, options: Options, report: Report) -> Read:
        texts = _given_texts(options, report)
        return _read_files(path, options, lambda file: read_annif(file, options, report, texts), texts)


class Beir(FileFormat):
    name = "beir"
    summary = "a folder of BEIR: queries, documents as labels, relevant pairs"

    def read_with(self, path: Path, options: Options, report: Report) -> Read:
        splits, texts = read_beir(path, options, report)
        return Read(list(splits["train"]), list(splits["test"]), texts)


class HuggingFace(FileFormat):
    name = "hf"
    summary = "a folder of the Hugging Face hub, or one that `save_to_disk` wrote"

    def read_with(self, path: Path, options: Options, report: Report) -> Read:
        texts = _given_texts(options, report)
        found = read_hugging_face(path, options, report)
        if not texts and found.class_names:
            texts = {str(number): name for number, name in enumerate(found.class_names)}
        read = Read(list(found.splits["train"]), list(found.splits["test"]), texts)
        look_at_separator([*read.train, *read.test], options, report, str(path))
        return read


class RepositoryLayout(Importer):
    name = "layout"
    summary = "a folder in a layout of the Extreme Classification Repository"

    def write(self, path: Path, folder: Path) -> Imported:
        return import_layout(path, folder)


FORMATS = (Table, Beir, HuggingFace, Annif, Pecos, FastText, LibMultiLabel, RepositoryLayout)


def read_plugin(importer: Importer, path: Path, options: Options, report: Report) -> Read:
    """The rows that an importer of a plugin reads; `--label-texts` has the texts of their labels."""
    texts = _given_texts(options, report)
    with calling("importer", importer.name):
        parts = importer.read(path)
        if not isinstance(parts, Mapping) or set(parts) != {"train", "test"}:
            found = sorted(map(str, parts)) if isinstance(parts, Mapping) else parts
            raise TypeError(f"read returned {shown(found)}, expected a dictionary with the parts train and test")
        rows = {part: [_checked(row) for row in parts[part]] for part in parts}
    return Read(rows["train"], rows["test"], texts)


def _checked(row: Any) -> Row:
    """A row of a plugin. Raises TypeError where its parts are of other types than a `Row` says."""
    if not isinstance(row, Row):
        raise TypeError(f"read yielded {shown(row)}, expected an xmcbench.data.Row")
    if not isinstance(row.text, str):
        raise TypeError(f"{row.where}: the text is {shown(row.text)}, expected a str")
    if not isinstance(row.labels, list | tuple) or not all(isinstance(label, str) for label in row.labels):
        raise TypeError(f"{row.where}: the labels are {shown(row.labels)}, expected a list of str")
    return row


def _given_texts(options: Options, report: Report) -> dict[str, str] | None:
    """The texts of the labels in the file that the user named, if one was."""
    return read_label_texts(options.label_texts, options, report) if options.label_texts else None


def _read_files(
    path: Path, options: Options, read: Callable[[Path], Iterator[Row]], texts: dict[str, str] | None
) -> Read:
    """Training and test rows: of two files, or of one by a hash of their texts."""
    if (test := options.test) is not None:
        return Read(list(read(path)), list(read(test)), texts)
    return Read(*split_by_hash(read(path), options.test_share), texts, by_hash=True)


def split_by_hash(rows: Iterator[Row], test_share: float) -> tuple[list[Row], list[Row]]:
    """Training and test rows by the SHA-256 of the text: the same text always falls into the same split."""
    splits: tuple[list[Row], list[Row]] = [], []
    bound = test_share * 2**64
    for row in rows:
        digest = sha256(row.text.encode("utf-8", "surrogatepass")).digest()
        splits[int.from_bytes(digest[:8], "big") < bound].append(row)
    return splits
