"""What a trial has been charged for: the pairs it put to teachers, in their order, beside its checkpoints."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from xmcbench.errors import XMCBenchError

ENTRY = np.dtype("<i8")


class Tab:
    """Keys of pairs in the order they were charged. A trial goes on from the first `count` of them.

    `count` is what the restored ledger says: what was charged after the checkpoint is charged anew when it is asked
    again, so that a resumed run spends what an unbroken one does. Several workers write the same bytes to one place.
    """

    def __init__(self, path: Path, count: int) -> None:
        self.path, self.count = path, count
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        kept = np.fromfile(path, ENTRY, count)
        if len(kept) < count:
            raise XMCBenchError(
                f"{path}: found {len(kept)} pairs, expected {count}: delete {path.parent} to start the trial over"
            )
        self._keys = np.sort(kept.astype(np.int64))

    def holds(self, keys: np.ndarray) -> np.ndarray:
        """bool [N]: which of the pairs are paid for."""
        if not len(self._keys):
            return np.zeros(len(keys), bool)
        found: np.ndarray = self._keys[np.searchsorted(self._keys, keys).clip(max=len(self._keys) - 1)] == keys
        return found

    def add(self, keys: np.ndarray) -> None:
        """Enter pairs that are not there yet; on disk when this returns."""
        if not len(keys):
            return
        with self.path.open("r+b") as file:
            file.seek(self.count * ENTRY.itemsize)
            file.write(keys.astype(ENTRY).tobytes())
            file.flush()
            os.fsync(file.fileno())
        self.count += len(keys)
        new = np.sort(keys)
        self._keys = np.insert(self._keys, np.searchsorted(self._keys, new), new)
