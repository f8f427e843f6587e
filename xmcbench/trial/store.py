"""The store: the folder that holds trials and their results. The record is written last and atomically, so a trial is
finished exactly if its record exists. It holds the digests of predictions and resamples, which are checked when these
are read.

<root>/trials/<key>/trial.json        the trial and its options
                    record.json       the outcome
                    predictions.npz   the top 100 labels of every test query
                    held-out.npz      of a sample of a tuning: the top 100 labels of its held-out queries
                    resampled.safetensors   its metrics on resamples of the test queries, for intervals and ties
                    log.txt           standard output and standard error of the trial
                    checkpoint/       while the trial runs: the state that `fit` resumes from
                    model/            the trained model, as `predict` loads it
<root>/<dataset>/<suite>.jsonl        accepted trials, packed (`xmcbench/trial/packed.py`)
<root>/judgements.sqlite              the answers of teachers, shared by all trials
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from hashlib import file_digest, sha256
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import numpy as np
from pydantic import BaseModel

from xmcbench.errors import XMCBenchError
from xmcbench.files.arrays import open_npz, read_array, sort_header
from xmcbench.files.atomic import atomic_write
from xmcbench.files.regular import open_regular
from xmcbench.trial.packed import RECORDS_BYTES, Packed, PackedRecord
from xmcbench.trial.predictions import STORED, Predictions
from xmcbench.trial.record import RESAMPLING_VERSION, Record, RecordError, decode, encode

PREDICTIONS, RESAMPLED = "predictions.npz", "resampled.safetensors"
HELD_OUT = "held-out.npz"
ARRAYS = (("indices", "i"), ("scores", "f"))  # of predictions, and the kind of their numbers
MODEL = "model/manifest.json"  # its digest says which model is the trial's
RESAMPLED_BYTES = 1_000_000_000
MORE_BYTES = 1_000_000  # of a file of predictions, beyond those of labels and scores

_log = logging.getLogger(__name__)


class StoreError(XMCBenchError):
    """The store cannot be read or written; the message names the file."""


class Store:
    """Reads and writes records and predictions by trial key. Every failure to read or write raises `StoreError`.

    What is not in the folder of a trial is looked up among the packed trials, as they were at the first look.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def packed(self) -> Packed:
        with _reading(self.root):
            return Packed(self.root)

    def place(self, key: str) -> str:
        """Where a trial lies, for messages: its folder, or the file and line of its packed record."""
        directory = self.directory(key)
        return str(directory if directory.exists() else self.packed.records.get(key, directory))

    def directory(self, key: str) -> Path:
        return self.root / "trials" / key

    def files(self, key: str) -> list[str]:
        """The names of a trial's files and folders."""
        directory = self.directory(key)
        with _reading(directory):
            names = [path.name for path in directory.iterdir()] if directory.exists() else []
            names += [name for name in (PREDICTIONS, RESAMPLED) if self.packed.has(key, name)]
        return sorted({name for name in names if not name.startswith(".")})

    def trials(self) -> list[str]:
        """The keys of all trials, finished or not, sorted."""
        folder = self.root / "trials"
        with _reading(folder):
            try:
                keys = [path.name for path in folder.iterdir()]
            except FileNotFoundError:
                keys = []
        return sorted({*keys, *self.packed.records})

    def records(self) -> list[Record]:
        """All records, sorted by key. An unreadable record is left out, with a one-line warning that names its file."""
        records = []
        for problem in self.packed.problems:
            _log.warning("warning: %s; left out", problem)
        for key in self.trials():
            try:
                if record := self.record(key):
                    records.append(record)
            except StoreError as problem:
                _log.warning("warning: %s; left out", problem)
        return records

    def record(self, key: str) -> Record | None:
        """The record of a trial, or None if the trial has not finished."""
        place, content = self.record_file(key)
        if content is None:
            return None
        with _reading(place):
            record = decode(content)
        if record.key != key:
            raise StoreError(f"{place}: found the record of {record.key}, expected that of {key}: moved or edited")
        return record

    def record_file(self, key: str) -> tuple[Path | PackedRecord, bytes | None]:
        """Where the record of a trial stands, and the content of its file, None if the trial has not finished."""
        path = self.directory(key) / "record.json"
        with _reading(path):
            try:
                with open_regular(path, RECORDS_BYTES, buffering=0) as file:
                    return path, file.readall()
            except (FileNotFoundError, NotADirectoryError):
                packed = self.packed.records.get(key)
                return (packed, packed.content) if packed else (path, None)

    def write_record(self, record: Record) -> None:
        self._write(record.key, "record.json", encode(record.without_secrets()))

    def write_job(self, key: str, job: BaseModel) -> None:
        """Write `trial.json`: the trial and its options."""
        self._write(key, "trial.json", job.model_dump_json(indent=1).encode() + b"\n")

    def _write(self, key: str, name: str, content: bytes) -> str:
        """Write a file of a trial; returns its digest, as records hold those of results."""
        path = self.directory(key) / name
        with _writing(path), atomic_write(path) as file:
            file.write(content)
        return sha256(content).hexdigest()

    def drop_record(self, key: str) -> None:
        """Delete the outcome of a trial, so that the trial can be run again."""
        for name in ("record.json", PREDICTIONS, RESAMPLED, HELD_OUT):
            path = self.directory(key) / name
            with _writing(path):
                path.unlink(missing_ok=True)

    def in_flight(self, key: str) -> bool:
        """Whether a trial was started and has no record yet."""
        directory = self.directory(key)
        with _reading(directory):
            return (directory / "trial.json").exists() and not (directory / "record.json").exists()

    def write_predictions(self, key: str, predictions: Predictions, truth_hash: str) -> str:
        """Write predictions, with the hash of the test targets that they were made for; returns the file's digest."""
        return self._write(key, PREDICTIONS, _packed(predictions, truth_hash=np.array(truth_hash)))

    def write_held_out(self, key: str, predictions: Predictions) -> str:
        """Write the predictions for held-out queries that judged a sample of a tuning; returns the file's digest."""
        return self._write(key, HELD_OUT, _packed(predictions))

    def held_out(self, record: Record, max_queries: int = 100_000_000) -> Predictions:
        """The predictions that `write_held_out` wrote. Raises StoreError where the record does not know them."""
        with self._result(record, HELD_OUT) as (place, file), open_npz(place, file) as archive:
            most = max_queries * STORED
            return Predictions(*(read_array(archive, name, kind, most, str(place)) for name, kind in ARRAYS))

    def has_predictions(self, key: str) -> bool:
        """Whether the predictions of a trial are in the store."""
        return self._has(key, PREDICTIONS)

    def _has(self, key: str, name: str) -> bool:
        with _reading(self.root):
            return (self.directory(key) / name).exists() or self.packed.has(key, name)

    def predictions(self, record: Record, max_queries: int = 100_000_000) -> tuple[Predictions, str]:
        """The predictions of a trial, and the hash of the test targets that they were made for.

        Predictions of more than `max_queries` queries are an error before they are unpacked; so is a file that the
        record does not know.
        """
        most = max_queries * STORED
        largest = 9 * most + MORE_BYTES
        with self._result(record, PREDICTIONS, largest) as (place, file), open_npz(place, file) as archive:
            indices = read_array(archive, "indices", "i", most, str(place))
            scores = read_array(archive, "scores", "f", most, str(place))
            truth = str(read_array(archive, "truth_hash", "U", 1, str(place)))
            return Predictions(indices, scores), truth

    def result(self, record: Record, name: str) -> bytes:
        """The content of a file of a trial's results, checked against its digest."""
        with self._result(record, name) as (_, file):
            return file.read()

    def digest(self, record: Record, name: str) -> str:
        """The SHA-256 of a file of a trial's results, also of one that is not kept; empty where none is known."""
        packed = self.packed.records.get(record.key)
        return (record.digests or (packed.files if packed else {})).get(name, "")

    @contextmanager
    def _result(self, record: Record, name: str, limit: int | None = None) -> Iterator[tuple[str | Path, BinaryIO]]:
        """A file of a trial's results, of at most `limit` bytes, and where it stands. Raises StoreError if it is not
        what the record names."""
        path = self.directory(record.key) / name
        with _reading(path):
            packed = None if path.exists() else self.packed.file(record.key, name)
        place = path if packed is None else f"{self.packed.records[record.key]}: {name}"
        expected = self.digest(record, name) or "none"
        with _reading(place), open_regular(path, limit) if packed is None else BytesIO(packed) as file:
            if (digest := file_digest(file, "sha256").hexdigest()) != expected:
                raise StoreError(
                    f"{place}: damaged, or of another trial: found the digest {digest}, its record says {expected}"
                )
            file.seek(0)
            yield place, file

    def write_resampled(self, key: str, metrics: Mapping[str, np.ndarray], truth_hash: str) -> str:
        """Write the metrics of a trial on B resamples of the test queries: float32 [B] by name of the metric.

        Returns the file's digest, for the record.
        """
        return self._write(key, RESAMPLED, resampled_file(metrics, truth_hash))

    def resampled(self, record: Record, metrics: Iterable[str]) -> dict[str, np.ndarray]:
        """The stored values of `metrics` on resamples, float32 [B] by name.

        Metrics without stored values are left out; so are all values for other test targets than those of `record`,
        or of another version of the resampling. A missing or damaged file is left out, with a warning of one line that
        names it.
        """
        try:
            if not record.intervals and not self._has(record.key, RESAMPLED):
                return {}  # scored without resamples
            with _reading(self.root):
                if (compact := self.packed.compact(record.key)) is not None:
                    of = dict(zip(record.metrics, compact, strict=True))
                    return {name: of[name] for name in metrics if name in of and not np.isnan(of[name]).any()}
            with self._result(record, RESAMPLED, RESAMPLED_BYTES) as (_, file):
                return _resampled(file.read(), record.truth_hash, metrics)
        except StoreError as problem:
            _log.warning("warning: %s; left out, `xmcbench rescore` makes it again", problem)
            return {}

    def lock_holds(self, key: str) -> bool:
        """Whether the lock of a trial that this process holds keeps other processes out.

        Some network file systems grant every lock. Of these only another process can know: where locks are those of
        processes, this one would be granted its own again.
        """
        command = [sys.executable, "-I", "-S", "-c", PROBE, str(self._lock_file(key))]
        return subprocess.run(command, capture_output=True, check=False).returncode != 1

    def _lock_file(self, key: str) -> Path:
        return self.root / "locks" / key

    @contextmanager
    def lock(self, key: str, wait: bool = True) -> Iterator[bool]:
        """Lock a trial, so that two runs on one store do not both run it. Yields whether the lock was acquired.

        With `wait`, block until the lock is free. Without it, yield False if another process holds the lock.
        """
        from filelock import FileLock, Timeout

        path = self._lock_file(key)
        lock = FileLock(path)
        with _writing(path), suppress(Timeout):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=-1 if wait else 0)
        try:
            yield lock.is_locked
        finally:
            lock.release()


