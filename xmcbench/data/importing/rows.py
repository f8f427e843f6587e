"""Rows of a table with a text and its labels: from CSV, TSV, JSON lines, Parquet or Arrow files.

Every error names the file, the row and the column. Rows count from 1, without the header.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import lzma
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from xmcbench.data.blocks import open_binary
from xmcbench.errors import UnknownNameError, XMCBenchError, shown
from xmcbench.files.regular import repeated, with_names_once
from xmcbench.plugins.extras import import_extra

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


@dataclass
class Place:
    """The row of a file that is being read."""

    row: int = 1


@contextmanager
def reading(path: Path) -> Iterator[Place]:
    """What goes wrong in the block becomes an XMCBenchError of one line, with the file and the row that it keeps."""
    place = Place()
    try:
        yield place
    except (OSError, EOFError, ValueError, RecursionError, csv.Error, zlib.error, lzma.LZMAError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise XMCBenchError(f"{path}: row {place.row}: {reason}") from error


def read_rows(path: Path, columns: Columns, encoding: str | None = None) -> Iterator[Row]:
    """The rows of a table. Fields of labels are lists, or texts with `columns.separator` between labels."""
    for number, record in enumerate(read_records(path, encoding, (columns.text, columns.labels)), start=1):
        where = f"{path}: row {number}"
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
    path: Path, encoding: str | None = None, columns: Sequence[str] | None = None
) -> Iterator[dict[str, Any]]:
    """The records of a table by column; its format follows from the suffix of its name.

    Where the format allows it only `columns` are read. A column or key that is there twice is an error.
    """
    if not path.is_file():
        raise XMCBenchError(f"{path}: found no such file")
    suffix = Path(path.stem if path.suffix == ".gz" else path.name).suffix
    if suffix in (".csv", ".tsv"):
        return _read_csv(path, "\t" if suffix == ".tsv" else None, encoding)
    if suffix in (".jsonl", ".json", ".ndjson"):
        return _read_json_lines(path, encoding)
    if suffix in (".parquet", ".arrow"):
        return _read_columnar(path, suffix, columns)
    raise XMCBenchError(f"{path}: found the ending {suffix!r}, expected .csv, .tsv, .jsonl, .parquet or .arrow")


def _read_csv(path: Path, delimiter: str | None, encoding: str | None) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(MAX_FIELD)
    with reading(path) as place, open_text(path, encoding) as file:
        reader = csv.reader(file, delimiter=delimiter or _delimiter(path, file), strict=True)
        header = [name or f"column {number}" for number, name in enumerate(next(reader, []), start=1)]
        _check_once(header, str(path))
        for fields in reader:
            if len(fields) != len(header):
                raise XMCBenchError(f"{path}: row {place.row}: found {len(fields)} fields, expected {len(header)}")
            yield dict(zip(header, fields, strict=True))
            place.row += 1


def _check_once(names: Sequence[str], where: str) -> None:
    """Raise where a name is there twice: one of two values would be lost."""
    if problem := repeated(names):
        raise XMCBenchError(f"{where}: {problem}")


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


def _read_json_lines(path: Path, encoding: str | None) -> Iterator[dict[str, Any]]:
    with reading(path) as place, open_text(path, encoding) as file:
        while line := file.readline(16 * MAX_FIELD):
            record = json.loads(line.rstrip(), object_pairs_hook=with_names_once)
            if not isinstance(record, dict):
                raise XMCBenchError(f"{path}: row {place.row}: found {shown(record)}, expected a JSON object")
            yield record
            place.row += 1


def _read_columnar(path: Path, suffix: str, columns: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    arrow = import_extra("pyarrow", "parquet", f"reading {suffix} files")
    row = 1
    try:
        if suffix == ".parquet":
            file = import_extra("pyarrow.parquet", "parquet", "reading Parquet files").ParquetFile(path)
            names = file.schema_arrow.names
        else:
            file = arrow.ipc.open_stream(path.open("rb"))
            names = file.schema.names
        _check_once(names, str(path))
        for column in columns or ():
            if column not in names:
                raise UnknownNameError("column", column, names, str(path))
        chosen = list(dict.fromkeys(columns or names))
        for batch in file.iter_batches(columns=chosen) if suffix == ".parquet" else file:
            records = batch.select(chosen).to_pylist()
            yield from records
            row += len(records)
    except (arrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise XMCBenchError(f"{path}: rows from {row} on: {str(error).partition(chr(10))[0]}") from error


def open_text(path: Path, encoding: str | None = None) -> TextIO:
    """A text file, plain or .gz. Without `encoding` it is detected, and the log says so where it is not UTF-8."""
    opened = open_binary(path)
    try:
        encoding = encoding or _encoding(path, opened.read(SAMPLE_BYTES))
        opened.seek(0)
        return io.TextIOWrapper(opened, encoding, newline="")
    except BaseException as error:
        opened.close()
        if isinstance(error, LookupError):  # no such encoding
            raise XMCBenchError(f"{path}: {error}, expected the name of an encoding") from error
        raise


def _encoding(path: Path, sample: bytes) -> str:
    try:
        sample.decode("utf-8")
        return "utf-8-sig"
    except UnicodeDecodeError as error:
        if error.start >= len(sample) - 3 and len(sample) == SAMPLE_BYTES:  # a character cut by the end of the sample
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
