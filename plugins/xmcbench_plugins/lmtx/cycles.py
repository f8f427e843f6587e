"""The finished parts of an LMTX run: the teacher's answers, the models and the scores of its cycles, on disk.

A killed run resumes from them. They lie in folders with manifests; if one is damaged, the run starts again.
Legend: N documents, L labels, Q answered questions of a cycle.
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy

from xmcbench import Run, data, files

_log = logging.getLogger(__name__)


class CycleAnswers(NamedTuple):
    """The answered questions of a cycle."""

    documents: np.ndarray  # int64 [Q], rows among the documents that are trained on
    labels: np.ndarray  # int64 [Q]
    yes: np.ndarray  # bool [Q]
    no: np.ndarray  # bool [Q]; neither yes nor no is a reply that could not be parsed


class Cycles:
    """The cycles of a run, stored beside its checkpoints after each round of questions and after each training."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.answers: list[CycleAnswers] = []
        self.scores: list[float] = []  # of the finished cycles
        states = sorted(run.checkpoint.glob("cycles-*"))
        try:
            if states:
                self._restore(states[-1])
        except files.DamagedFolder as damage:
            _log.warning("warning: %s; the first cycle starts again", damage)
            for folder in run.checkpoint.glob("*-*"):
                shutil.rmtree(folder, ignore_errors=True)

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

    def add_answers(self, answers: CycleAnswers) -> None:
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

    def pairs(self, kind: str, shape: tuple[int, int], *, accumulated: bool) -> scipy.sparse.csr_array:
        """[N, L] ones where the answer was `kind` (yes or no): in the last cycle, or `accumulated` over all cycles."""
        chosen = self.answers if accumulated else self.answers[-1:]
        rows, columns = (
            np.concatenate([getattr(answers, name)[getattr(answers, kind)] for answers in chosen])
            for name in ("documents", "labels")
        )
        return data.pairs_csr(rows, columns, shape)  # a pair may have been asked about in several cycles

    def _state(self, number: int) -> Path:
        """The folder of the state after `number` rounds of questions and finished cycles; names sort by time."""
        return self.run.checkpoint / f"cycles-{number:04d}"

    def _store(self) -> None:
        note = {"scores": self.scores, **self.run.log.state()}
        number = len(self.answers) + len(self.scores)
        with files.checked_folder(self._state(number)) as folder:
            (folder / "note.json").write_text(json.dumps(note))
            for cycle, answers in enumerate(self.answers):
                np.savez(folder / f"answers-{cycle}.npz", **answers._asdict())
        shutil.rmtree(self._state(number - 1), ignore_errors=True)

    def _restore(self, folder: Path) -> None:
        files.check_manifest(folder)
        note = json.loads((folder / "note.json").read_text())
        for cycle in {len(note["scores"]) - 1, int(np.argmax(note["scores"]))} if note["scores"] else ():
            files.check_manifest(self.model(cycle))
        self.scores = note["scores"]
        for path in sorted(folder.glob("answers-*.npz"), key=lambda path: int(path.stem.partition("-")[2])):
            with np.load(path, allow_pickle=False) as columns:
                self.answers.append(CycleAnswers(**{name: columns[name] for name in CycleAnswers._fields}))
        self.run.log.restore(note)
