"""Exports judgements as a table. Rows are streamed, because a store may hold millions."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.files.atomic import atomic_write
from xmcbench.files.csv_text import cell
from xmcbench.plugins.extras import import_extra
from xmcbench.teachers.database import COLUMNS

Rows = Iterable[tuple[Any, ...]]
ROWS = 50_000  # rows in memory while Parquet is written


def writer(form: str, to_file: bool) -> Callable[[Rows, Path | None], int]:
    """The function that writes rows to a file or standard output and returns their number.

    Raises XMCBenchError for an unknown format, or one that cannot be written to standard output.
    """
    writers = {"csv": _csv, "json": _json, "parquet": _parquet}
    if form not in writers:
        raise UnknownNameError("format", form, writers, "--format")
    if form == "parquet" and not to_file:
        raise XMCBenchError("--format parquet: expected a file to write to, --output FILE")
    return writers[form]


def _csv(rows: Rows, output: Path | None) -> int:
    with _opened(output) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        table = csv.writer(text)
        table.writerow(COLUMNS)
        count = 0
        for row in rows:
            table.writerow(map(cell, row))
            count += 1
        text.detach()
    return count


def _json(rows: Rows, output: Path | None) -> int:
    """Write a JSON list of objects, one per line."""
    with _opened(output) as file:
        count = 0
        file.write(b"[")
        for count, row in enumerate(rows, 1):
            line = json.dumps(dict(zip(COLUMNS, row, strict=True)), ensure_ascii=False)
            file.write((",\n" if count > 1 else "\n").encode() + line.encode())
        file.write(b"\n]\n")
    return count


def _parquet(rows: Rows, output: Path | None) -> int:
    arrow = import_extra("pyarrow", "parquet", "--format parquet")
    parquet = import_extra("pyarrow.parquet", "parquet", "--format parquet")
    assert output is not None
    fields = [(name, arrow.float32() if name == "confidence" else arrow.string()) for name in COLUMNS]
    schema = arrow.schema(fields)
    count = 0
    with _opened(output) as file, parquet.ParquetWriter(file, schema) as table:
        iterator = iter(rows)
        while part := list(islice(iterator, ROWS)):
            columns = dict(zip(COLUMNS, zip(*part, strict=True), strict=True))
            table.write_table(arrow.table({name: list(column) for name, column in columns.items()}, schema=schema))
            count += len(part)
    return count


@contextmanager
def _opened(output: Path | None) -> Iterator[BinaryIO]:
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    else:
        with atomic_write(output) as file:
            yield file
