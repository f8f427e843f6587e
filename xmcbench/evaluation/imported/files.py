"""Files of predictions, whichever of the layouts they are in: the first bytes tell."""

from __future__ import annotations

from pathlib import Path

from xmcbench.data.sparse_text import read_rows
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.imported.arrays import read_arrays
from xmcbench.evaluation.imported.entries import Entries, Expected
from xmcbench.evaluation.imported.parquet import read_parquet
from xmcbench.files.regular import open_regular
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
