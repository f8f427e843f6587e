"""Predictions that no trial made: read from files of another program, checked, and kept as records of unknown budget.

The first bytes of a file tell its layout. In `.npz`: a CSR matrix as `scipy.sparse.save_npz` writes it, or `indices`
and `scores`. In Parquet: lists `indices` and `scores`, a row per test query in order; or numbers `query`, `label` and
`score`, a row per entry in any order. Else text.

T test queries, L labels, E entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from xmcbench.data.dataset import Dataset
from xmcbench.data.pairs import binary, contains
from xmcbench.data.text_files import read_rows
from xmcbench.errors import XMCBenchError, import_extra
from xmcbench.evaluation.evaluator import Evaluator, Scores, score_predictions, truth_hash
from xmcbench.evaluation.ranking import drop_ignored
from xmcbench.files.arrays import array_names, open_npz, read_array, read_csr
from xmcbench.files.regular import open_regular
from xmcbench.trial.budget import UnknownBudget
from xmcbench.trial.predictions import STORED, Predictions
from xmcbench.trial.provenance import provenance
from xmcbench.trial.record import METRIC_VERSION, Record, Status
from xmcbench.trial.store import PREDICTIONS, RESAMPLED, Store
from xmcbench.trial.trial import Trial


@dataclass(frozen=True)
class Origin:
    """Where predictions come from."""

    method: str  # no plugin has this name
    settings: Mapping[str, Any] = field(default_factory=dict)  # in the record, and in the key
    selection_split: str = "unknown"  # what the settings were chosen by
    file: str = ""  # name of the file that held the predictions


def write_unbudgeted(
    store: Store,
    dataset: Dataset,
    label: str,
    origin: Origin,
    predictions: Predictions,
    scores: Scores,
) -> Record:
    """Keep checked `predictions` for the test queries under `label`, and the record of them.

    The same predictions of the same origin have the same key.
    """
    card = dataset.card
    digest = sha256(np.ascontiguousarray(predictions.indices, "<i4").tobytes())
    digest.update(np.ascontiguousarray(predictions.scores, "<f4").tobytes())
    trial = Trial(
        label=label,
        method=origin.method,
        distribution="none",
        version="0",
        config={**origin.settings, "predictions": digest.hexdigest()},
        dataset=card.name,
        dataset_hash=card.content_hash,
        seed=0,
        budget=UnknownBudget(),
    )
    truth, now = truth_hash(dataset), datetime.now(UTC).isoformat(timespec="seconds")
    record = Record(
        key=trial.key,
        suite=origin.method,
        trial=trial,
        status=Status.OK,
        metrics=scores.metrics,
        intervals=scores.intervals,
        metric_version=METRIC_VERSION,
        selection_split=origin.selection_split,
        digests={
            PREDICTIONS: store.write_predictions(trial.key, predictions, truth),
            RESAMPLED: store.write_resampled(trial.key, scores.resampled, truth),
        },
        truth_hash=truth,
        provenance={**provenance(), **({"predictions": origin.file} if origin.file else {})},
        started=now,
        ended=now,
    )
    store.write_record(record)
    return record


MEAN_ENTRIES = 1000  # per query, at most: what is read is bounded by the dataset, whatever a file claims
ENTRY_BYTES = 48  # of text, at most on average: a label, a colon, a score and a blank


@dataclass(frozen=True)
class Expected:
    """What a dataset lets a file of predictions hold."""

    path: Path
    num_queries: int
    num_labels: int

    @property
    def max_entries(self) -> int:
        """Entries that a file may hold: `MEAN_ENTRIES` per query, or every pair where there are fewer."""
        return self.num_queries * min(self.num_labels, MEAN_ENTRIES)

    def check_entries(self, found: int) -> None:
        if found > self.max_entries:
            raise self.error(
                f"found {found:,} scores, expected at most {self.max_entries:,}: store the best labels of each query"
            )

    def check_shape(self, found: tuple[int, ...]) -> None:
        """Raise where a matrix `found` is not [T, L]."""
        expected = (self.num_queries, self.num_labels)
        if found != expected:
            hint = ": transposed" if found == expected[::-1] else ""
            raise self.error(f"found the shape {found}, expected {expected} (queries, labels){hint}")

    def check_rows(self, found: int) -> None:
        if found != self.num_queries:
            raise self.error(f"found {found:,} rows, expected one for each of {self.num_queries:,} test queries")

    def error(self, message: str) -> XMCBenchError:
        return XMCBenchError(f"{self.path}: {message}")


@dataclass(frozen=True)
class Entries:
    """Scored labels of T queries, in any order: query and label (int64) and score (float) of each entry, [E]."""

    num_queries: int
    queries: np.ndarray
    labels: np.ndarray
    scores: np.ndarray

    @classmethod
    def of_rows(cls, counts_T: np.ndarray, labels: np.ndarray, scores: np.ndarray) -> Entries:
        """Entries that lie query by query, so many of each."""
        queries = np.repeat(np.arange(len(counts_T)), counts_T)
        return cls(len(counts_T), queries, labels.astype(np.int64), scores.astype(np.float64))

    def check(self, expected: Expected) -> None:
        """Raise XMCBenchError unless labels are in 0..L-1, once per query, with scores that are finite in float32."""
        pairs = self.queries * expected.num_labels + self.labels
        order = np.argsort(pairs, kind="stable")
        again = np.zeros(len(pairs), bool)
        again[order[1:]] = pairs[order[1:]] == pairs[order[:-1]]
        outside = (self.labels < 0) | (self.labels >= expected.num_labels)
        for broken, problem in (
            (outside, f", expected 0 to {expected.num_labels - 1}"),
            (~(self.scores <= np.finfo(np.float32).max), " with a score that is not a finite number"),
            (again, " twice"),
        ):
            if broken.any():
                first = int(np.argmax(broken))
                raise expected.error(f"query {self.queries[first]}: found label {self.labels[first]}{problem}")

    def ranked(self, k: int) -> Predictions:
        """The best `k` labels of each query by float32 score, ties by lower label id; short rows are padded."""
        scores = self.scores.astype(np.float32) + np.float32(0.0)  # adding 0 turns -0.0 into 0.0: they tie
        order = np.lexsort((self.labels, -scores, self.queries))
        rows = self.queries[order]
        columns = np.arange(len(rows)) - np.searchsorted(rows, rows)
        best = columns < k
        shape = (self.num_queries, k)
        predictions = Predictions(np.full(shape, -1, np.int32), np.full(shape, -np.inf, np.float32))
        rows, columns, order = rows[best], columns[best], order[best]
        predictions.indices[rows, columns] = self.labels[order]
        predictions.scores[rows, columns] = scores[order]
        return predictions


def _ranked_rows(indices: np.ndarray, scores: np.ndarray, expected: Expected) -> Entries:
    """Entries of rows that are ranked already: `indices` and `scores` [T, k], best first, -1 pads a row.

    Raises XMCBenchError if shapes differ or the scores of a row ascend.
    """
    if indices.ndim != 2 or indices.shape != scores.shape:
        raise expected.error(f"found indices {indices.shape} and scores {scores.shape}, expected both [queries, k]")
    expected.check_rows(len(indices))
    expected.check_entries(indices.size)
    held = indices != -1
    ascending = (scores[:, 1:] > scores[:, :-1]) & held[:, 1:] & held[:, :-1]
    if ascending.any():
        query, place = np.argwhere(ascending)[0]
        raise expected.error(
            f"query {query}: found score {scores[query, place]:.7g} before {scores[query, place + 1]:.7g}, "
            "expected the best label first"
        )
    return Entries.of_rows(held.sum(axis=1), indices[held], scores[held])


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
    entries = {b"PK\x03\x04": _read_npz, b"PAR1": _read_parquet}.get(magic, _read_text)(path, expected)
    entries.check(expected)
    return entries


def read_predictions(path: Path, num_queries: int, num_labels: int, k: int) -> Predictions:
    """The best `k` labels of each query that a file holds, ranked; short rows are padded. Raises as `read_entries`."""
    return read_entries(path, num_queries, num_labels).ranked(k)


def _read_text(path: Path, expected: Expected) -> Entries:
    """`label:score` pairs, a line per query, after a header `queries labels` or without one."""
    most_bytes = (expected.max_entries + expected.num_queries) * ENTRY_BYTES
    rows = read_rows(path, expected.num_labels, max_bytes=most_bytes)
    if rows.header:
        expected.check_shape(rows.header)
    expected.check_rows(len(rows.counts))
    return Entries.of_rows(rows.counts, rows.labels, rows.values)


def _read_npz(path: Path, expected: Expected) -> Entries:
    """The entries of an `.npz` file. Raises XMCBenchError if it is damaged, too large or of another layout."""
    most = max(expected.max_entries, expected.num_queries + 1)
    with open_npz(path) as archive:
        names = array_names(archive)
        if names >= {"indptr", "indices", "data", "shape"}:
            indptr, indices, data, shape = read_csr(archive, most, str(path))
            expected.check_shape(shape)
            expected.check_entries(len(data))
            return Entries.of_rows(np.diff(indptr), indices, data)
        for labels in ("indices", "labels"):
            if names >= {labels, "scores"}:
                indices = read_array(archive, labels, "iu", most, str(path))
                scores = read_array(archive, "scores", "f", most, str(path))
                return _ranked_rows(indices, scores, expected)
    raise expected.error(
        f"found the arrays {', '.join(sorted(names)) or 'none'}, "
        "expected data, indices, indptr, shape (scipy.sparse.save_npz) or indices, scores"
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
    expected.check_rows(table.num_rows)
    indices, scores = (table.column(name).combine_chunks() for name in ("indices", "scores"))
    counts = [column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False) for column in (indices, scores)]
    if not np.array_equal(*counts):
        query = int(np.argmax(counts[0] != counts[1]))
        raise expected.error(f"query {query}: found {counts[0][query]} indices and {counts[1][query]} scores")
    labels = _integers(indices.flatten(), "indices", expected)
    return Entries.of_rows(counts[0].astype(np.int64), labels, np.asarray(scores.flatten()))


def _flat(table: Any, expected: Expected) -> Entries:
    queries, labels = (_integers(table.column(name), name, expected) for name in ("query", "label"))
    if len(wrong := np.flatnonzero((queries < 0) | (queries >= expected.num_queries))):
        row = int(wrong[0])
        raise expected.error(f"row {row}: found query {queries[row]}, expected 0 to {expected.num_queries - 1}")
    return Entries(expected.num_queries, queries, labels, np.asarray(table.column("score")).astype(np.float64))


def _integers(column: Any, name: str, expected: Expected) -> np.ndarray:
    values = np.asarray(column)  # missing numbers are NaN
    if values.dtype.kind not in "iu":
        raise expected.error(f"column {name}: found the type {column.type}, expected integers and none missing")
    return values.astype(np.int64)


METHOD = "imported"  # no plugin has this name: the predictions came from elsewhere


@dataclass(frozen=True)
class Imported:
    """Predictions read from a file, with their scores on a dataset and doubts about them."""

    predictions: Predictions
    scores: Scores
    warnings: tuple[str, ...]


def import_predictions(
    path: Path, dataset: Dataset, metrics: Sequence[str], evaluators: Mapping[str, Evaluator]
) -> Imported:
    """Read, check and score the predictions that `path` holds for the test queries of `dataset`, in their order."""
    num_queries, num_labels = dataset.test.targets.shape
    entries = read_entries(path, num_queries, num_labels)
    most_ignored = int(np.diff(dataset.ignore_test.indptr).max(initial=0))
    ranked = entries.ranked(min(num_labels, STORED + most_ignored))
    predictions = drop_ignored(ranked, dataset.ignore_test, min(STORED, num_labels))
    scores = score_predictions(predictions, dataset, metrics, evaluators)
    return Imported(predictions, scores, tuple(find_warnings(ranked, predictions, dataset)))


DEPTH = 5  # labels per query that are looked at


def find_warnings(ranked: Predictions, kept: Predictions, dataset: Dataset) -> Iterator[str]:
    """Doubts about predictions: `ranked` as they were read, `kept` without the pairs that the dataset filters."""
    total, num_labels = kept.indices.shape[0], dataset.test.targets.shape[1]
    if dropped := int((ranked.indices >= 0).sum() - (kept.indices >= 0).sum()):
        yield (
            f"{dropped:,} predicted pairs are filtered by the dataset (reciprocal pairs); they were dropped. A program "
            "that scores with them reports lower metrics"
        )
    depth = min(DEPTH, num_labels)
    if short := int((kept.indices[:, :depth] < 0).any(axis=1).sum()):
        yield f"{short:,} of {total:,} queries have fewer than {depth} labels; a missing label counts as a wrong one"
    if kept.k > depth:
        tied = (kept.scores[:, depth - 1] == kept.scores[:, depth]) & (kept.indices[:, depth] >= 0)
        if tied.any():
            yield (
                f"{int(tied.sum()):,} of {total:,} queries have equal scores at ranks {depth} and {depth + 1}; "
                "ties rank by ascending label here, other programs may order them otherwise"
            )
    best, true = kept.indices[:, :1], binary(dataset.test.targets)
    hits, shifted = (int(contains(true, labels).sum()) for labels in (best, np.roll(best, 1, axis=0)))
    if total > 1 and hits <= shifted:
        yield (
            f"{hits:,} queries have a true label first, and {shifted:,} if every row is moved by one: the rows may not "
            "be in the order of the dataset's test queries"
        )
