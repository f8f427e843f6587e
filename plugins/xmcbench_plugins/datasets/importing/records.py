"""The records of tables: CSV, TSV, JSON, Parquet and Arrow files, plain or compressed, each record after its place.

Every error names the file, the row and the column. Rows count from 1, without the header.
"""

from __future__ import annotations

import csv
import io
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TextIO, TypeVar

from xmcbench.data.text_files import open_binary
from xmcbench.errors import UnknownNameError, XMCBenchError, import_extra, shown, suggest
from xmcbench.files.regular import repeated, with_names_once
from xmcbench_plugins.datasets.importing.encodings import find_encoding
from xmcbench_plugins.datasets.importing.options import Options
from xmcbench_plugins.datasets.inspection import Kind, Report, Severity

MAX_FIELD = 1 << 20  # characters
MAX_LINES_WITHIN = 10_000  # lines within fields that are looked at
DELIMITERS = ",;\t|"
TABS = (".tsv", ".tab")
JSON_FILES = (".jsonl", ".json", ".ndjson")
RDF_ENDINGS = (".ttl", ".nt", ".rdf", ".jsonld")  # of a vocabulary
COMPRESSED = (".gz", ".xz")
# What people have in place of a table, and what makes one of it.
OTHERS = {
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "save the sheet as CSV UTF-8"),
    **dict.fromkeys((".pkl", ".pickle", ".joblib"), "a pickle can run any code; DataFrame.to_parquet writes a table"),
    ".feather": "DataFrame.to_parquet writes a table",
    **dict.fromkeys((".zip", ".bz2", ".zst", ".7z", ".tar", ".tgz", ".rar"), "unpack it"),
    ".txt": "--format says what its lines are: annif, fasttext, libmultilabel or pecos",
}
POINTER = b"version https://git-lfs"
# How files begin that are no text, whatever their names say, and what mends it.
BINARY = {
    b"\x1f\x8b": "gzip: expected a name that ends in .gz",
    b"\xfd7zXZ": "xz: expected a name that ends in .xz",
    b"PK\x03\x04": "a zip archive, as Excel's files are: unpack it, or save the sheet as CSV UTF-8",
    b"BZh": "bzip2: unpack it",
    b"\x28\xb5\x2f\xfd": "zstandard: unpack it",
    b"PAR1": "Parquet: expected a name that ends in .parquet",
    b"ARROW1": "Arrow: expected a name that ends in .arrow",
    b"\xd0\xcf\x11\xe0": "an old Excel file: save the sheet as CSV UTF-8",
    b"SQLite format 3": "a SQLite database, expected a table as text",
    b"%PDF": "a PDF document, expected text",
    POINTER: "a pointer to a file that was not downloaded: `git lfs pull` gets it",
}
_DECODER = json.JSONDecoder(object_pairs_hook=with_names_once)  # `json.loads` would make one for each line
_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?\s*')  # as Excel writes and reads it

T = TypeVar("T")


def suffix_of(path: Path) -> str:
    """The ending of a file's name in lower case, without that of a compression."""
    return Path(path.stem if path.suffix.lower() in COMPRESSED else path.name).suffix.lower()


def check_file(path: Path) -> None:
    """Raise XMCBenchError unless `path` is a file. The message has the nearest names beside it."""
    if path.is_dir():
        raise XMCBenchError(f"{path}: found a folder, expected a file")
    if not path.is_file():
        beside = path.parent.iterdir() if path.parent.is_dir() else ()
        near = suggest(path.name, (other.name for other in beside if other.is_file()))
        raise XMCBenchError(f"{path}: found no such file{near}")


def check_is_text(path: Path) -> None:
    """Raise XMCBenchError where what a file holds, unpacked if its name says so, is not text but a known format."""
    with open_binary(path) as opened:
        start = opened.read(max(map(len, BINARY)))
    for begin, found in BINARY.items():
        if start.startswith(begin):
            raise XMCBenchError(f"{path}: found {found}")


