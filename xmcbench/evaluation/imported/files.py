"""Files of predictions, whichever of the layouts they are in: the first bytes tell.

In `.npz`: a CSR matrix as `scipy.sparse.save_npz` writes it, or `indices` and `scores`. In Parquet: lists `indices` and
`scores`, a row per test query in order; or numbers `query`, `label` and `score`, a row per entry in any order.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from xmcbench.data.sparse_text import read_rows
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.imported.entries import Entries, Expected, from_rows
from xmcbench.files.arrays import array_names, open_npz, read_array
from xmcbench.files.regular import open_regular
from xmcbench.plugins.extras import import_extra
from xmcbench.trial.predictions import Predictions

FORMATS = "npz (CSR, or indices and scores), sparse text, label:score lines, Parquet"


def read_entries(path: Path, num_queries: int, num_labels: int) -> Entries:
    """The scored labels that a file holds for `num_queries` queries, checked but not ranked.

    Raises XMCBenchError that names the file, and query or line, where it does not fit the dataset.
    """
    expected = Expected(path, num_queries, num_labels)
    try:
        with open_regular(path) as file:
            magic = file.read(4)
    except OSError as problem:
        raise XMCBenchError(f"{path}: cannot read: {problem.strerror or problem}") from problem
    if magic == b"PK\x03\x04":
        entries = read_arrays(path, expected)
    elif magic == b"PAR1":
        entries = read_parquet(path, expected)
    else:
        entries = _text(path, expected)
    entries.check(expected)
    return entries


def read_predictions(path: Path, num_queries: int, num_labels: int, k: int) -> Predictions:
    """The best `k` labels of each query that a file holds, ranked; short rows are padded. Raises as `read_entries`."""
    return read_entries(path, num_queries, num_labels).ranked(k)


def _text(path: Path, expected: Expected) -> Entries:
    """`label:score` pairs, a line per query, after a header `queries labels` or without one."""
    rows = read_rows(path, expected.num_labels, max_bytes=expected.max_text_bytes)
    if rows.header:
        expected.check_shape(rows.header)
    expected.check_rows(len(rows.counts))
    return Entries(rows.indptr, rows.labels, rows.values)


def read_arrays(path: Path, expected: Expected) -> Entries:
    """The entries of an `.npz` file. Raises XMCBenchError if it is damaged, too large or of another layout."""
    with open_npz(path) as archive:
        names = array_names(archive)
        if names >= {"indptr", "indices", "data", "shape"}:
            return _matrix(archive, expected)
        for labels in ("indices", "labels"):
            if names >= {labels, "scores"}:
                indices, scores = _array(archive, labels, "iu", expected), _array(archive, "scores", "f", expected)
                return from_rows(indices, scores, expected)
    raise expected.error(
        f"found the arrays {', '.join(sorted(names)) or 'none'}, "
        "expected data, indices, indptr, shape (scipy.sparse.save_npz) or indices, scores"
    )


def _matrix(archive: zipfile.ZipFile, expected: Expected) -> Entries:
    layout = _array(archive, "format", "SU", expected).item()
    layout = layout.decode(errors="replace") if isinstance(layout, bytes) else layout
    if layout != "csr":
        raise expected.error(f"found a sparse matrix of format {layout!r}, expected 'csr': call .tocsr() before saving")
    expected.check_shape(tuple(int(size) for size in _array(archive, "shape", "iu", expected)))
    indptr, indices = (_array(archive, name, "iu", expected).astype(np.int64) for name in ("indptr", "indices"))
    data = _array(archive, "data", "fiub", expected)
    whole = indptr.shape == (expected.num_queries + 1,) and indices.shape == data.shape == (len(data),)
    if not (whole and indptr[0] == 0 and indptr[-1] == len(data) and (np.diff(indptr) >= 0).all()):
        raise expected.error("damaged: indptr, indices and data do not belong together")
    expected.check_entries(len(data))
    return Entries(indptr, indices, data.astype(np.float64))


def _array(archive: zipfile.ZipFile, name: str, kinds: str, expected: Expected) -> np.ndarray:
    return read_array(archive, name, kinds, max(expected.max_entries, expected.num_queries + 1), str(expected.path))


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
