"""Where trials live on disk. A record is written last and whole, so its presence is what "finished" means.

<root>/trials/<key>/trial.json        what was asked
                    record.json       what came of it
                    predictions.npz   the top 100 labels of every test query
                    log.txt           what the trial printed
                    checkpoint/       while it runs: what `fit` continues from
                    model/            what `predict` needs
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout
from pydantic import BaseModel, ValidationError

from xmcbench.errors import XMCBenchError
from xmcbench.files import atomic_write
from xmcbench.predictions import Predictions
from xmcbench.record import Record
from xmcbench.trial import SCHEMA_VERSION

# The disk's fault, not the method's: nothing is recorded, and the same trial goes on when there is room again.
DISK_FAULTS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})


class StoreError(XMCBenchError):
    """The store cannot be read or written; the message names the file."""


class Store:
    """Records and predictions by trial key. Every failure to read or write is a `StoreError`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def directory(self, key: str) -> Path:
        return self.root / "trials" / key

    def records(self) -> list[Record]:
        """All records, by key. One that cannot be read is an error: a table without it would be a wrong table."""
        with _reading(self.root):
            keys = sorted(path.parent.name for path in self.root.glob("trials/*/record.json"))
        return [record for key in keys if (record := self.record(key))]

    def record(self, key: str) -> Record | None:
        """What came of a trial, or None where it has not finished."""
        path = self.directory(key) / "record.json"
        with _reading(path):
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                return None
            record = Record.model_validate_json(content)
        if record.schema_version != SCHEMA_VERSION:
            raise StoreError(f"{path}: found schema version {record.schema_version}, expected {SCHEMA_VERSION}")
        if not key == record.key == record.trial.key:
            raise StoreError(f"{path}: its trial has the key {record.trial.key}, expected {key}: moved or edited")
        return record

    def write_record(self, record: Record) -> None:
        self.write_json(record.key, "record.json", record)

    def write_json(self, key: str, name: str, content: BaseModel) -> None:
        """Write one of the JSON files of a trial."""
        path = self.directory(key) / name
        with _writing(path), atomic_write(path) as file:
            file.write(content.model_dump_json(indent=1).encode() + b"\n")

    def drop_record(self, key: str) -> None:
        """Forget the outcome of a trial that is to be tried again."""
        for name in ("record.json", "predictions.npz"):
            path = self.directory(key) / name
            with _writing(path):
                path.unlink(missing_ok=True)

    def in_flight(self, key: str) -> bool:
        """Whether a trial was begun and has no outcome yet."""
        directory = self.directory(key)
        with _reading(directory):
            return (directory / "trial.json").exists() and not (directory / "record.json").exists()

    def write_predictions(self, key: str, predictions: Predictions, truth_hash: str) -> None:
        """Keep predictions, with the hash of the truth they answer to."""
        path = self.directory(key) / "predictions.npz"
        with _writing(path), atomic_write(path) as file:
            np.savez_compressed(
                file,
                indices=predictions.indices.astype(np.int32),
                scores=predictions.scores.astype(np.float32),
                truth_hash=np.array(truth_hash),
            )

    def predictions(self, key: str) -> tuple[Predictions, str]:
        """The predictions of a trial and the hash of the truth they answer to."""
        path = self.directory(key) / "predictions.npz"
        with _reading(path), np.load(path, allow_pickle=False) as arrays:
            return Predictions(arrays["indices"], arrays["scores"]), str(arrays["truth_hash"])

    @contextmanager
    def lock(self, key: str, wait: bool = True) -> Iterator[bool]:
        """Hold a trial, so that two runs on one store do not both run it. Without `wait`, yields whether it is held."""
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


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise StoreError(f"{path}: cannot read: {problem.strerror or problem}") from problem
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise StoreError(f"{path}: not a record: {place + ': ' if place else ''}{first['msg']}") from problem
    except Exception as problem:  # whatever numpy and zipfile make of a damaged file
        raise StoreError(f"{path}: damaged: {problem}".splitlines()[0]) from problem


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise StoreError(f"{path}: cannot write: {problem.strerror or problem}") from problem