def numbered(
    path: Path, parse: Callable[[TextIO], Iterable[T]], options: Options, report: Report
) -> Iterator[tuple[str, T]]:
    """What `parse` finds in a text file, plain or compressed, each after its place.

    What goes wrong becomes an XMCBenchError of one line, with the file and the row.
    """
    row, start = 1, f"{path}: row "
    try:
        check_file(path)
        check_is_text(path)
        encoding = find_encoding(path, options, report)
        with open_binary(path) as opened:
            for found in parse(io.TextIOWrapper(opened, encoding, newline="")):
                yield f"{start}{row}", found
                row += 1
    except LookupError as error:
        raise XMCBenchError(f"{path}: {error}, expected the name of an encoding") from error
    except (OSError, EOFError, ValueError, RecursionError, csv.Error, zlib.error, lzma.LZMAError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise XMCBenchError(f"{path}: row {row}: {reason}") from error


def tab_separated(path: Path, options: Options, report: Report) -> Iterator[tuple[str, tuple[str, str | None]]]:
    """What stands before and after the first tab of each line; None for the latter where there is no tab."""

    def pairs(file: TextIO) -> Iterator[tuple[str, str | None]]:
        for line in file:
            first, tab, rest = line.rstrip("\r\n").partition("\t")
            yield first, rest if tab else None

    return numbered(path, pairs, options, report)


def lines_of(path: Path, options: Options, report: Report) -> Iterator[tuple[str, str]]:
    """The lines of a text file without what ends them, each after its place."""
    return ((where, line.rstrip("\r\n")) for where, line in numbered(path, iter, options, report))


def read_records(
    path: Path, options: Options, report: Report, columns: Sequence[str] = ()
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The records of a table by column, each after its place; the format follows from the ending of the file's name.

    Where the format allows it only `columns` are read. A column or key that is there twice is an error.
    """
    check_file(path)
    suffix = suffix_of(path)
    if suffix == ".csv" or suffix in TABS:
        return numbered(path, _Table(path, options, report, columns).records, options, report)
    if suffix in JSON_FILES:
        return numbered(path, _json_records, options, report)
    if suffix in (".parquet", ".arrow"):
        return _read_columnar(path, suffix, columns)
    hint = f": {OTHERS[suffix]}" if suffix in OTHERS else ""
    also = f", or of a vocabulary {', '.join(RDF_ENDINGS)}" if options.label_texts == path else ""
    raise XMCBenchError(
        f"{path}: found the ending {suffix!r}, expected .csv, .tsv, .jsonl, .json, .parquet or .arrow{also}{hint}"
    )


def first_records(path: Path, options: Options, count: int, columns: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The first records of a table; what is suspicious about them is said where all of it is read."""
    return [record for _, record in islice(read_records(path, options, Report(), columns), count)]


class _Table:
    """A CSV or TSV file: how its fields are separated and quoted, and what its quotation marks may have done."""

    def __init__(self, path: Path, options: Options, report: Report, columns: Sequence[str]) -> None:
        self._path, self._report, self._columns = path, report, columns
        self._tabs = suffix_of(path) in TABS
        self._quoted = options.quoting("none" if self._tabs else "double") == "double"

    def records(self, file: TextIO) -> Iterator[dict[str, Any]]:
        csv.field_size_limit(MAX_FIELD)
        delimiter = "\t" if self._tabs else self._delimiter(file)
        quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if self._quoted else csv.QUOTE_NONE
        reader = csv.reader(file, delimiter=delimiter, strict=True, quoting=quoting)
        try:
            header = [name or f"column {number}" for number, name in enumerate(next(reader, []), start=1)]
            self._check_header(header)
            places = [header.index(name) for name in self._columns if name in header]
            wrapped: list[tuple[int, str]] = []  # row and field, of those that quotation marks enclose
            lines, row = reader.line_num, 0
            for row, fields in enumerate(reader, start=1):
                if len(fields) != len(header):
                    raise ValueError(f"found {len(fields)} fields, expected {len(header)}{self._hint(fields)}")
                if self._quoted:
                    if reader.line_num - lines > 1:
                        self._look_within(header, fields, delimiter, row)
                    lines = reader.line_num
                else:
                    wrapped += [(row, fields[place]) for place in places if fields[place][:1] == '"']
                yield dict(zip(header, fields, strict=True))
        except csv.Error as error:
            raise csv.Error(f"{error}{self._unclosed()}") from error
        self._look_at_marks(wrapped, row)

    def _check_header(self, header: Sequence[str]) -> None:
        if problem := repeated(header):
            raise XMCBenchError(f"{self._path}: {problem}")
        plain = {name.strip('"') for name in header}
        if not self._quoted and set(self._columns) & (plain - set(header)):
            raise XMCBenchError(
                f"{self._path}: found the column {shown(header[0])}, expected names without quotation marks, or "
                "--quoting double"
            )

    def _hint(self, fields: Sequence[str]) -> str:
        if self._quoted:
            return ""
        marks = "; --quoting double reads fields that quotation marks enclose" if any('"' in f for f in fields) else ""
        return f": a field holds a tab or a line break{marks}" if self._tabs else marks

    def _unclosed(self) -> str:
        if not self._quoted:
            return ""
        return (
            ": a quotation mark opens a field in this row and is not closed as in CSV; --quoting none reads quotation "
            "marks as text"
        )

    def _look_within(self, header: Sequence[str], fields: Sequence[str], delimiter: str, row: int) -> None:
        """Keep the lines within fields that could be rows, which a quotation mark has swallowed."""
        for place, field in enumerate(fields):
            first, *inner = field.split("\n")
            if not inner:
                continue
            last = inner.pop()
            ends = [*fields[:place], *first.rstrip("\r").split(delimiter)]
            if place == len(fields) - 1:  # what stands before the mark is a row but for its last field, with any text
                ends = last.split(delimiter)
            for parts in (ends, *(line.rstrip("\r").split(delimiter) for line in inner)):
                if len(parts) == len(header) and len(self._report.within) < MAX_LINES_WITHIN:
                    self._report.within.append((f"{self._path}: row {row}", dict(zip(header, parts, strict=True))))

    def _look_at_marks(self, wrapped: Sequence[tuple[int, str]], rows: int) -> None:
        """Say where fields that were read as they are seem to be quoted: as a whole, with their own marks doubled."""
        enclosed = [(row, field) for row, field in wrapped if len(field) > 1 and field[-1] == '"']
        doubled = [
            (row, field) for row, field in enclosed if '""' in field[1:-1] and '"' not in field[1:-1].replace('""', "")
        ]
        if doubled or (enclosed and len(enclosed) >= rows):
            row, field = (doubled or enclosed)[0]
            self._report.add(Kind.QUOTED_FIELDS, Severity.GRAVE, len(enclosed), rows, field, f"{self._path}: row {row}")

    def _delimiter(self, file: TextIO) -> str:
        """The delimiter that gives the header the expected columns, else the one that `csv.Sniffer` finds."""
        start = file.read(1 << 16)
        said = _SEPARATOR_LINE.match(start.partition("\n")[0])
        file.seek(0)
        if said:
            file.readline()
            return said[1]
        try:
            sniffed = csv.Sniffer().sniff(start, DELIMITERS).delimiter
        except csv.Error:
            sniffed = ","
        first = start.partition("\n")[0].rstrip("\r")
        fitting = [
            sign for sign in (",", sniffed, *DELIMITERS) if self._columns and set(self._columns) <= _fields(first, sign)
        ]
        delimiter = fitting[0] if fitting else sniffed
        if delimiter != ",":
            self._report.add(Kind.DELIMITER, Severity.NOTE, example=delimiter, place=str(self._path))
        return delimiter


def _fields(line: str, delimiter: str) -> set[str]:
    try:
        return set(next(csv.reader([line.removeprefix("\ufeff")], delimiter=delimiter), []))
    except csv.Error:
        return set()


def _json_records(file: TextIO) -> Iterator[dict[str, Any]]:
    """One object a line, or one list of objects."""
    start = file.read(1)
    file.seek(0)
    if start == "[":
        yield from _json_list(file)
        return
    while line := file.readline(16 * MAX_FIELD):
        if not (content := line.strip()):
            continue
        try:
            record = _DECODER.decode(content)
        except json.JSONDecodeError as error:
            raise ValueError(f"{error.msg} at character {error.colno}, expected a JSON object a line") from error
        yield _object(record)


def _json_list(file: TextIO) -> Iterator[dict[str, Any]]:
    line = file.readline(16 * MAX_FIELD)
    rest = file.read()
    try:
        records = json.loads(line + rest, object_pairs_hook=with_names_once)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at line {error.lineno}, expected a list of JSON objects") from error
    if len(records) != 1 or rest.strip() or isinstance(records[0], dict):
        yield from map(_object, records)
    else:
        yield _object(records)


def _object(record: Any) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise ValueError(f"found {shown(record)}, expected a JSON object a line")
    first = next(iter(record.values()), None)
    if isinstance(first, dict) and all(isinstance(value, dict) for value in record.values()):
        raise ValueError(
            "found an object of objects, expected one object a line, as DataFrame.to_json(path, orient='records', "
            "lines=True) writes them"
        )
    return record


def _read_columnar(path: Path, suffix: str, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    arrow = import_extra("pyarrow", "parquet", f"reading {suffix} files")
    with path.open("rb") as opened:
        if opened.read(len(POINTER)) == POINTER:
            raise XMCBenchError(f"{path}: found a pointer to a file that was not downloaded: `git lfs pull` gets it")
    row = 1
    try:
        file = open_parquet(path) if suffix == ".parquet" else open_arrow(arrow, path)
        names = file.schema_arrow.names if suffix == ".parquet" else file.schema.names
        if problem := repeated(names):
            raise XMCBenchError(f"{path}: {problem}")
        for column in columns:
            if column not in names:
                raise UnknownNameError("column", column, names, str(path))
        chosen = list(dict.fromkeys(columns or names))
        for batch in file.iter_batches(columns=chosen) if suffix == ".parquet" else _batches(file):
            records = batch.select(chosen).to_pylist()
            yield from ((f"{path}: row {number}", record) for number, record in enumerate(records, start=row))
            row += len(records)
    except (arrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise XMCBenchError(f"{path}: rows from {row} on: {str(error).partition(chr(10))[0]}") from error


def open_parquet(path: Path) -> Any:
    """The Parquet file at `path`."""
    return import_extra("pyarrow.parquet", "parquet", "reading Parquet files").ParquetFile(path)


def open_arrow(arrow: Any, path: Path) -> Any:
    """An Arrow stream, as Hugging Face writes it, or an Arrow file (Feather), as others do."""
    with path.open("rb") as opened:
        is_file = opened.read(6) == b"ARROW1"
    opened = path.open("rb")
    return arrow.ipc.open_file(opened) if is_file else arrow.ipc.open_stream(opened)


def _batches(file: Any) -> Iterator[Any]:
    if hasattr(file, "get_batch"):
        return (file.get_batch(number) for number in range(file.num_record_batches))
    return iter(file)
