"""What a trial was charged for and told without an answer, in files beside its checkpoints. Legend: N pairs."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from xmcbench.errors import XMCBenchError
from xmcbench.trial.splitmix64 import mix, splitmix64

KEY = np.dtype([("pair", "<i8"), ("checksum", "<i8")])  # in the file
REPLY = np.dtype([(name, "<i8") for name in ("pair", "kind", "prompt_tokens", "completion_tokens", "checksum")])
UNANSWERED = "unanswered.bin"  # a file beside that of the charged pairs


class ChargedPairs:
    """The keys of the pairs that a trial was charged for, in a file beside its checkpoints, oldest first.

    A resumed trial passes as `count` the number of calls in its restored ledger. Later keys in the file are dropped:
    their pairs are charged again when the resumed trial asks for them, so that it spends what an unbroken run spends.
    Several workers of a trial write the same bytes to the same place.
    """

    def __init__(self, path: Path, count: int) -> None:
        self.path, self.count = path, count
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        keys = np.fromfile(path, KEY, count)
        pairs = keys["pair"].astype(np.int64)
        intact = int((keys["checksum"] == splitmix64(pairs + 1)).sum())
        if intact < count:
            raise XMCBenchError(
                f"{path}: found {intact} intact pairs, expected {count}: delete {path.parent} to start the trial over"
            )
        self._sorted = np.sort(pairs)
        self.unanswered = UnansweredPairs(path.with_name(UNANSWERED))

    def contains(self, keys: np.ndarray) -> np.ndarray:
        """bool [N]: which of the pairs are paid for."""
        return np.asarray(np.searchsorted(self._sorted, keys, "right") > np.searchsorted(self._sorted, keys))

    def add(self, keys: np.ndarray) -> None:
        """Append the keys of pairs that are not in the file yet. They are on disk when this returns."""
        if not len(keys):
            return
        entries = np.zeros(len(keys), KEY)
        entries["pair"], entries["checksum"] = keys, splitmix64(keys.astype(np.int64) + 1)
        with self.path.open("r+b") as file:
            file.seek(self.count * KEY.itemsize)
            file.write(entries.tobytes())
            file.flush()
            os.fsync(file.fileno())
        self.count += len(keys)
        new = np.sort(keys)
        self._sorted = np.insert(self._sorted, np.searchsorted(self._sorted, new), new)


class UnansweredPairs:
    """The pairs of a trial to which the teacher replied without an answer, in a file beside its checkpoints."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows = np.zeros(0, REPLY)

    def look_up(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The places of those of the keys [N] that are in the file, and their rows, of `REPLY`."""
        rows = self._read()
        order = np.argsort(rows["pair"], kind="stable")
        nearest = np.searchsorted(rows["pair"][order], keys).clip(max=max(0, len(rows) - 1))
        places = np.flatnonzero(rows["pair"][order][nearest] == keys) if len(rows) else np.zeros(0, np.int64)
        return places, rows[order][nearest[places]]

    def add(self, keys: np.ndarray, kinds: np.ndarray, spent: np.ndarray) -> None:
        """Append replies: `kinds` [N] of UNPARSED, CUT or REFUSED, and tokens `spent` [2, N]; then they are on disk."""
        if not len(keys):
            return
        rows = np.zeros(len(keys), REPLY)
        rows["pair"], rows["kind"], (rows["prompt_tokens"], rows["completion_tokens"]) = keys, kinds, spent
        rows["checksum"] = _checksums(rows)
        with self.path.open("r+b" if self.path.exists() else "w+b") as file:
            file.seek(len(self._read()) * REPLY.itemsize)  # behind the last whole row
            file.write(rows.tobytes())
            file.flush()
            os.fsync(file.fileno())

    def _read(self) -> np.ndarray:
        """The intact rows, up to the first that a kill has cut; other workers may have added some."""
        size = self.path.stat().st_size // REPLY.itemsize if self.path.exists() else 0
        if size != len(self._rows):
            rows = np.fromfile(self.path, REPLY, size)
            broken = rows["checksum"] != _checksums(rows)
            self._rows = rows[: int(np.argmax(broken)) if broken.any() else None]
        return self._rows


def _checksums(rows: np.ndarray) -> np.ndarray:
    """int64 [N]: a hash of all columns of `REPLY` but the last."""
    total = np.zeros(len(rows), np.int64)
    for name in REPLY.names[:-1] if REPLY.names else ():
        total = mix(total * 31 + splitmix64(rows[name].astype(np.int64) + 1))
    return total
