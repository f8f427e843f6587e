"""Makes the judges of a trial. The method sees only the judges, never what they are made from."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from xmcbench.data.dataset import Texts
from xmcbench.plugins.registry import registry
from xmcbench.teachers.account import Account, ChargedPairs
from xmcbench.teachers.cached_judge import CachedJudge
from xmcbench.teachers.database import JudgementStore
from xmcbench.teachers.subprocess_teacher import AnnotatedDataset, SubprocessTeacher
from xmcbench.teachers.teacher import Teacher
from xmcbench.trial.judging import Judge, TeacherSettings
from xmcbench.trial.run import Run

CHARGED = "charged.bin"  # a file beside a trial's checkpoints


@dataclass
class JudgeFactory:
    """Makes judges for one trial: a method calls `JudgeFactory(...)` as `run.judge(config)`.

    `documents` are the training texts that the method sees, `rows` their rows in the dataset's training split. A
    simulated teacher reads the annotations of `annotated` in a process of its own.
    """

    run: Run
    store: Path
    annotated: AnnotatedDataset
    documents: Texts
    rows: np.ndarray
    labels: Texts
    teachers: list[Teacher]  # of the judges made so far, for the record
    popen: Callable[..., subprocess.Popen[str]] = subprocess.Popen  # starts the process of a simulated teacher
    _judges: list[CachedJudge] = field(default_factory=list)

    def __call__(self, config: TeacherSettings) -> Judge:
        """A judge that asks the teacher named in `config`. Making it asks nothing and loads nothing."""
        teacher: Teacher = registry().teacher(config.name)(config)
        run = self.run
        judge = CachedJudge(
            SubprocessTeacher(teacher, self.annotated, self.popen) if teacher.simulated else teacher,
            len(self._judges),
            JudgementStore(self.store),
            self.documents,
            self.rows,
            self.labels,
            Account(run.ledger, run.budget, lambda: self._charged_pairs, run.report),
        )
        self.teachers.append(teacher)
        self._judges.append(judge)
        return judge

    @cached_property
    def _charged_pairs(self) -> ChargedPairs:
        return ChargedPairs(self.run.checkpoint / CHARGED, self.run.ledger.teacher_calls)

    def close(self) -> None:
        """Close all judges. Closing a judge twice is harmless."""
        for judge in self._judges:
            judge.close()
