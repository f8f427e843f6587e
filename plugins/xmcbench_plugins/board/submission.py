"""Submissions: the files of accepted trials, and what they must agree on, which anyone can check again.

Accepted results are a store of packed trials (`leaderboard/measured/`, `xmcbench/trial/packed.py`): the record of each
trial with settings, environment and digest, its predictions, and its metrics on resamples. Of predictions above
`LARGEST` bytes there is only the SHA-256.

Legend: C configurations of one table, each with its seeds; B resamples.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np

from xmcbench.data.dataset import Dataset
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation import dataset_hits, find_evaluators, resampled_metrics, score, truth_hash
from xmcbench.evaluation.bootstrap import RESAMPLES, compact_resamples, intervals
from xmcbench.evaluation.evaluator import stored_predictions
from xmcbench.reporting.rows import grouped
from xmcbench.trial.packed import PACK, Packed, compact_path
from xmcbench.trial.predictions import STORED
from xmcbench.trial.record import Record, encode
from xmcbench.trial.store import PREDICTIONS, RESAMPLED, Store, StoreError, resampled_file
from xmcbench_plugins.board.packing import add_packed, packed_path, remove_packed, sorted_lines, write_arrays

LARGEST = 1_000_000  # bytes of a file
LOCK = "accepted"
PAIR_BYTES = 8  # of a label and its score in a file of predictions that is not compressed
EPOCHS = 2.0  # times the training queries that an epoch may count: some see only those with a drawn positive
_FLOAT32 = 1e-6  # values on resamples are kept as float32
_COVARIANCE = 1e-4  # share by which covariances may differ: their factors have 16 bits, and depend on threads
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
    labels, steps = record.spent.get("pool_labels", 0), record.spent.get("steps", 0)
    if labels > steps * dataset.card.num_labels:
        yield f"its {steps:,} steps scored {labels:,} labels, {name} has {dataset.card.num_labels:,}"
    rows = dataset.card.num_train - record.trial.unseen_queries
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
        hits = dataset_hits(stored_predictions(store, record, dataset), dataset)
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
        typed = values.dtype == np.float32 and values.shape == (RESAMPLES,)
        if not typed or not ((values >= -_FLOAT32) & (values <= 1 + _FLOAT32)).all():
            yield f"{RESAMPLED}: {name} is not {RESAMPLES} fractions"
            return
    yield from _intervals(record, stored, "resamples")


def _intervals(record: Record, resampled: Mapping[str, np.ndarray], source: str) -> Iterator[str]:
    """Intervals of the record that are not those of its metrics on resamples, [B] each."""
    for name, (low, high) in intervals(resampled).items():
        own = record.intervals.get(name, (-1.0, -1.0))
        if not max(abs(own[0] - low), abs(own[1] - high)) <= _FLOAT32:
            yield f"the interval of {name} is {own}, its {source} give {(low, high)}"


def accept(store: Store, records: Sequence[Record], folder: Path) -> list[str]:
    """Add trials without problems to `folder`, shortened and without paths; returns the files that hold them."""
    added = []
    for record in records:
        resampled = resampled_file(store.resampled(record, list(record.metrics)), record.truth_hash)
        files = {PREDICTIONS: store.result(record, PREDICTIONS), RESAMPLED: resampled}
        digests = {name: sha256(content).hexdigest() for name, content in files.items()}
        if len(files[PREDICTIONS]) > LARGEST:
            del files[PREDICTIONS]
        shared = shortened(record.without_paths()).model_copy(update={"digests": digests}).without_secrets()
        added.append((shared, encode(shared), files))
    with Store(folder).lock(LOCK):
        return [str(path) for path in add_packed(folder, added)]


def withdraw(folder: Path, records: Sequence[Record]) -> list[str]:
    """Remove accepted trials from `folder`; returns the files that held them."""
    with Store(folder).lock(LOCK):
        return [str(path) for path in remove_packed(folder, {record.key for record in records})]


def mend_compact(folder: Path, datasets: Collection[str], without: Collection[str] = ()) -> None:
    """Write compact resamples of `datasets` anew where they are wrong: after trials came, or before some go.

    So a command that is killed, and run again, finds what it has not done yet. `without` are the keys of those that are
    removed next.
    """
    with Store(folder).lock(LOCK):
        accepted = Store(folder)
        stay = [record for record in accepted.records() if record.key not in without]
        by_dataset = grouped(stay, lambda record: record.trial.dataset)
        for dataset in sorted(datasets):
            own = by_dataset.get(dataset, [])  # none where all are withdrawn
            if _wrong_compact(accepted, dataset, own):
                write_arrays(compact_path(folder, dataset), compacted(accepted, own))


def compacted(store: Store, accepted: Iterable[Record]) -> dict[str, np.ndarray]:
    """The compact resamples of the accepted trials on a dataset: float32 [metrics, C] in the order of metrics.

    They are of the mean over all seeds of a configuration, which is what rows are compared by, and have their keys for
    a name. Raises `StoreError` where the resamples that they are made of are missing.
    """
    arrays: dict[str, np.ndarray] = {}
    for records in _tables(accepted):
        for pack in {store.packed.records[record.key].path.with_suffix(PACK) for record in records}:
            if not pack.exists():
                raise StoreError(f"{pack}: the file is missing")
        seeds = grouped(records, lambda record: record.but_seed)
        made = _named(records)
        for name, (record, *_) in made.items():
            arrays[name] = np.full((len(record.metrics), len(seeds)), np.nan, np.float32)
        names = {record.key: name for name, own in made.items() for record in own}
        resampled = {record.key: store.resampled(record, list(record.metrics)) for record in records}
        for metric in dict.fromkeys(name for own in resampled.values() for name in own):
            having = [own for own in seeds.values() if all(metric in resampled[record.key] for record in own)]
            values = ([resampled[record.key][metric] for record in own] for own in having)
            means_CB = np.stack([np.mean(own, axis=0, dtype=np.float64) for own in values])
            for own, row_C in zip(having, compact_resamples(means_CB, len(seeds)), strict=True):
                for record in own:
                    arrays[names[record.key]][list(record.metrics).index(metric)] = row_C
    return arrays


def _named(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Seeds of a configuration that have the same metrics, by the name of their array."""
    alike = grouped(records, lambda record: (record.but_seed, tuple(record.metrics)))
    return {" ".join(sorted(record.key for record in own)): own for own in alike.values()}


