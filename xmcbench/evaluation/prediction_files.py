"""Files of predictions that another program wrote: the scored labels that they hold, checked against a dataset.

The first bytes of a file tell its layout. `.npz`: a matrix as `scipy.sparse.save_npz` writes it, or `indices` and
`scores`. `.npy`: a matrix of scores, or of ranked labels. Parquet: lists `indices` and `scores`, a row per test query
in order; or numbers `query`, `label` and `score`, a row per entry in any order. Else text: a TREC run, or `label:score`
pairs.

T test queries, L labels, K ranked labels of a query.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from xmcbench.data.text_files import open_binary, read_blocks, read_rows
from xmcbench.errors import XMCBenchError, import_extra
from xmcbench.evaluation.entries import Entries, Expected
from xmcbench.evaluation.prediction_arrays import numbers, of_array, of_ranked_rows
from xmcbench.files.arrays import array_names, open_npz, read_array, read_csr, read_npy
from xmcbench.files.regular import open_regular
from xmcbench.trial.predictions import Predictions

ENTRY_BYTES = 48  # of text, at most on average: a label, a colon, a score and a blank
RUN_BYTES = 256  # of a line of a TREC run, at most on average
_RUN_LINE = re.compile(rb"\s*\S+\s+Q0\s+\S+\s+[+-]?\d+\s+[^\s:]+\s+\S+\s*", re.IGNORECASE)
_RUN_FIELDS = 6  # query, Q0, document, rank, score, name of the run


def read_predictions(path: Path, num_queries: int, num_labels: int, k: int) -> Predictions:
    """The best `k` labels of each query that a file holds, ranked; short rows are padded. Raises as `read_entries`."""
    return read_entries(path, num_queries, num_labels).ranked(k).predictions()


def read_entries(path: Path, num_queries: int, num_labels: int) -> Entries:
    """The scored labels that a file holds for `num_queries` queries, checked but not ranked.

    Raises XMCBenchError that names the file, and query or line, where it does not fit the dataset.
    """
    expected = Expected(str(path), num_queries, num_labels)
    try:
        with open_regular(path) as file:
            magic = file.read(6)
    except OSError as problem:
        raise XMCBenchError(f"{path}: cannot read: {problem.strerror or problem}") from problem
    readers = {b"PK\x03\x04": _read_npz, b"PAR1": _read_parquet, b"\x93NUM": _read_npy}
    entries = readers.get(magic[:4], _read_text)(path, expected)
    entries.check(expected)
    return entries


def _read_text(path: Path, expected: Expected) -> Entries:
    """A TREC run; or `label:score` pairs, a line per query, after a header `queries labels` or without one."""
    try:
        with open_binary(path) as file:
            first = file.readline(1 << 12)
    except (OSError, EOFError):
        first = b""  # said below, with the line
    if _RUN_LINE.fullmatch(first):
        return _read_run(path, expected)
    most_bytes = (expected.max_entries + expected.num_queries) * ENTRY_BYTES
    rows = read_rows(path, expected.num_labels, max_bytes=most_bytes)
    if rows.header:
        expected.check_shape(rows.header)
    expected.check_rows(len(rows.counts))
    return Entries.of_rows(rows.counts, rows.labels, rows.values)


def _read_run(path: Path, expected: Expected) -> Entries:
    """A TREC run: `query Q0 label rank score name` a line, in any order. Labels rank as the run says, not by score."""
    parts: list[np.ndarray] = []
    for block in read_blocks(path, max_bytes=expected.max_entries * RUN_BYTES):
        fields = [line.split() for line in block.data.tobytes().split(b"\n")[:-1] if line.strip()]
        lengths = np.array([len(line) for line in fields])
        if (wrong := lengths != _RUN_FIELDS).any():
            line = block.first_line + int(np.argmax(wrong))
            raise expected.error(
                f"line {line}: found {lengths[wrong][0]} fields, expected query, Q0, label, rank, score, name"
            )
        table = np.array(fields)
        try:
            parts.append(np.column_stack([table[:, column].astype(np.float64) for column in (0, 2, 3, 4)]))
        except ValueError as problem:
            raise expected.error(
                f"lines from {block.first_line} on: {problem}, expected numbers of test queries and labels, from 0, a "
                "rank and a score"
            ) from problem
    queries, labels, ranks, scores = np.concatenate(parts).T
    if wrong_numbers := [column for column in (queries, labels) if (column != np.rint(column)).any()]:
        raise expected.error(f"found {wrong_numbers[0][0]}, expected whole numbers of test queries and labels, from 0")
    expected.check_entries(len(queries))
    expected.check_queries(queries.astype(np.int64))
    if (again := _repeated(queries, ranks)) is not None:
        query, rank = int(queries[again]), int(ranks[again])
        raise expected.error(f"query {query}: found the rank {rank} twice, expected each rank once")
    return Entries(expected.num_queries, queries.astype(np.int64), labels.astype(np.int64), scores, ranks, "text")


def _repeated(queries: np.ndarray, ranks: np.ndarray) -> int | None:
    """The place of an entry whose query and rank another one has too."""
    order = np.lexsort((ranks, queries))
    same = (np.diff(queries[order]) == 0) & (np.diff(ranks[order]) == 0)
    return int(order[1:][same][0]) if same.any() else None


def _read_npy(path: Path, expected: Expected) -> Entries:
    most = expected.num_queries * max(expected.num_labels, 1)
    return of_array(read_npy(path, "fiub", most), expected)


def _read_npz(path: Path, expected: Expected) -> Entries:
    """The entries of an `.npz` file. Raises XMCBenchError if it is damaged, too large or of another layout."""
    most = max(expected.max_entries, expected.num_queries + 1, expected.num_labels + 1)
    with open_npz(path) as archive:
        names = array_names(archive)
        if names >= {"format", "data", "shape"}:
            indptr, indices, data, shape = read_csr(archive, most, str(path))
            expected.check_shape(shape)
            expected.check_entries(len(data))
            return Entries.of_rows(np.diff(indptr), indices, data)
        for labels in ("indices", "labels"):
            if names >= {labels, "scores"}:
                indices = read_array(archive, labels, "iu", expected.max_entries, str(path))
                scores = read_array(archive, "scores", "fiu", expected.max_entries, str(path))
                return of_ranked_rows(indices, scores, expected)
        if len(names) == 1:
            (name,) = names
            most = expected.num_queries * max(expected.num_labels, 1)
            return of_array(read_array(archive, name, "fiub", most, str(path)), expected)
    raise expected.error(
        f"found the arrays {', '.join(sorted(names)) or 'none'}, expected those of scipy.sparse.save_npz (data, "
        "indices, indptr, shape), or indices and scores, or one matrix"
    )


def _read_parquet(path: Path, expected: Expected) -> Entries:
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
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as problem:
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
    """Rows of lists. Where the scores of each row descend the order is as given; else labels rank by score."""
    expected.check_rows(table.num_rows)
    indices, scores = (table.column(name).combine_chunks() for name in ("indices", "scores"))
    if any(not hasattr(column, "value_lengths") for column in (indices, scores)):
        raise expected.error(f"found columns of {indices.type} and {scores.type}, expected lists")
    counts = [column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False) for column in (indices, scores)]
    if not np.array_equal(*counts):
        query = int(np.argmax(counts[0] != counts[1]))
        raise expected.error(f"query {query}: found {counts[0][query]} indices and {counts[1][query]} scores")
    labels = _integers(indices.flatten(), "indices", expected)
    values = numbers(np.asarray(scores.flatten()), "scores", expected)
    counts_T = counts[0].astype(np.int64)
    within = np.ones(max(len(values) - 1, 0), bool)
    ends = np.cumsum(counts_T)[:-1]
    within[ends[(ends > 0) & (ends < len(values))] - 1] = False  # from the last entry of a row to the first of the next
    descends = not ((values[1:] > values[:-1]) & within).any()
    return Entries.of_rows(counts_T, labels, values, ordered=descends)


def _flat(table: Any, expected: Expected) -> Entries:
    queries, labels = (_integers(table.column(name), name, expected) for name in ("query", "label"))
    expected.check_queries(queries)
    scores = numbers(np.asarray(table.column("score")), "score", expected)
    exact = scores.astype(np.float64)
    return Entries(expected.num_queries, queries, labels, exact, stored_as=str(scores.dtype))


def _integers(column: Any, name: str, expected: Expected) -> np.ndarray:
    values = np.asarray(column)  # missing numbers are NaN
    if values.dtype.kind not in "iu":
        raise expected.error(f"column {name}: found the type {column.type}, expected integers and none missing")
    return values.astype(np.int64)
