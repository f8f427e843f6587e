"""The judges of a trial: the harness makes them for its method, out of the latter's sight."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from xmcbench.data.dataset import Texts
from xmcbench.plugins.registry import registry
from xmcbench.teachers.database import JudgementStore
from xmcbench.teachers.hosted import Hosted, Lesson
from xmcbench.teachers.judge import Account, Judge
from xmcbench.teachers.tab import Tab
from xmcbench.teachers.teacher import Teacher
from xmcbench.trial.run import Run

TAB = "charged.bin"  # beside a trial's checkpoints


@dataclass
class Judges:
    """Makes judges for one trial: `Judges(...)(config)` is what its method calls as `run.judge`.

    `documents` are the training texts that the method is given, `rows` their rows in the dataset's training split.
    Annotations are read from what `lesson` names, by another process.
    """

    run: Run
    store: Path
    lesson: Lesson
    documents: Texts
    rows: np.ndarray
    labels: Texts
    teachers: list[Teacher]  # grows with each judge, for the record
    _judges: list[Judge] = field(default_factory=list)

    def __call__(self, config: Teacher.Config) -> Judge:
        """A judge that asks the teacher which `config` names. Nothing is asked or loaded yet."""
        teacher: Teacher = registry().teacher(config.name)(config)
        run = self.run
        judge = Judge(
            Hosted(teacher, self.lesson) if teacher.simulated else teacher,
            len(self._judges),
            JudgementStore(self.store),
            self.documents,
            self.rows,
            self.labels,
            Account(run.ledger, run.budget, lambda: self._tab, run.report),
        )
        self.teachers.append(teacher)
        self._judges.append(judge)
        return judge

    @cached_property
    def _tab(self) -> Tab:
        return Tab(self.run.checkpoint / TAB, self.run.ledger.teacher_calls)

    def close(self) -> None:
        """Close all of them; a judge may be closed twice."""
        for judge in self._judges:
            judge.close()
