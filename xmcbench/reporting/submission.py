"""Submissions: the files of accepted trials, and what they must agree on, which anyone can check again.

Accepted results are a store (`leaderboard/measured/`): the record of each trial with settings, environment and digest,
its predictions, and its metrics on resamples. Predictions above `LARGEST` bytes are replaced by their SHA-256.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path, PurePath

import numpy as np

from xmcbench.data.dataset import Dataset
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation import (
    dataset_hits,
    find_evaluators,
    resampled_metrics,
    score,
    truth_hash,
)
from xmcbench.evaluation.bootstrap import RESAMPLES, intervals
from xmcbench.evaluation.stored import stored_predictions
from xmcbench.files.atomic import atomic_write
from xmcbench.files.json_objects import with_names_once
from xmcbench.files.manifest import MANIFEST
from xmcbench.trial.predictions import STORED
from xmcbench.trial.record import Record
from xmcbench.trial.store import PREDICTIONS, RESAMPLED, Store

LARGEST = 1_000_000
DIGEST_FILE, LONGEST_LINE = "predictions.sha256", 200
FILES = frozenset({"record.json", PREDICTIONS, DIGEST_FILE, RESAMPLED, MANIFEST})
PAIR_BYTES = 8  # of a label and its score in a file of predictions that is not compressed
EPOCHS = 2.0  # times the training queries that an epoch may count: some see only those with a drawn positive
_FLOAT32 = 1e-6  # values on resamples are kept as float32
_CLOSE = 1e-9  # metrics computed on another machine may differ by rounding


def differences(store: Store, record: Record, dataset: Dataset) -> Iterator[str]:
    """What in the record does not follow from its dataset: the truth, and, where its predictions are there, metrics."""
    name, content, queries = dataset.card.name, dataset.card.content_hash, dataset.card.num_test
    if content != record.trial.dataset_hash:
        yield f"{name} has the content hash {content[:12]}, the trial ran on {record.trial.dataset_hash[:12]}"
        return
    if (truth := truth_hash(dataset)) != record.truth_hash:
        yield f"its metrics answer to the truth {record.truth_hash[:12]}, {name} has {truth[:12]}"
    if record.spent.get("predicted_queries", queries) != queries:
        yield f"it predicted {record.spent['predicted_queries']} queries, {name} has {queries}"
    rows = dataset.card.num_train - (record.trial.selection.queries if record.trial.selection else 0)
    seen, stated = record.spent.get("queries", 0), record.spent.get("epochs", 0.0) * rows
    if not stated / EPOCHS - 1 <= seen <= EPOCHS * stated + 1:
        yield f"it saw {seen:,} training queries in {record.spent.get('epochs', 0):g} epochs of {rows:,}"
    pairs = queries * min(STORED, dataset.card.num_labels)
    if store.has_predictions(record.key):
        yield from _recomputed(store, record, dataset)
    elif pairs * PAIR_BYTES <= LARGEST:
        yield f"its predictions are not here, and {pairs:,} labels with scores fit into {LARGEST:,} bytes"


def _recomputed(store: Store, record: Record, dataset: Dataset) -> Iterator[str]:
    """Metrics and intervals of the record that do not follow from its predictions."""
    names = list(record.metrics)
    try:
        evaluators = find_evaluators(names)
        predictions = stored_predictions(store, record, dataset)
    except XMCBenchError as problem:
        yield str(problem)
        return
    hits = dataset_hits(predictions, dataset)
    try:
        values = score(hits, names, evaluators)
    except XMCBenchError as problem:
        yield str(problem)
        return
    for name, value in values.items():
        if not abs(value - record.metrics[name]) <= _CLOSE:
            yield f"{name} is {record.metrics[name]}, its predictions give {value}"
    resampled = resampled_metrics(hits, names, evaluators)
    yield from _intervals(record, resampled, "predictions")
    stored = store.resampled(record, names)
    for name in stored.keys() & resampled.keys():
        if stored[name].shape != resampled[name].shape or not np.allclose(stored[name], resampled[name], atol=_FLOAT32):
            yield f"the stored resamples of {name} are not those of its predictions"


def resampling(store: Store, record: Record) -> Iterator[str]:
    """What is wrong with a trial's metrics on resamples, which ties and intervals on the board come from."""
    stored = store.resampled(record, list(record.metrics))
    if missing := sorted(record.intervals.keys() - stored.keys()):
        yield f"{RESAMPLED} does not hold {missing[0]}"
    for name, values in stored.items():
        if (
            values.dtype != np.float32
            or values.shape != (RESAMPLES,)
            or not ((values >= -_FLOAT32) & (values <= 1 + _FLOAT32)).all()
        ):
            yield f"{RESAMPLED}: {name} is not {RESAMPLES} fractions"
            return
    yield from _intervals(record, stored, "resamples")


