"""Rows with a text and its labels: tables (CSV, TSV, JSON lines, Parquet, Arrow), BEIR, Hugging Face, Annif, PECOS.

Every error names the file, the row and the column. Rows count from 1, without the header.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import logging
import lzma
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import Any, TextIO, TypeVar
from xml.parsers import expat

from xmcbench.data.text_files import open_binary
from xmcbench.errors import UnknownNameError, XMCBenchError, import_extra, shown, suggest
from xmcbench.files.regular import repeated, with_names_once

SAMPLE_BYTES = 1 << 20  # from which encoding and delimiter are detected
MAX_FIELD = 1 << 20  # characters
DELIMITERS = ",;\t|"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Row:
    """A text with the keys of its labels; `where` is the place in the file, for error messages."""

    text: str
    labels: list[str]
    where: str


@dataclass(frozen=True)
class Columns:
    """The columns of a table that hold text and labels, and what separates several labels in one field."""

    text: str
    labels: str
    separator: str = ";"

    def __post_init__(self) -> None:
        if not self.separator:
            raise XMCBenchError("--separator: found nothing, expected what stands between labels")
        if self.text == self.labels:
            raise XMCBenchError(f"--text and --labels: found the column {shown(self.text)} twice, expected two columns")


T = TypeVar("T")


def _numbered(
    path: Path, parse: Callable[[TextIO], Iterable[T]], encoding: str | None = None
) -> Iterator[tuple[str, T]]:
    """What `parse` finds in a text file, plain or .gz, each after its place. Without `encoding` it is detected.

    What goes wrong becomes an XMCBenchError of one line, with the file and the row.
    """
    row = 1
    try:
        with open_binary(path) as opened:
            encoding = encoding or _encoding(path, opened.read(SAMPLE_BYTES))
            opened.seek(0)
            for found in parse(io.TextIOWrapper(opened, encoding, newline="")):
                yield f"{path}: row {row}", found
                row += 1
    except LookupError as error:
        raise XMCBenchError(f"{path}: {error}, expected the name of an encoding") from error
    except (OSError, EOFError, ValueError, RecursionError, csv.Error, zlib.error, lzma.LZMAError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise XMCBenchError(f"{path}: row {row}: {reason}") from error


def check_file(path: Path) -> None:
    """Raise XMCBenchError unless `path` is a file. The message has the nearest names beside it."""
    if path.is_dir():
        raise XMCBenchError(f"{path}: found a folder, expected a file")
    if not path.is_file():
        beside = path.parent.iterdir() if path.parent.is_dir() else ()
        near = suggest(path.name, (other.name for other in beside if other.is_file()))
        raise XMCBenchError(f"{path}: found no such file{near}")


def read_rows(path: Path, columns: Columns, encoding: str | None = None) -> Iterator[Row]:
    """The rows of a table. Fields of labels are lists, or texts with `columns.separator` between labels."""
    for where, record in read_records(path, encoding, (columns.text, columns.labels)):
        if not {columns.text, columns.labels} & record.keys():
            found = shown(", ".join(map(str, record)))
            raise XMCBenchError(
                f"{where}: no column {columns.text!r} or {columns.labels!r}, found {found}: expected their names with "
                "--text and --labels, and in a table a first row with names"
            )
        for column in (columns.text, columns.labels):
            if column not in record:
                raise UnknownNameError("column", column, [str(name) for name in record], where)
        text = as_text(record[columns.text], f"{where}, column {columns.text!r}")
        yield Row(text, _labels(record[columns.labels], columns, where), where)


def as_text(value: Any, where: str) -> str:
    """`value` if it is text. Raises XMCBenchError, which begins with `where`."""
    if not isinstance(value, str):
        raise XMCBenchError(f"{where}: found {shown(value)}, expected text")
    return value


def as_key(value: Any, where: str) -> str:
    """`value` as a key: text, or a whole number. Raises XMCBenchError, which begins with `where`."""
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise XMCBenchError(f"{where}: found {shown(value)}, expected text or a whole number")
    return str(value)


def read_records(
    path: Path, encoding: str | None = None, columns: Sequence[str] = ()
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The records of a table by column, each after its place; the format follows from the suffix of the file's name.

    Where the format allows it only `columns` are read. A column or key that is there twice is an error.
    """
    check_file(path)
    suffix = Path(path.stem if path.suffix == ".gz" else path.name).suffix
    if suffix in (".csv", ".tsv"):
        return _numbered(path, lambda file: _csv_records(path, file, suffix == ".tsv"), encoding)
    if suffix in (".jsonl", ".json", ".ndjson"):
        return _numbered(path, _json_records, encoding)
    if suffix in (".parquet", ".arrow"):
        return _read_columnar(path, suffix, columns)
    raise XMCBenchError(f"{path}: found the ending {suffix!r}, expected .csv, .tsv, .jsonl, .parquet or .arrow")