# Exits with 0 where another process holds the lock of a file, with 1 where it is free.
PROBE = "import fcntl, sys\ntry: fcntl.flock(open(sys.argv[1], 'r+'), 6)\nexcept OSError: sys.exit(0)\nsys.exit(1)"


def _packed(predictions: Predictions, **more: np.ndarray) -> bytes:
    """The file of predictions, with further arrays."""
    content = BytesIO()
    indices, scores = predictions.indices.astype(np.int32), predictions.scores.astype(np.float32)
    np.savez_compressed(content, indices=indices, scores=scores, **more)  # type: ignore[arg-type]
    return content.getvalue()


def resampled_file(metrics: Mapping[str, np.ndarray], truth_hash: str) -> bytes:
    """The file of metrics on B resamples, float32 [B] by name, of these test targets."""
    from safetensors.numpy import save

    metadata = {"truth_hash": truth_hash, "resampling_version": str(RESAMPLING_VERSION)}
    content = BytesIO(save(dict(metrics), metadata))
    sort_header(content)
    return content.getvalue()


def _resampled(content: bytes, truth_hash: str, metrics: Iterable[str]) -> dict[str, np.ndarray]:
    """See `Store.resampled`."""
    from safetensors.numpy import load

    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    metadata = header.get("__metadata__", {})
    if metadata.get("truth_hash") != truth_hash or metadata.get("resampling_version") != str(RESAMPLING_VERSION):
        return {}
    stored = load(content)
    return {name: stored[name] for name in metrics if name in stored}


@contextmanager
def _reading(path: Path | PackedRecord | str) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        missing = isinstance(problem, FileNotFoundError)
        reason = "the file is missing" if missing else f"cannot read: {problem.strerror or problem}"
        raise StoreError(f"{path}: {reason}") from problem
    except RecordError as problem:
        raise StoreError(f"{path}: {problem}") from problem
    except XMCBenchError as problem:  # which names the file
        raise StoreError(str(problem)) from problem
    except Exception as problem:  # whatever numpy and zipfile make of a damaged file
        raise StoreError(f"{path}: damaged: {problem}".splitlines()[0]) from problem


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise StoreError(f"{path}: cannot write: {problem.strerror or problem}") from problem
