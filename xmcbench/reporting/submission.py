"""Submissions: the requirements on a record before it is accepted, which anyone can check again.

Accepted results are a store (`leaderboard/measured/`): the record of each trial with settings, environment and digest,
its predictions, and its metrics on resamples. Predictions above `LARGEST` bytes are replaced by their SHA-256.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Any

from xmcbench.data.dataset import Dataset
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation import (
    check_metrics,
    dataset_hits,
    find_evaluators,
    resampled_metrics,
    score,
)
from xmcbench.evaluation.bootstrap import intervals
from xmcbench.evaluation.stored import stored_predictions
from xmcbench.files.atomic import atomic_write
from xmcbench.files.manifest import MANIFEST
from xmcbench.trial.record import METRIC_VERSION, Record, Status
from xmcbench.trial.store import PREDICTIONS, RESAMPLED, Store
from xmcbench.trial.trial import SCHEMA_VERSION

LARGEST = 1_000_000
FILES = frozenset({"record.json", PREDICTIONS, "predictions.sha256", RESAMPLED, MANIFEST})
NEEDED = ("git", "versions", "python", "platform", "cpu", "cores_usable", "memory_bytes", "command")
_CLOSE = 1e-9  # metrics computed on another machine may differ by rounding


def problems(record: Record) -> Iterator[str]:
    """Why a record cannot be accepted, as far as the record alone shows."""
    if record.status is not Status.OK:
        yield f"its status is {record.status}, expected ok"
    if record.key_version == SCHEMA_VERSION and record.key != record.trial.key:
        yield f"its key is {record.key}, that of its trial {record.trial.key}"
    if record.metric_version != METRIC_VERSION:
        yield f"its metrics are of definitions {record.metric_version}, expected {METRIC_VERSION}: rescore it"
    if not record.metrics or not record.truth_hash:
        yield "it has no metrics, or does not name the truth that they answer to"
    if record.trial.track == "zero-shot" and record.simulated_teacher:
        yield "its teacher was simulated from annotations, which the zero-shot track does not allow"
    for name, limit in record.trial.budget.limits().items():
        most = limit + record.spent.get("largest_step", {}).get(name, 0.0)
        if name in record.spent and record.spent[name] > most:
            yield f"it spent {record.spent[name]:g} {name} of {limit:g}, more than one step past its budget"
    try:
        check_metrics(record.metrics)
    except XMCBenchError as problem:
        yield str(problem)
    yield from _gaps(record)


def outdated(record: Record) -> Iterator[str]:
    """Why a record cannot be submitted any more. A record that was accepted before a new version stays."""
    if record.key_version != SCHEMA_VERSION:
        yield f"it was written by schema version {record.key_version}, expected {SCHEMA_VERSION}: run it again"


def _gaps(record: Record) -> Iterator[str]:
    """Missing provenance."""
    provenance = record.provenance
    for name in NEEDED:
        if not provenance.get(name):
            yield f"its provenance does not say {name}"
    git: dict[str, Any] = provenance.get("git") or {}
    if git and not re.fullmatch(r"[0-9a-f]{40}", str(git.get("commit", ""))):
        yield f"its commit is {git.get('commit')!r}, expected 40 hexadecimal digits"
    if git.get("dirty") is not False:
        yield "the code it ran with had changes that no commit holds, expected a clean git tree"
    if not record.started or not record.ended:
        yield "it does not say when it began and ended"


def differences(store: Store, record: Record, dataset: Dataset) -> Iterator[str]:
    """Metrics and intervals of the record that do not follow from its predictions."""
    names = list(record.metrics)
    try:
        evaluators = find_evaluators(names)
        predictions = stored_predictions(store, record, dataset)
    except XMCBenchError as problem:
        yield str(problem)
        return
    hits = dataset_hits(predictions, dataset)
    for name, value in score(hits, names, evaluators).items():
        if abs(value - record.metrics[name]) > _CLOSE:
            yield f"{name} is {record.metrics[name]}, its predictions give {value}"
    computed = intervals(resampled_metrics(hits, names, evaluators))
    for name, interval in computed.items():
        own = record.intervals.get(name, (-1.0, -1.0))
        if max(abs(own[0] - interval[0]), abs(own[1] - interval[1])) > 1e-6:  # kept as float32
            yield f"the interval of {name} is {own}, its predictions give {interval}"


def accept(store: Store, record: Record, folder: Path) -> Path:
    """Write a trial without problems into `folder`, without paths of this machine; returns its directory."""
    command = [_without_place(str(word)) for word in record.provenance["command"]]
    shared = record.model_copy(update={"provenance": {**record.provenance, "command": command}})
    accepted = Store(folder)
    directory = accepted.directory(record.key)
    content = (store.directory(record.key) / PREDICTIONS).read_bytes()
    if len(content) <= LARGEST:
        accepted.write_result(record.key, PREDICTIONS, content)
    else:
        _write(directory / "predictions.sha256", f"{sha256(content).hexdigest()}  predictions.npz\n".encode())
    resampled = store.resampled(record, list(record.metrics))
    accepted.write_resampled(record.key, resampled, record.truth_hash)
    accepted.write_record(shared)
    return directory


def stray_files(directory: Path) -> Iterator[str]:
    """Files of an accepted trial that are unexpected or too large."""
    for path in sorted(directory.iterdir()):
        if path.name not in FILES or path.is_symlink() or not path.is_file():
            yield f"{path.name} is not expected here ({', '.join(sorted(FILES))})"
        elif path.stat().st_size > LARGEST:
            yield f"{path.name} has {path.stat().st_size:,} bytes, expected at most {LARGEST:,}"


def _without_place(word: str) -> str:
    """A word of a command, absolute paths cut to their last part."""
    name, equals, value = word.rpartition("=")
    return f"{name}{equals}{PurePath(value).name}" if PurePath(value).is_absolute() else word


def _write(path: Path, content: bytes) -> None:
    with atomic_write(path) as file:
        file.write(content)
