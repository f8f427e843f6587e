"""Files in a format become rows of a training and a test split, with the texts of labels where there are some."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from xmcbench.data.bag_of_words import check_has_texts
from xmcbench.data.importing.annif import read_annif
from xmcbench.data.importing.beir import read_beir
from xmcbench.data.importing.hugging_face import read_hugging_face
from xmcbench.data.importing.importer import Importer
from xmcbench.data.importing.line_formats import read_fasttext, read_libmultilabel, read_pecos
from xmcbench.data.importing.options import Options
from xmcbench.data.importing.records import suffix_of
from xmcbench.data.importing.rows import Row, look_at_separator, read_rows
from xmcbench.data.importing.vocabulary import read_label_texts
from xmcbench.data.inspection import Report


@dataclass(frozen=True)
class Read:
    """The rows of both splits, and the text of each label by its key; without texts a label's key is its text."""

    train: list[Row]
    test: list[Row]
    label_texts: dict[str, str] | None


def read_format(path: Path, format: str, options: Options, report: Report) -> Read:
    """The rows in `path`. What is suspicious is added to `report`; what cannot be read raises XMCBenchError."""
    if format == "beir":
        splits, texts = read_beir(path, options, report)
        return Read(list(splits["train"]), list(splits["test"]), texts)
    label_texts = read_label_texts(options.label_texts, options, report) if options.label_texts else None
    if format == "hf":
        found = read_hugging_face(path, options, report)
        names = dict(enumerate(found.class_names)) if found.class_names else None
        read = Read(
            list(found.splits["train"]),
            list(found.splits["test"]),
            label_texts or (None if names is None else {str(number): name for number, name in names.items()}),
        )
    else:
        read = _split(path, _reader(format, options, report, label_texts), options, label_texts)
    if format in ("table", "hf"):
        look_at_separator([*read.train, *read.test], options, report, str(path))
    return read


def read_plugin(importer: Importer, path: Path, options: Options, report: Report) -> Read:
    """The rows that an importer of a plugin reads; `--label-texts` has the texts of their labels."""
    label_texts = read_label_texts(options.label_texts, options, report) if options.label_texts else None
    rows = importer.read(path)
    return Read(list(rows["train"]), list(rows["test"]), label_texts)


def _reader(
    format: str, options: Options, report: Report, label_texts: dict[str, str] | None
) -> Callable[[Path], Iterator[Row]]:
    """What reads the rows of one file."""
    if format == "annif":
        return lambda path: read_annif(path, options, report, label_texts)
    lines = {"pecos": read_pecos, "fasttext": read_fasttext, "libmultilabel": read_libmultilabel}
    if format in lines:
        return lambda path: lines[format](path, options, report)

    def table(path: Path) -> Iterator[Row]:
        if suffix_of(path) in ("", ".txt", ".svm", ".libsvm"):
            check_has_texts(path)
        return read_rows(path, options, report)

    return table


def _split(
    path: Path,
    read: Callable[[Path], Iterator[Row]],
    options: Options,
    label_texts: dict[str, str] | None,
) -> Read:
    """The rows of two files, or of one by a hash of their texts."""
    if (test := options.test) is not None:
        return Read(list(read(path)), list(read(test)), label_texts)
    return Read(*split_by_hash(read(path), options.test_share), label_texts)


def split_by_hash(rows: Iterator[Row], test_share: float) -> tuple[list[Row], list[Row]]:
    """Training and test rows by the SHA-256 of the text: the same text always falls into the same split."""
    splits: tuple[list[Row], list[Row]] = [], []
    bound = test_share * 2**64
    for row in rows:
        digest = sha256(row.text.encode("utf-8", "surrogatepass")).digest()
        splits[int.from_bytes(digest[:8], "big") < bound].append(row)
    return splits
