"""What LMTX has behind it: the teacher's answers of each cycle, the cycles' models and figures. A killed run reads it.

Legend: N documents, L labels, Q questions of a cycle.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from xmcbench import Run, atomic_write


class Asked(NamedTuple):
    """The questions of a cycle that were answered: documents and labels by number, what the teacher said."""

    documents: np.ndarray  # int64 [Q], among those that are trained on
    labels: np.ndarray  # int64 [Q]
    yes: np.ndarray  # bool [Q]
    no: np.ndarray  # bool [Q]; neither is an answer that could not be read


class Cycles:
    """The cycles of a run, kept beside its checkpoints after the questions of a cycle and after its training."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.asked: list[Asked] = []
        self.figures: list[float] = []  # of the cycles that ended, by which they are compared
        self._note = run.checkpoint / "cycles.json"
        if self._note.exists():
            self._restore(json.loads(self._note.read_text()))

    @property
    def best(self) -> int:
        """The number of the best cycle, the first of equals."""
        return int(np.argmax(self.figures))

    @property
    def improving(self) -> bool:
        """Whether the last cycle is better than all before it; true before there are two."""
        return len(self.figures) < 2 or self.best == len(self.figures) - 1

    def directory(self, cycle: int) -> Path:
        """Where the checkpoints of the cycle that is being trained lie."""
        return self.run.checkpoint / f"cycle-{cycle}"

    def model(self, cycle: int) -> Path:
        """Where the cycle's model is kept."""
        return self.run.checkpoint / f"model-{cycle}"

    def place(self, cycle: int) -> Path:
        """An empty folder for the cycle's model: what a killed run left there is no whole one."""
        shutil.rmtree(self.model(cycle), ignore_errors=True)
        self.model(cycle).mkdir(parents=True)
        return self.model(cycle)

    def add_answers(self, asked: Asked) -> None:
        with atomic_write(self._answers(len(self.asked))) as file:
            np.savez(file, **asked._asdict())
        self.asked.append(asked)
        self._keep()

    def add_figure(self, figure: float) -> None:
        """Note that the cycle in hand has ended. Of the models the best and the last are needed again."""
        self.figures.append(figure)
        self._keep()
        shutil.rmtree(self.directory(len(self.figures) - 1), ignore_errors=True)
        for cycle in range(len(self.figures) - 1):
            if cycle != self.best:
                shutil.rmtree(self.model(cycle), ignore_errors=True)

    def pairs(self, kind: str, shape: tuple[int, int], *, accumulated: bool) -> sp.csr_array:
        """[N, L] ones where the answer was `kind`: in the last cycle, or in any."""
        chosen = self.asked if accumulated else self.asked[-1:]
        rows, columns = (
            np.concatenate([getattr(asked, name)[getattr(asked, kind)] for asked in chosen])
            for name in ("documents", "labels")
        )
        pairs = sp.csr_array((np.ones(len(rows), np.float32), (rows, columns)), shape)
        pairs.data[:] = 1.0  # a pair that was asked in several cycles
        return pairs

    def _answers(self, cycle: int) -> Path:
        return self.run.checkpoint / f"asked-{cycle}.npz"

    def _keep(self) -> None:
        note = {"figures": self.figures, "asked": len(self.asked), **self.run.log.state()}
        with atomic_write(self._note) as file:
            file.write(json.dumps(note).encode())

    def _restore(self, note: dict[str, Any]) -> None:
        self.figures = note["figures"]
        for cycle in range(note["asked"]):
            with np.load(self._answers(cycle), allow_pickle=False) as kept:
                self.asked.append(Asked(**{name: kept[name] for name in Asked._fields}))
        self.run.log.restore(note)
