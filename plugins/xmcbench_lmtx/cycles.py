"""The finished parts of an LMTX run: the teacher's answers, the models and the scores of its cycles, on disk.

A killed run resumes from them. Legend: N documents, L labels, Q answered questions of a cycle.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from xmcbench import Run, atomic_write


class Answers(NamedTuple):
    """The answered questions of a cycle."""

    documents: np.ndarray  # int64 [Q], rows among the documents that are trained on
    labels: np.ndarray  # int64 [Q]
    yes: np.ndarray  # bool [Q]
    no: np.ndarray  # bool [Q]; neither yes nor no is a reply that could not be parsed


class Cycles:
    """The cycles of a run, stored beside its checkpoints after each round of questions and after each training."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.answers: list[Answers] = []
        self.scores: list[float] = []  # of the finished cycles
        self._note = run.checkpoint / "cycles.json"
        if self._note.exists():
            self._restore(json.loads(self._note.read_text()))

    @property
    def best(self) -> int:
        """The number of the cycle with the highest score, the first of equals."""
        return int(np.argmax(self.scores))

    @property
    def improving(self) -> bool:
        """Whether the last cycle is better than all before it; true for fewer than two cycles."""
        return len(self.scores) < 2 or self.best == len(self.scores) - 1

    def directory(self, cycle: int) -> Path:
        """The checkpoints of a cycle's training."""
        return self.run.checkpoint / f"cycle-{cycle}"

    def model(self, cycle: int) -> Path:
        """The model of a finished cycle."""
        return self.run.checkpoint / f"model-{cycle}"

    def new_model(self, cycle: int) -> Path:
        """An empty folder for the cycle's model; an incomplete one of a killed run is removed."""
        shutil.rmtree(self.model(cycle), ignore_errors=True)
        self.model(cycle).mkdir(parents=True)
        return self.model(cycle)

    def add_answers(self, answers: Answers) -> None:
        """Store the answers of the current cycle."""
        with atomic_write(self._answers_file(len(self.answers))) as file:
            np.savez(file, **answers._asdict())
        self.answers.append(answers)
        self._store()

    def add_score(self, score: float) -> None:
        """Finish the current cycle. Only the best and the last model are kept."""
        self.scores.append(score)
        self._store()
        shutil.rmtree(self.directory(len(self.scores) - 1), ignore_errors=True)
        for cycle in range(len(self.scores) - 1):
            if cycle != self.best:
                shutil.rmtree(self.model(cycle), ignore_errors=True)

    def pairs(self, kind: str, shape: tuple[int, int], *, accumulated: bool) -> sp.csr_array:
        """[N, L] ones where the answer was `kind` (yes or no): in the last cycle, or `accumulated` over all cycles."""
        chosen = self.answers if accumulated else self.answers[-1:]
        rows, columns = (
            np.concatenate([getattr(answers, name)[getattr(answers, kind)] for answers in chosen])
            for name in ("documents", "labels")
        )
        pairs = sp.csr_array((np.ones(len(rows), np.float32), (rows, columns)), shape)
        pairs.data[:] = 1.0  # a pair may have been asked about in several cycles
        return pairs

    def _answers_file(self, cycle: int) -> Path:
        return self.run.checkpoint / f"answers-{cycle}.npz"

    def _store(self) -> None:
        note = {"scores": self.scores, "answers": len(self.answers), **self.run.log.state()}
        with atomic_write(self._note) as file:
            file.write(json.dumps(note).encode())

    def _restore(self, note: dict[str, Any]) -> None:
        self.scores = note["scores"]
        for cycle in range(note["answers"]):
            with np.load(self._answers_file(cycle), allow_pickle=False) as columns:
                self.answers.append(Answers(**{name: columns[name] for name in Answers._fields}))
        self.run.log.restore(note)
