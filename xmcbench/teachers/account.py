"""Charges a trial for its teachers: the limits of its budget, and the pairs that it was charged for.

Legend: N pairs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from xmcbench.errors import XMCBenchError
from xmcbench.teachers.database import StoredAnswers
from xmcbench.trial.budget import Budget, Ledger
from xmcbench.trial.run import Progress
from xmcbench.trial.splitmix64 import splitmix64

KEY = np.dtype([("pair", "<i8"), ("checksum", "<i8")])  # in the file


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

    def contains(self, keys: np.ndarray) -> np.ndarray:
        """bool [N]: which of the pairs are paid for."""
        if not len(self._sorted):
            return np.zeros(len(keys), bool)
        nearest = np.searchsorted(self._sorted, keys).clip(max=len(self._sorted) - 1)
        return np.asarray(self._sorted[nearest] == keys)

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


@dataclass(frozen=True)
class Account:
    """Charges pairs to a trial's ledger, within its budget."""

    ledger: Ledger
    budget: Budget
    charged_pairs: Callable[[], ChargedPairs]  # called once the ledger of a resumed trial is restored
    report: Callable[[Progress], None] = lambda _: None

    def calls_left(self) -> int | None:
        """The number of further pairs that the budget allows; None: unlimited."""
        limit = self.budget.teacher_calls
        return None if limit is None else max(0, limit - self.ledger.teacher_calls)

    def affords(self, tokens: int) -> bool:
        """Whether the budget allows another pair after pairs that cost `tokens` tokens."""
        limit = self.budget.teacher_tokens
        return limit is None or self.ledger.teacher_tokens + tokens < limit

    def affordable(self, tokens: np.ndarray) -> int:
        """The number of the next pairs that the budget allows, given their `tokens` [N]; the last may cross it."""
        limit = self.budget.teacher_tokens
        if limit is None:
            return len(tokens)
        before = self.ledger.teacher_tokens + np.cumsum(tokens) - tokens
        return int(np.searchsorted(before, limit))

    def charge(self, stored: StoredAnswers, places: np.ndarray, cached: int) -> None:
        """Charge the pairs at `places` of a block; the answers to `cached` of them were in the store."""
        ledger, costs = self.ledger, stored.tokens(places)
        ledger.teacher_calls += len(places)
        ledger.teacher_cached += cached
        ledger.teacher_prompt_tokens += int(stored.prompt_tokens[places].sum())
        ledger.teacher_completion_tokens += int(stored.completion_tokens[places].sum())
        if self.budget.teacher_tokens is not None:  # a trial may exceed this limit by at most one pair
            largest = max(ledger.largest_step.get("teacher_tokens", 0), int(costs.max(initial=0)))
            ledger.largest_step["teacher_tokens"] = largest
