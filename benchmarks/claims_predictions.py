"""The predictions behind the claims, packed: the best ten labels of every test query, in order.

From them anyone can recompute every metric up to k = 10 that a claim uses. R@100 needs a hundred labels, of which an
accepted trial keeps the SHA-256 alone. Scores are left out: no metric reads them. All files together should stay
below 40 MB.

A file holds the trials of one suite on one dataset, as safetensors under lzma: `labels` [N, T, 10], -1 for none, `keys`
of the trials [T] and `truth`, the hash of the test targets. Trials of a suite agree on most labels of a query, so that
a label takes about four bits.

    python benchmarks/claims_predictions.py --pack results     # from the store that ran the claims' suites
    python benchmarks/claims_predictions.py --data DIRECTORY   # checks accepted metrics against what is packed

Legend: T trials, N test queries, K = 10 labels.
"""

from __future__ import annotations

import argparse
import lzma
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save

from xmcbench.data import load
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation import dataset_hits, find_evaluators, parse_metric, score, truth_hash
from xmcbench.files.atomic import atomic_write
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.record import Record
from xmcbench.trial.store import Store
from xmcbench_plugins.board.claims import ClaimFile, read_claims
from xmcbench_plugins.board.results import ACCEPTED

PACKED = Path(__file__).parents[1] / "leaderboard" / "predictions"
BEST = 10
UNPACKED = 2_000_000_000  # bytes of one file
CLOSE = 1e-9


def pack(keys: Sequence[str], labels_TNK: np.ndarray, truth: str) -> bytes:
    """The content of a file: labels in the smallest type of whole numbers that holds them."""
    smallest = np.result_type(np.min_scalar_type(labels_TNK.min()), np.min_scalar_type(labels_TNK.max()))
    arrays = {
        "labels": np.ascontiguousarray(labels_TNK.astype(smallest).transpose(1, 0, 2)),
        "keys": np.array([int(key, 16) for key in keys], np.uint64),
        "truth": np.frombuffer(bytes.fromhex(truth), np.uint8),
    }
    return lzma.compress(save(arrays), preset=9)


def unpack(path: Path) -> tuple[dict[str, np.ndarray], str]:
    """The labels [N, K] by key of the trial, and the hash of the test targets. Raises `XMCBenchError` if damaged."""
    try:
        with lzma.open(path) as packed:
            arrays = load_arrays(packed.read(UNPACKED))
        keys = [f"{key:016x}" for key in arrays["keys"].tolist()]
        labels_TNK = arrays["labels"].transpose(1, 0, 2).astype(np.int32)
        return dict(zip(keys, labels_TNK, strict=True)), arrays["truth"].tobytes().hex()
    except (lzma.LZMAError, SafetensorError, EOFError, OSError, ValueError, KeyError) as problem:
        raise XMCBenchError(f"{path}: damaged: {type(problem).__name__}: {problem}") from problem


def pack_all(file: ClaimFile, store: Store, folder: Path) -> Iterator[str]:
    """Pack what the store holds of the trials behind claims and questions; yields a line for each file."""
    groups: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    regimes = [*(own for claim in file.claims for own in claim.regimes), *(own.regime for own in file.questions)]
    keys = {(regime.suite, key) for regime in regimes for key in (*regime.better_keys, *regime.than_keys)}
    for suite, key in sorted(keys):
        record = store.record(key)
        if record and store.has_predictions(key):
            groups[suite, record.trial.dataset, record.truth_hash].append(record)
    for (suite, dataset, truth), records in groups.items():
        found = [store.predictions(record)[0].indices[:, :BEST] for record in records]
        path = folder / f"{suite.replace('/', '-')}-{dataset}.xz"
        with atomic_write(path) as out:
            out.write(pack([record.key for record in records], np.stack(found), truth))
        yield f"{path}: {len(records)} trials, {path.stat().st_size / 1e6:.1f} MB"


def problems(path: Path, accepted: Store, data: Path) -> Iterator[str]:
    """Metrics of accepted records that do not follow from a file."""
    by_key, truth = unpack(path)
    for key, labels_NK in by_key.items():
        record = accepted.record(key)
        if record is None:
            yield f"{path}: {key} is not an accepted trial"
            continue
        dataset = load(record.trial.dataset, data)
        if truth != truth_hash(dataset):
            yield f"{path}: of other test targets than {record.trial.dataset}"
            return
        evaluators = find_evaluators(record.metrics)
        names = [name for name in record.metrics if parse_metric(name, evaluators)[1] <= BEST]
        ranks = np.broadcast_to(-np.arange(labels_NK.shape[1], dtype=np.float32), labels_NK.shape)
        scores = np.where(labels_NK < 0, -np.inf, ranks).astype(np.float32)
        values = score(dataset_hits(Predictions(labels_NK, scores), dataset), names, evaluators)
        for name, value in values.items():
            if abs(value - record.metrics[name]) > CLOSE:
                yield f"{path}: {key} {name} is {record.metrics[name]}, its predictions give {value}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, metavar="STORE", help="pack the predictions of this store")
    parser.add_argument("--data", type=Path, default=Path("data"))
    options = parser.parse_args()
    if options.pack:
        print(*pack_all(read_claims(), Store(options.pack), PACKED), sep="\n")
        return
    accepted = Store(ACCEPTED)
    found: list[str] = []
    for path in sorted(PACKED.glob("*.xz")):
        try:
            found += problems(path, accepted, options.data)
        except XMCBenchError as problem:
            found.append(str(problem))
    print(*found, f"{len(found)} problems", sep="\n")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
