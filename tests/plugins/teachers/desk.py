"""A trial's side of judging, without a trial: texts, a ledger, a store; and a teacher that remembers its questions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from xmcbench.teachers import NO, UNPARSED, YES, Answers, Pairs, Replies, Teacher
from xmcbench.trial.budget import Budget, Ledger
from xmcbench_plugins.teachers.cached_judge import Account, CachedJudge
from xmcbench_plugins.teachers.charged_pairs import ChargedPairs
from xmcbench_plugins.teachers.database import JudgementStore

WORDS = ("red", "blue", "green", "hat", "shoe", "coat")
DOCUMENTS = [f"{a} {b} number {i}" for i, (a, b) in enumerate((a, b) for a in WORDS for b in WORDS if a != b)]
LABELS = [*WORDS, "never", "unclear"]
ANSWERED = len(LABELS) - 1  # labels with an answer, the first ones
UNLIMITED = Budget(steps=1)


def told(document: str, label: str) -> int:
    """What a teacher says here: whether the label is a word of the document; it cannot say whether it is unclear."""
    return UNPARSED if label == "unclear" else YES if label in document.split() else NO


class Counting(Teacher):
    """Remembers every question, and stops answering after `breath` of them."""

    name = "counting"
    summary = "remembers"

    class Config(Teacher.Config):
        not_in_identity: ClassVar[frozenset[str]] = Teacher.Config.not_in_identity | {"size"}

        size: int = 7
        flavour: str = ""

    config: Config

    def __init__(self, config: Teacher.Config, breath: int | None = None) -> None:
        super().__init__(config)
        self.breath, self.asked, self.wrote = breath, list[tuple[str, str]](), list[str]()

    @property
    def batch_size(self) -> int:
        return self.config.size

    def ask(self, pairs: Pairs) -> Iterator[Answers]:
        places = np.arange(len(pairs))[::-1]  # in any order
        for part in np.split(places, range(3, len(pairs), 3)):
            left = None if self.breath is None else self.breath - len(self.asked)
            answered = [(pairs.documents[place], pairs.labels[place]) for place in part[:left]]
            self.asked += answered
            yield Answers(
                part[:left],
                np.array([told(*pair) for pair in answered], np.int8),
                np.full(len(answered), 0.75, np.float32),
                np.array([len(document) for document, _ in answered], np.int64),
                np.array([len(label) for _, label in answered], np.int64),
            )
            if len(answered) < len(part):
                raise ConnectionError("out of breath")

    def write(self, documents: Sequence[str], prompt: str, tokens: int) -> Iterator[Replies]:
        """The words of the document, a line each, the last document first."""
        for place in range(len(documents))[::-1]:
            if self.breath is not None and len(self.wrote) >= self.breath:
                raise ConnectionError("out of breath")
            self.wrote.append(documents[place])
            reply = "\n".join(documents[place].split()[:tokens])
            spent = (np.array([len(prompt)]), np.array([len(reply)]))
            yield Replies(np.array([place]), [reply], *spent)


def counting(**settings: Any) -> Counting:
    breath = settings.pop("breath", None)
    return Counting(Counting.Config(name="counting", **settings), breath)


@dataclass
class Desk:
    """One trial in a folder; another with the same root shares its store."""

    root: Path
    name: str = "trial"
    budget: Budget = UNLIMITED
    ledger: Ledger = field(default_factory=Ledger)
    documents: list[str] = field(default_factory=lambda: DOCUMENTS)
    labels: list[str] = field(default_factory=lambda: LABELS)

    def judge(self, teacher: Teacher) -> CachedJudge:
        path = self.root / self.name / "charged.bin"
        charged_pairs = cache(lambda: ChargedPairs(path, self.ledger.teacher_calls))
        return CachedJudge(
            teacher,
            0,
            JudgementStore(self.root / "results"),
            self.documents,
            np.arange(len(self.documents)),
            self.labels,
            Account(self.ledger, self.budget, charged_pairs),
        )

    def expected(self, documents: np.ndarray, labels: np.ndarray) -> np.ndarray:
        pairs = zip(documents.tolist(), labels.tolist(), strict=True)
        return np.array([told(self.documents[d], self.labels[label]) for d, label in pairs], np.int8)


def every_pair(documents: int = len(DOCUMENTS), labels: int = len(LABELS)) -> tuple[np.ndarray, np.ndarray]:
    """Each document with each label, document by document."""
    return np.repeat(np.arange(documents), labels), np.tile(np.arange(labels), documents)


def ask_everything(root: str, name: str, pipe: Connection) -> None:
    """What another process does in the two-process test: every pair, and what its teacher was asked."""
    teacher = counting()
    desk = Desk(Path(root), name)
    found = desk.judge(teacher)(*every_pair(labels=ANSWERED))
    pipe.send((teacher.asked, found.answers.tolist(), desk.ledger.teacher_cached))