def _tables(records: Iterable[Record]) -> Iterable[list[Record]]:
    """The trials on a dataset, those together that may stand in one table: unlimited rows stand in every table."""
    return grouped(records, lambda own: (own.truth_hash, own.trial.track)).values()


def _covariances(arrays: Mapping[str, np.ndarray], records: Sequence[Record]) -> Iterator[np.ndarray]:
    """What compact resamples of a table's trials stand for, a metric at a time: it is the same on every machine."""
    made = {name: own[0] for name, own in _named(records).items()}
    for metric in dict.fromkeys(name for record in records for name in record.metrics):
        having = {name: own for name, own in made.items() if metric in own.metrics}
        rows_TC = np.stack([arrays[name][list(own.metrics).index(metric)] for name, own in having.items()])
        yield rows_TC @ rows_TC.T


def wrong_compact(store: Store) -> Iterator[str]:
    """Compact resamples, which installed copies show ties from, that are not those of the accepted trials."""
    by_dataset = grouped(store.records(), lambda record: record.trial.dataset)
    yield from filter(None, (_wrong_compact(store, dataset, by_dataset[dataset]) for dataset in sorted(by_dataset)))


def _wrong_compact(store: Store, dataset: str, accepted: Sequence[Record]) -> str:
    """What is wrong with the compact resamples of one dataset; empty if nothing is."""
    path = compact_path(store.root, dataset)
    try:
        expected = compacted(store, accepted)
        found = store.packed.arrays(path)
    except (XMCBenchError, OSError) as problem:
        return str(problem)
    same = {key: own.shape for key, own in found.items()} == {key: own.shape for key, own in expected.items()}
    for records in _tables(accepted) if same else ():
        for mine_TT, own_TT in zip(_covariances(found, records), _covariances(expected, records), strict=True):
            near = _COVARIANCE * np.nan_to_num(abs(own_TT)).max(initial=0)
            same = same and np.allclose(mine_TT, own_TT, _COVARIANCE, near, equal_nan=True)
    return "" if same else f"{path}: not of the resamples beside it: submitting a trial on {dataset} writes it anew"


def stray_files(store: Store) -> Iterator[str]:
    """Files of accepted results that are unexpected, in another place than theirs, or too large."""
    packed = store.packed
    expected = {packed.root / "README.md", packed.root / "locks" / LOCK}
    for path in dict.fromkeys(own.path for own in packed.records.values()):
        expected |= {path, path.with_suffix(PACK), compact_path(packed.root, path.parent.name)}
        lines = [own.line for own in packed.records.values() if own.path == path]
        if lines != sorted_lines(lines):
            yield f"{path}: its lines are not sorted by method, label, seed and key"
    for path in sorted(packed.root.rglob("*")):
        if path.is_symlink() or not (path.is_dir() or (path.is_file() and path in expected)):
            yield f"{path} is not expected here"
        elif path.suffix == PACK and path.parent != packed.root:
            yield from _stray_arrays(packed, path)


def _stray_arrays(packed: Packed, path: Path) -> Iterator[str]:
    """Arrays of a pack that belong to no record of the file beside it, or that are too large."""
    keys = [key for key, own in packed.records.items() if own.path.with_suffix(PACK) == path]
    expected = {f"{key}/{file}" for key in keys for file in (PREDICTIONS, RESAMPLED)}
    try:
        for name, size in packed.sizes(path).items():
            if name not in expected:
                yield f"{path}: {name} is not expected here"
            elif size > LARGEST:
                yield f"{path}: {name} has {size:,} bytes, expected at most {LARGEST:,}"
    except (XMCBenchError, OSError) as problem:
        yield str(problem)


def misplaced(store: Store, record: Record) -> Iterator[str]:
    """An accepted trial in the file of another suite, or without a digest of its predictions."""
    packed = store.packed.records.get(record.key)
    if packed and packed.path != (path := packed_path(store.root, record)):
        yield f"it belongs into {path}"
    if not store.digest(record, PREDICTIONS):
        yield "neither its predictions nor their SHA-256 are there"


def shortened(record: Record) -> Record:
    """The record with the costs, curve and intervals that were measured in nine digits, which hold any float32."""
    measured = record.model_dump_json(include={"spent", "curve", "intervals"})
    rounded = json.loads(measured, parse_float=lambda text: float(f"{float(text):.9g}"))
    return Record.model_validate({**record.model_dump(), **rounded})