def _csv_records(path: Path, file: TextIO, tabs: bool) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(MAX_FIELD)
    reader = csv.reader(file, delimiter="\t" if tabs else _delimiter(path, file), strict=True)
    header = [name or f"column {number}" for number, name in enumerate(next(reader, []), start=1)]
    _check_once(header, path)
    for fields in reader:
        if len(fields) != len(header):
            raise ValueError(f"found {len(fields)} fields, expected {len(header)}")
        yield dict(zip(header, fields, strict=True))


def _check_once(names: Sequence[str], path: Path) -> None:
    """Raise where a name is there twice: one of two values would be lost."""
    if problem := repeated(names):
        raise XMCBenchError(f"{path}: {problem}")


def _delimiter(path: Path, file: TextIO) -> str:
    """The delimiter that `csv.Sniffer` finds at the start of the file; the log says so where it is no comma."""
    sample = file.read(1 << 16)
    file.seek(0)
    try:
        delimiter = csv.Sniffer().sniff(sample, DELIMITERS).delimiter
    except csv.Error:
        return ","
    if delimiter != ",":
        _log.warning("%s: read with the delimiter %r, which was detected", path, delimiter)
    return delimiter


def _json_records(file: TextIO) -> Iterator[dict[str, Any]]:
    while line := file.readline(16 * MAX_FIELD):
        try:
            record = json.loads(line.rstrip(), object_pairs_hook=with_names_once)
        except json.JSONDecodeError as error:
            raise ValueError(f"{error.msg} at character {error.colno}, expected a JSON object a line") from error
        if not isinstance(record, dict):
            raise ValueError(f"found {shown(record)}, expected a JSON object a line")
        yield record


