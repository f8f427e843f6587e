"""Predictions in Parquet: a row per query with lists, or a row per entry.

Columns `indices` and `scores` are lists, one row per test query in order. Columns `query`, `label` and `score` are
numbers, one row per entry in any order.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from xmcbench.evaluation.imported.entries import Entries, Expected
from xmcbench.plugins.extras import import_extra


def read_parquet(path: Path, expected: Expected) -> Entries:
    """The entries of a Parquet file; its numbers of values are checked before any column is read."""
    pq = import_extra("pyarrow.parquet", "parquet", "reading Parquet")
    arrow = import_extra("pyarrow", "parquet", "reading Parquet")
    try:
        with pq.ParquetFile(path) as file:
            names = set(file.schema_arrow.names)
            next(file.iter_batches(batch_size=1), None)  # raises where metadata are damaged, which `column` aborts at
            _check_size(file.metadata, expected)
            if names >= {"indices", "scores"}:
                return _lists(file.read(["indices", "scores"]), expected)
            if names >= {"query", "label", "score"}:
                return _flat(file.read(["query", "label", "score"]), expected)
    except (arrow.ArrowException, OSError) as problem:
        raise expected.error(f"damaged: {problem}".splitlines()[0]) from problem
    raise expected.error(
        f"found the columns {', '.join(sorted(names))}, expected indices, scores (lists) or query, label, score"
    )


def _check_size(metadata: Any, expected: Expected) -> None:
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    columns = [[group.column(c).num_values for c in range(group.num_columns)] for group in groups]
    for values in zip(*columns, strict=True):
        # A row without labels counts as one value.
        if sum(values) > expected.max_entries + expected.num_queries:
            expected.check_entries(sum(values))


def _lists(table: Any, expected: Expected) -> Entries:
    expected.check_rows(table.num_rows)
    indices, scores = (table.column(name).combine_chunks() for name in ("indices", "scores"))
    counts = [column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False) for column in (indices, scores)]
    if not np.array_equal(*counts):
        query = int(np.argmax(counts[0] != counts[1]))
        raise expected.error(f"query {query}: found {counts[0][query]} indices and {counts[1][query]} scores")
    indptr = np.concatenate([[0], np.cumsum(counts[0], dtype=np.int64)])
    return Entries(indptr, _integers(indices.flatten(), "indices", expected), _floats(scores.flatten()))


def _flat(table: Any, expected: Expected) -> Entries:
    queries, labels = (_integers(table.column(name), name, expected) for name in ("query", "label"))
    if len(wrong := np.flatnonzero((queries < 0) | (queries >= expected.num_queries))):
        row = int(wrong[0])
        raise expected.error(f"row {row}: found query {queries[row]}, expected 0 to {expected.num_queries - 1}")
    order = np.argsort(queries, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(queries, minlength=expected.num_queries))])
    return Entries(indptr, labels[order], _floats(table.column("score"))[order])


def _integers(column: Any, name: str, expected: Expected) -> np.ndarray:
    values = _numbers(column)
    if values.dtype.kind not in "iu":
        raise expected.error(f"column {name}: found the type {column.type}, expected integers and none missing")
    return values.astype(np.int64)


def _floats(column: Any) -> np.ndarray:
    return _numbers(column).astype(np.float64)


def _numbers(column: Any) -> np.ndarray:
    """The values of an Arrow array, or of one in chunks; missing numbers are NaN."""
    return np.asarray(column)