def _intervals(record: Record, resampled: Mapping[str, np.ndarray], source: str) -> Iterator[str]:
    """Intervals of the record that are not those of its metrics on resamples, [B] each."""
    for name, (low, high) in intervals(resampled).items():
        own = record.intervals.get(name, (-1.0, -1.0))
        if not max(abs(own[0] - low), abs(own[1] - high)) <= _FLOAT32:
            yield f"the interval of {name} is {own}, its {source} give {(low, high)}"


def accept(store: Store, record: Record, folder: Path) -> Path:
    """Write a trial without problems into `folder`, without paths of this machine; returns its directory."""
    command = [_without_place(str(word)) for word in record.provenance["command"]]
    shared = record.model_copy(update={"provenance": {**record.provenance, "command": command}})
    accepted = Store(folder)
    directory = accepted.directory(record.key)
    content = (store.directory(record.key) / PREDICTIONS).read_bytes()
    digest = sha256(content).hexdigest()
    if len(content) <= LARGEST:
        accepted.write_result(record.key, PREDICTIONS, content)
    else:
        _write(directory / DIGEST_FILE, f"{digest}  predictions.npz\n".encode())
    resampled = store.resampled(record, list(record.metrics))
    digests = {PREDICTIONS: digest, RESAMPLED: accepted.write_resampled(record.key, resampled, record.truth_hash)}
    accepted.write_record(shared.model_copy(update={"digests": digests}))
    return directory


def file_problems(directory: Path, record: Record) -> Iterator[str]:
    """Files of an accepted trial that are unexpected or too large, and a record that can be read in two ways."""
    for path in sorted(directory.iterdir()):
        if path.name not in FILES or path.is_symlink() or not path.is_file():
            yield f"{path.name} is not expected here ({', '.join(sorted(FILES))})"
        elif path.stat().st_size > LARGEST:
            yield f"{path.name} has {path.stat().st_size:,} bytes, expected at most {LARGEST:,}"
    digest, predictions = directory / DIGEST_FILE, directory / PREDICTIONS
    if digest.is_file() == predictions.is_file():
        yield f"expected one of {PREDICTIONS} and {DIGEST_FILE}"
    elif digest.is_file():
        known = record.digests.get(PREDICTIONS, "[0-9a-f]{64}")
        if not re.fullmatch(f"{known}  {PREDICTIONS}\n", digest.read_bytes()[:LONGEST_LINE].decode(errors="replace")):
            yield f"{DIGEST_FILE} does not hold the digest that the record has"
    try:
        json.loads((directory / "record.json").read_bytes(), object_pairs_hook=with_names_once)
    except ValueError as problem:
        yield f"record.json: {problem}"


def _without_place(word: str) -> str:
    """A word of a command, absolute paths cut to their last part."""
    name, equals, value = word.rpartition("=")
    return f"{name}{equals}{PurePath(value).name}" if PurePath(value).is_absolute() else word


def _write(path: Path, content: bytes) -> None:
    with atomic_write(path) as file:
        file.write(content)
