"""Judgements as a table in a file or on standard output, written row by row, because a store may hold millions."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from itertools import count, islice
from pathlib import Path
from typing import Any, BinaryIO

from xmcbench.errors import UnknownNameError, XMCBenchError, import_extra
from xmcbench.files.atomic import atomic_write
from xmcbench.files.csv_text import cell

COLUMNS = ("document", "label", "answer", "confidence", "teacher", "identity", "prompt")
Rows = Iterable[tuple[Any, ...]]
PARQUET_ROWS = 50_000  # rows in memory while Parquet is written


def writer(form: str, to_file: bool) -> Callable[[Rows, Path | None], int]:
    """The function that writes rows to a file or standard output and returns their number.

    Raises XMCBenchError for an unknown format, or one that cannot be written to standard output.
    """
    writers = {"csv": _csv, "json": _json, "parquet": _parquet}
    if form not in writers:
        raise UnknownNameError("format", form, writers, "--format")
    if form == "parquet" and not to_file:
        raise XMCBenchError("--format parquet: expected a file to write to, --output FILE")

    def write(rows: Rows, output: Path | None) -> int:
        written = count()
        with atomic_write(output) if output else nullcontext(sys.stdout.buffer) as file:
            writers[form]((row for row, _ in zip(rows, written, strict=False)), file)
            file.flush()
        return next(written)

    return write


def _csv(rows: Rows, file: BinaryIO) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    table = csv.writer(text)
    table.writerow(COLUMNS)
    table.writerows(map(cell, row) for row in rows)
    text.detach()


def _json(rows: Rows, file: BinaryIO) -> None:
    """Write a JSON list of objects, one per line."""
    file.write(b"[")
    for number, row in enumerate(rows):
        line = json.dumps(dict(zip(COLUMNS, row, strict=True)), ensure_ascii=False)
        file.write((b",\n" if number else b"\n") + line.encode())
    file.write(b"\n]\n")


def _parquet(rows: Rows, file: BinaryIO) -> None:
    arrow = import_extra("pyarrow", "parquet", "--format parquet")
    parquet = import_extra("pyarrow.parquet", "parquet", "--format parquet")
    fields = [(name, arrow.float32() if name == "confidence" else arrow.string()) for name in COLUMNS]
    schema, iterator = arrow.schema(fields), iter(rows)
    with parquet.ParquetWriter(file, schema) as table:
        while part := list(islice(iterator, PARQUET_ROWS)):
            table.write_table(arrow.table([list(column) for column in zip(*part, strict=True)], schema=schema))
