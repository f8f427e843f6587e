"""Where trials live on disk. A record is written last and whole, so its presence is what "finished" means.

<root>/trials/<key>/trial.json        what was asked
                    record.json       what came of it
                    predictions.npz   the top 100 labels of every test query
                    resampled.safetensors   its figures on resamples of the test queries, for intervals and ties
                    log.txt           what the trial printed
                    checkpoint/       while it runs: what `fit` continues from
                    model/            what `predict` needs
<root>/judgements.sqlite              what teachers answered, of all trials (`xmcbench/teachers/database.py`)
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout
from pydantic import BaseModel

from xmcbench.errors import XMCBenchError
from xmcbench.files.atomic import atomic_write
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.record import RESAMPLING_VERSION, Record
from xmcbench.trial.record_file import RecordError, decode, encode

# The disk's fault, not the method's: nothing is recorded, and the same trial goes on when there is room again.
DISK_FAULTS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})


_log = logging.getLogger(__name__)


class StoreError(XMCBenchError):
    """The store cannot be read or written; the message names the file."""


class Store:
    """Records and predictions by trial key. Every failure to read or write is a `StoreError`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def directory(self, key: str) -> Path:
        return self.root / "trials" / key

    def records(self) -> list[Record]:
        """All records, by key. One that cannot be read is left out, with a warning of one line that names it."""
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
        """What came of a trial, or None where it has not finished."""
        path = self.directory(key) / "record.json"
        with _reading(path):
            try:
                with open(path, "rb", buffering=0) as file:  # noqa: PTH123  (a path's own takes twice as long)
                    content = file.readall()
            except (FileNotFoundError, NotADirectoryError):
                return None
            record = decode(content)
        if record.key != key:
            raise StoreError(f"{path}: it is the record of {record.key}, expected that of {key}: moved or edited")
        return record

    def write_record(self, record: Record) -> None:
        self._write(record.key, "record.json", encode(record.without_secrets()))

    def write_json(self, key: str, name: str, content: BaseModel) -> None:
        """Write one of the JSON files of a trial."""
        self._write(key, name, content.model_dump_json(indent=1).encode() + b"\n")

    def _write(self, key: str, name: str, content: bytes) -> None:
        path = self.directory(key) / name
        with _writing(path), atomic_write(path) as file:
            file.write(content)

    def drop_record(self, key: str) -> None:
        """Forget the outcome of a trial that is to be tried again."""
        for name in ("record.json", "predictions.npz", "resampled.safetensors"):
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

    def write_resampled(self, key: str, figures: Mapping[str, np.ndarray], truth_hash: str) -> None:
        """Keep the figures of a trial on resamples of the test queries, float32 [B] each by name."""
        from safetensors.numpy import save

        self._write(
            key,
            "resampled.safetensors",
            save(dict(figures), {"truth_hash": truth_hash, "resampling_version": str(RESAMPLING_VERSION)}),
        )

    def resampled(self, record: Record, metrics: Iterable[str]) -> dict[str, np.ndarray]:
        """Those of `metrics` of which figures on resamples are kept, for the truth that `record` answers to."""
        from safetensors import safe_open

        path = self.directory(record.key) / "resampled.safetensors"
        if not path.exists():
            return {}
        with _reading(path), safe_open(path, framework="numpy") as file:
            metadata = file.metadata()
            if metadata.get("truth_hash") != record.truth_hash:
                return {}
            if metadata.get("resampling_version") != str(RESAMPLING_VERSION):  # not paired with those drawn now
                return {}
            kept = file.keys()
            return {name: file.get_tensor(name) for name in metrics if name in kept}

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
    except RecordError as problem:
        raise StoreError(f"{path}: {problem}") from problem
    except Exception as problem:  # whatever numpy and zipfile make of a damaged file
        raise StoreError(f"{path}: damaged: {problem}".splitlines()[0]) from problem


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise StoreError(f"{path}: cannot write: {problem.strerror or problem}") from problem