def _read_columnar(path: Path, suffix: str, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    arrow = import_extra("pyarrow", "parquet", f"reading {suffix} files")
    row = 1
    try:
        if suffix == ".parquet":
            file = import_extra("pyarrow.parquet", "parquet", "reading Parquet files").ParquetFile(path)
            names = file.schema_arrow.names
        else:
            file = arrow.ipc.open_stream(path.open("rb"))
            names = file.schema.names
        _check_once(names, path)
        for column in columns:
            if column not in names:
                raise UnknownNameError("column", column, names, str(path))
        chosen = list(dict.fromkeys(columns or names))
        for batch in file.iter_batches(columns=chosen) if suffix == ".parquet" else file:
            records = batch.select(chosen).to_pylist()
            yield from ((f"{path}: row {number}", record) for number, record in enumerate(records, start=row))
            row += len(records)
    except (arrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise XMCBenchError(f"{path}: rows from {row} on: {str(error).partition(chr(10))[0]}") from error


def _encoding(path: Path, sample: bytes) -> str:
    with suppress(UnicodeDecodeError):  # the end of the sample may cut a character
        codecs.getincrementaldecoder("utf-8")().decode(sample, final=len(sample) < SAMPLE_BYTES)
        return "utf-8-sig"
    from charset_normalizer import from_bytes

    best = from_bytes(sample).best()
    if best is None:
        raise XMCBenchError(f"{path}: found text in an unknown encoding, expected UTF-8 or --encoding")
    _log.warning("%s: read as %s, which was detected; --encoding says otherwise", path, best.encoding)
    return str(best.encoding)


def _labels(value: Any, columns: Columns, where: str) -> list[str]:
    where = f"{where}, column {columns.labels!r}"
    if value is None:
        return []
    if isinstance(value, str):
        parts = value.split(columns.separator)
    elif isinstance(value, list):
        parts = [as_key(part, where) for part in value]
    else:
        raise XMCBenchError(f"{where}: found {shown(value)}, expected text or a list of labels")
    return [label for part in parts if (label := part.strip())]


SEPARATOR = ";"  # where none is given
CANDIDATES = "|,;\t"
NEARLY_ALL = 0.9  # of the rows with labels have one label
SOME = 0.01  # of them have a label with another separator in it


def suspicion(rows: Sequence[Row]) -> tuple[str, str] | None:
    """The separator that labels seem to have, and why; None if nothing is suspicious."""
    labels = [row.labels for row in rows if row.labels]
    single = sum(len(set(row)) == 1 for row in labels)
    if not labels or single < NEARLY_ALL * len(labels):
        return None
    counts = {sign: sum(any(sign in label for label in row) for row in labels) for sign in CANDIDATES}
    sign = max(counts, key=counts.__getitem__)
    if counts[sign] <= SOME * len(labels):
        return None
    example = next(label for row in labels for label in row if sign in label)[:60]
    shares = f"{single / len(labels):.0%} of the rows have one label, and {counts[sign] / len(labels):.0%} have a label"
    return sign, f"{shares} with {sign!r} in it, such as {example!r}"


def check_separator(rows: Sequence[Row], source: str) -> None:
    """Raise XMCBenchError where rows that were split at the default separator seem to have another."""
    if found := suspicion(rows):
        sign, why = found
        raise XMCBenchError(
            f"{source}: {why}: expected --separator {sign!r}, or --separator {SEPARATOR!r} if that is one label"
        )


PREFERRED = "http://www.w3.org/2004/02/skos/core#prefLabel"


def read_beir(directory: Path) -> tuple[dict[str, Iterator[Row]], dict[str, str]]:
    """The splits of a BEIR folder, whose labels are the documents of the corpus, and the text of each document."""
    documents, queries = _texts(directory / "corpus.jsonl"), _texts(directory / "queries.jsonl")
    splits = {split: _read_qrels(directory / "qrels" / f"{split}.tsv", queries) for split in ("train", "test")}
    return splits, documents


def _texts(path: Path) -> dict[str, str]:
    """Title, if there is one, and text of each record by its `_id`."""
    texts: dict[str, str] = {}
    for where, record in read_records(path):
        for name in ("_id", "text"):
            if name not in record:
                raise UnknownNameError("key", name, record, where)
        key = as_key(record["_id"], f"{where}, key '_id'")
        title = as_text(record.get("title") or "", f"{where}, key 'title'")
        text = as_text(record["text"], f"{where}, key 'text'")
        _add(texts, key, f"{title} {text}" if title and text else title or text, where)
    return texts


def _add(texts: dict[str, str], key: str, text: str, where: str) -> None:
    """Enter the text of a new key."""
    if key in texts:
        raise XMCBenchError(f"{where}: found {shown(key)} again, expected each key once")
    texts[key] = text


def _read_qrels(path: Path, queries: dict[str, str]) -> Iterator[Row]:
    relevant: dict[str, list[str]] = defaultdict(list)
    for where, record in read_records(path):
        try:
            query, document, score = record["query-id"], record["corpus-id"], float(record["score"])
        except (KeyError, ValueError) as error:
            raise XMCBenchError(f"{where}: {error}, expected query-id, corpus-id and score") from error
        if not isfinite(score):
            raise XMCBenchError(f"{where}, column 'score': found {score}, expected a finite number")
        if query not in queries:
            raise XMCBenchError(f"{where}, column 'query-id': found {shown(query)}, which is no query")
        if score > 0:
            relevant[query].append(document)
    for query, documents in relevant.items():
        yield Row(queries[query], documents, f"{path}: query {query}")


def read_hugging_face(directory: Path, columns: Columns) -> dict[str, Iterator[Row]]:
    """The train and test splits of a folder that `DatasetDict.save_to_disk` or the hub's Parquet layout wrote."""
    if not directory.is_dir():
        raise XMCBenchError(f"{directory}: found no such folder")
    splits: dict[str, Iterator[Row]] = {}
    for split in ("train", "test"):
        files = sorted([*directory.glob(f"{split}/*.arrow"), *directory.glob(f"**/{split}-*.parquet")])
        if not files:
            raise XMCBenchError(f"{directory}: found no {split} split, expected {split}/*.arrow or {split}-*.parquet")
        splits[split] = chain.from_iterable(read_rows(path, columns) for path in files)
    return splits


def read_annif(path: Path) -> Iterator[Row]:
    """An Annif corpus: a text, a tab, and the subjects' URIs in angle brackets, separated by spaces."""
    for where, (text, rest) in _tab_separated(path):
        subjects = rest.split()
        if wrong := [subject for subject in subjects if not (subject.startswith("<") and subject.endswith(">"))]:
            raise XMCBenchError(f"{where}: found {shown(wrong[0])}, expected URIs in angle brackets")
        yield Row(text, [subject[1:-1] for subject in subjects], where)


def read_pecos(path: Path) -> Iterator[Row]:
    """A PECOS text file: label numbers separated by commas, a tab, and the text."""
    for where, (labels, text) in _tab_separated(path):
        keys = [label for label in labels.split(",") if label]
        if wrong := [key for key in keys if not (key.isascii() and key.isdigit())]:
            raise XMCBenchError(
                f"{where}: found the label {shown(wrong[0])}, expected numbers with commas, a tab, a text"
            )
        yield Row(text, keys, where)


def read_label_texts(path: Path, language: str = "en") -> dict[str, str]:
    """The text of each label by its key.

    SKOS vocabularies (.ttl, .rdf) give preferred labels in `language`. A .txt file has a label text per line, and line
    numbers from 0 are the keys. Of other tables the first column is the key, the second the text.
    """
    check_file(path)
    if path.suffix in (".ttl", ".rdf"):
        return _read_skos(path, language)
    if path.suffix == ".txt":
        return {str(number): line.rstrip("\r\n") for number, (_, line) in enumerate(_numbered(path, iter))}
    texts: dict[str, str] = {}
    if path.suffix == ".tsv":
        for where, (key, text) in _tab_separated(path):
            name = key[1:-1] if key.startswith("<") and key.endswith(">") else key
            _add(texts, name, text.split("\t")[0], where)
        return texts
    for where, record in read_records(path):
        values = list(record.values())
        if len(values) < 2:
            raise XMCBenchError(f"{where}: found {len(values)} columns, expected a key and a text per label")
        _add(texts, as_key(values[0], where), as_text(values[1], where), where)
    return texts


def _read_skos(path: Path, language: str) -> dict[str, str]:
    rdflib = import_extra("rdflib", "skos", "reading SKOS vocabularies")
    if path.suffix == ".rdf":
        _check_entities(path)
    graph = rdflib.Graph()
    try:
        graph.parse(path, format="turtle" if path.suffix == ".ttl" else "xml")
    except Exception as error:  # rdflib's parsers raise errors of many kinds
        raise XMCBenchError(f"{path}: {json.dumps(str(error))[:200]}, expected a SKOS vocabulary") from error
    texts = {
        str(subject): str(label)
        for subject, label in graph.subject_objects(rdflib.URIRef(PREFERRED))
        if label.language in (language, None)
    }
    if not texts:
        raise XMCBenchError(f"{path}: found no skos:prefLabel in {language!r}")
    return texts


def _check_entities(path: Path) -> None:
    """Raise XMCBenchError where an XML file defines an entity by others: a short file could be a text without end."""

    def declared(name: str, is_parameter: bool, value: str | None, *_: object) -> None:
        if is_parameter or value is None or "&" in value:
            raise XMCBenchError(f"{path}: found the entity {shown(name)}, which is made of others, expected plain text")

    begun: list[str] = []
    parser = expat.ParserCreate()
    parser.EntityDeclHandler = declared
    parser.StartElementHandler = lambda name, _: begun.append(name)
    with suppress(expat.ExpatError, OSError), path.open("rb") as file:  # rdflib says what is wrong
        while not begun and (chunk := file.read(1 << 12)):
            parser.Parse(chunk)


def _tab_separated(path: Path) -> Iterator[tuple[str, tuple[str, str]]]:
    def pairs(file: TextIO) -> Iterator[tuple[str, str]]:
        for line in file:
            first, tab, rest = line.rstrip("\r\n").partition("\t")
            if not tab:
                raise ValueError("found no tab, expected two columns separated by a tab")
            yield first, rest

    check_file(path)
    return _numbered(path, pairs)
