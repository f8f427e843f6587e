"""Rows of a table with a text and its labels: from CSV, TSV, JSON lines, Parquet or Arrow files.

Every error names the file, the row and the column. Rows count from 1, without the header.
"""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from xmcbench.data.blocks import open_binary
from xmcbench.errors import UnknownNameError, XMCBenchError
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


def read_rows(path: Path, columns: Columns, encoding: str | None = None) -> Iterator[Row]:
    """The rows of a table. Fields of labels are lists, or texts with `columns.separator` between labels."""
    for number, record in enumerate(read_records(path, encoding), start=1):
        where = f"{path}: row {number}"
        for column in (columns.text, columns.labels):
            if column not in record:
                raise UnknownNameError("column", column, [str(name) for name in record], where)
        text = record[columns.text]
        if not isinstance(text, str):
            raise XMCBenchError(f"{where}, column {columns.text!r}: found {_short(text)}, expected text")
        yield Row(text, _labels(record[columns.labels], columns, where), where)


def read_records(path: Path, encoding: str | None = None) -> Iterator[dict[str, Any]]:
    """The records of a table by column; its format follows from the suffix of its name."""
    if not path.is_file():
        raise XMCBenchError(f"{path}: found no such file")
    suffix = Path(path.stem if path.suffix == ".gz" else path.name).suffix
    if suffix in (".csv", ".tsv"):
        return _read_csv(path, "\t" if suffix == ".tsv" else None, encoding)
    if suffix in (".jsonl", ".json", ".ndjson"):
        return _read_json_lines(path, encoding)
    if suffix in (".parquet", ".arrow"):
        return _read_columnar(path, suffix)
    raise XMCBenchError(f"{path}: found the ending {suffix!r}, expected .csv, .tsv, .jsonl, .parquet or .arrow")


def _read_csv(path: Path, delimiter: str | None, encoding: str | None) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(MAX_FIELD)
    with open_text(path, encoding) as file:
        delimiter = delimiter or _delimiter(path, file)
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        number = 0
        try:
            header = next(reader, [])
            for number, fields in enumerate(reader, start=1):
                if len(fields) != len(header):
                    raise XMCBenchError(f"{path}: row {number}: found {len(fields)} fields, expected {len(header)}")
                yield dict(zip(header, fields, strict=True))
        except (csv.Error, UnicodeDecodeError, EOFError, OSError) as error:
            raise XMCBenchError(f"{path}: row {number + 1}: {error}") from error


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
    with open_text(path, encoding) as file:
        number = 0
        try:
            while line := file.readline(16 * MAX_FIELD):
                number += 1
                record = json.loads(line.rstrip())
                if not isinstance(record, dict):
                    raise XMCBenchError(f"{path}: row {number}: found {_short(record)}, expected a JSON object")
                yield record
        except (ValueError, RecursionError, EOFError, OSError) as error:
            row = number if isinstance(error, json.JSONDecodeError | RecursionError) else number + 1
            raise XMCBenchError(f"{path}: row {row}: {error}") from error


def _read_columnar(path: Path, suffix: str) -> Iterator[dict[str, Any]]:
    arrow = import_extra("pyarrow", "parquet", f"reading {suffix} files")
    try:
        if suffix == ".parquet":
            parquet = import_extra("pyarrow.parquet", "parquet", "reading Parquet files")
            batches: Iterable[Any] = parquet.ParquetFile(path).iter_batches()
        else:
            batches = arrow.ipc.open_stream(path.open("rb"))
        for batch in batches:
            yield from batch.to_pylist()
    except (arrow.ArrowInvalid, OSError) as error:
        raise XMCBenchError(f"{path}: {str(error).splitlines()[0]}") from error


def open_text(path: Path, encoding: str | None = None) -> TextIO:
    """A text file, plain or .gz. Without `encoding` it is detected, and the log says so where it is not UTF-8."""
    opened = open_binary(path)
    try:
        encoding = encoding or _encoding(path, opened.read(SAMPLE_BYTES))
        opened.seek(0)
        return io.TextIOWrapper(opened, encoding, newline="")
    except (OSError, EOFError, LookupError) as error:
        opened.close()
        raise XMCBenchError(f"{path}: cannot be read ({error})") from error


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
    if isinstance(value, str):
        return [part for raw in value.split(columns.separator) if (part := raw.strip())]
    if isinstance(value, list) and all(isinstance(part, str | int) and not isinstance(part, bool) for part in value):
        return [str(part) for part in value]
    if value is None:
        return []
    raise XMCBenchError(f"{where}, column {columns.labels!r}: found {_short(value)}, expected text or a list of labels")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
