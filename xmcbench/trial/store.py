"""The store: the folder that holds trials and their results. The record is written last and atomically, so a trial is
finished exactly if its record exists.

<root>/trials/<key>/trial.json        the trial and its options
                    record.json       the outcome
                    predictions.npz   the top 100 labels of every test query
                    resampled.safetensors   its metrics on resamples of the test queries, for intervals and ties
                    manifest.json     sizes and digests of these two files, checked when they are read
                    log.txt           standard output and standard error of the trial
                    checkpoint/       while the trial runs: the state that `fit` resumes from
                    model/            the trained model, as `predict` loads it
<root>/judgements.sqlite              the answers of teachers, shared by all trials (`xmcbench/teachers/database.py`)
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout
from pydantic import BaseModel

from xmcbench.errors import XMCBenchError
from xmcbench.files.arrays import open_npz, read_array
from xmcbench.files.atomic import atomic_write
from xmcbench.files.manifest import MANIFEST, add_to_manifest, check_manifest
from xmcbench.files.regular import open_regular
from xmcbench.trial.predictions import STORED, Predictions
from xmcbench.trial.record import RESAMPLING_VERSION, Record
from xmcbench.trial.record_file import RecordError, decode, encode

# Errors of the disk, not of the method: no record is written, and the next run resumes the trial.
DISK_FAULTS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
PREDICTIONS, RESAMPLED = "predictions.npz", "resampled.safetensors"
RECORD_BYTES = 50_000_000
RESAMPLED_BYTES = 1_000_000_000

_log = logging.getLogger(__name__)


class StoreError(XMCBenchError):
    """The store cannot be read or written; the message names the file."""


class Store:
    """Reads and writes records and predictions by trial key. Every failure to read or write raises `StoreError`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def directory(self, key: str) -> Path:
        return self.root / "trials" / key

    def records(self) -> list[Record]:
        """All records, sorted by key. An unreadable record is left out, with a one-line warning that names its file."""
        trials = self.root / "trials"
        with _reading(trials):
            try:
                keys = sorted(path.name for path in trials.iterdir())
            except FileNotFoundError:
                keys = []
        records = []
        for key in keys:
            try:
                record = self.record(key)
            except StoreError as problem:
                _log.warning("warning: %s; left out", problem)
            else:
                records += [record] if record else []
        return records

    def record(self, key: str) -> Record | None:
        """The record of a trial, or None if the trial has not finished."""
        path = self.directory(key) / "record.json"
        with _reading(path):
            try:
                with open_regular(path, RECORD_BYTES, buffering=0) as file:
                    content = file.readall()
            except (FileNotFoundError, NotADirectoryError):
                return None
            record = decode(content)
        if record.key != key:
            raise StoreError(f"{path}: found the record of {record.key}, expected that of {key}: moved or edited")
        return record

    def write_record(self, record: Record) -> None:
        self._write(record.key, "record.json", encode(record.without_secrets()))

    def write_json(self, key: str, name: str, content: BaseModel) -> None:
        """Write `content` to the JSON file `name` of a trial."""
        self._write(key, name, content.model_dump_json(indent=1).encode() + b"\n")

    def _write(self, key: str, name: str, content: bytes) -> None:
        path = self.directory(key) / name
        with _writing(path), atomic_write(path) as file:
            file.write(content)

    def drop_record(self, key: str) -> None:
        """Delete the outcome of a trial, so that the trial can be run again."""
        for name in ("record.json", PREDICTIONS, RESAMPLED, MANIFEST):
            path = self.directory(key) / name
            with _writing(path):
                path.unlink(missing_ok=True)

    def in_flight(self, key: str) -> bool:
        """Whether a trial was started and has no record yet."""
        directory = self.directory(key)
        with _reading(directory):
            return (directory / "trial.json").exists() and not (directory / "record.json").exists()

    def write_predictions(self, key: str, predictions: Predictions, truth_hash: str) -> None:
        """Write predictions, with the hash of the test targets that they were made for."""
        content = BytesIO()
        np.savez_compressed(
            content,
            indices=predictions.indices.astype(np.int32),
            scores=predictions.scores.astype(np.float32),
            truth_hash=np.array(truth_hash),
        )
        self.write_result(key, PREDICTIONS, content.getvalue())

    def has_predictions(self, key: str) -> bool:
        """Whether the predictions of a trial are in the store."""
        return (self.directory(key) / PREDICTIONS).exists()

    def predictions(self, key: str, max_queries: int = 100_000_000) -> tuple[Predictions, str]:
        """The predictions of a trial, and the hash of the test targets that they were made for.

        Predictions of more than `max_queries` queries are an error before they are unpacked.
        """
        path = self.directory(key) / PREDICTIONS
        with _reading(path):
            self._check(path)
            with open_npz(path) as archive:
                most = max_queries * STORED
                indices = read_array(archive, "indices", "i", most, str(path))
                scores = read_array(archive, "scores", "f", most, str(path))
                truth = str(read_array(archive, "truth_hash", "U", 1, str(path)))
            return Predictions(indices, scores), truth

    def write_resampled(self, key: str, metrics: Mapping[str, np.ndarray], truth_hash: str) -> None:
        """Write the metrics of a trial on B resamples of the test queries: float32 [B] by name of the metric."""
        from safetensors.numpy import save

        metadata = {"truth_hash": truth_hash, "resampling_version": str(RESAMPLING_VERSION)}
        self.write_result(key, RESAMPLED, save(dict(metrics), metadata))

    def resampled(self, record: Record, metrics: Iterable[str]) -> dict[str, np.ndarray]:
        """The stored values of `metrics` on resamples, float32 [B] by name.

        Metrics without stored values are left out; so are all values for other test targets than those of `record`,
        or of another version of the resampling. A damaged file is left out, with a warning of one line that names it.
        """
        path = self.directory(record.key) / RESAMPLED
        try:
            with _reading(path):
                self._check(path)
                return _resampled(path, record.truth_hash, metrics) if path.exists() else {}
        except StoreError as problem:
            _log.warning("warning: %s; left out, `xmcbench rescore` makes it again", problem)
            return {}

    def write_result(self, key: str, name: str, content: bytes) -> None:
        """Write a file of a trial's results and enter it into the trial's manifest."""
        self._write(key, name, content)
        with _writing(self.directory(key) / MANIFEST):
            add_to_manifest(self.directory(key), name)

    def _check(self, path: Path) -> None:
        """Raise `DamagedFolder` where the manifest lists another content. Release 0.1.0 wrote no manifest."""
        if path.exists() and (path.parent / MANIFEST).exists():
            check_manifest(path.parent, [path.name])

    @contextmanager
    def lock(self, key: str, wait: bool = True) -> Iterator[bool]:
        """Lock a trial, so that two runs on one store do not both run it. Yields whether the lock was acquired.

        With `wait`, block until the lock is free. Without it, yield False if another process holds the lock.
        """
        path = self.root / "locks" / key
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(path)
            try:
                lock.acquire(timeout=-1 if wait else 0)
            except Timeout:
                yield False
                return
        try:
            yield True
        finally:
            lock.release()


def _resampled(path: Path, truth_hash: str, metrics: Iterable[str]) -> dict[str, np.ndarray]:
    """See `Store.resampled`."""
    from safetensors import safe_open

    with open_regular(path, RESAMPLED_BYTES), safe_open(path, framework="numpy") as file:
        metadata = file.metadata() or {}
        if metadata.get("truth_hash") != truth_hash or metadata.get("resampling_version") != str(RESAMPLING_VERSION):
            return {}
        stored = file.keys()
        return {name: file.get_tensor(name) for name in metrics if name in stored}


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise StoreError(f"{path}: cannot read: {problem.strerror or problem}") from problem
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
