"""How a method comes to ask a teacher: a maker of judges, which a plugin registers, answers `run.judge(config)`."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np

from xmcbench.data.dataset import Texts
from xmcbench.plugins.hookspecs import check_subclass
from xmcbench.plugins.registry import registry
from xmcbench.teachers.teacher import Teacher, TeacherError
from xmcbench.trial.budget import Budget
from xmcbench.trial.run import Judge, Run


@dataclass(frozen=True)
class AnnotatedDataset:
    """The dataset whose annotations a simulated teacher reads."""

    name: str
    content_hash: str
    data: Path
    cache: Path


@dataclass(frozen=True)
class Asking:
    """What a trial gives to those who make its judges.

    `documents` are the training texts that the method sees, `rows` their rows in the dataset's training split. A
    simulated teacher reads the annotations of `annotated` in a process of its own, which `popen` starts.
    """

    run: Run
    store: Path
    annotated: AnnotatedDataset
    documents: Texts
    rows: np.ndarray
    labels: Texts
    popen: Callable[..., subprocess.Popen[str]] = subprocess.Popen


class Known(NamedTuple):
    """How many of a teacher's answers a store holds, and the tokens of their prompts and of the answers.

    Also how many of its embeddings, and the tokens of their texts.
    """

    answers: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    embeddings: int = 0
    embedded_tokens: int = 0


@runtime_checkable
class EmbeddingJudge(Protocol):
    """A judge that serves `run.embedder`."""

    def embed(self, texts: Texts, budget: Budget | None) -> np.ndarray:
        """The embeddings of the first M of N texts, float32 [M, D]: those that the trial and `budget` pay for."""


class JudgeMaker(ABC):
    """Makes the judges of one trial. A teacher names its maker: `Teacher.judge`."""

    name: ClassVar[str]

    def __init__(self, asking: Asking) -> None:
        self.asking = asking

    @classmethod
    def known(cls, store: Path, teacher: Teacher) -> Known:  # noqa: ARG003
        """What `store` holds of a teacher's answers. It asks nobody, and writes nothing."""
        return Known()

    @abstractmethod
    def judge(self, teacher: Teacher) -> Judge:
        """A judge that asks `teacher`. Making it asks nothing and loads nothing."""

    def close(self, problem: BaseException | None = None) -> None:  # noqa: B027
        """Close all judges, of a trial that failed with `problem` or ended well; closing twice is harmless."""


@dataclass
class Judges:
    """`run.judge` of a trial: each teacher is asked through the maker that it names."""

    asking: Asking
    teachers: list[Teacher]  # of the judges made so far, for the record
    _makers: dict[str, JudgeMaker] = field(default_factory=dict)
    _embedders: dict[str, Judge] = field(default_factory=dict)  # by the settings of their teachers

    def __call__(self, config: Teacher.Config) -> Judge:
        """A judge that asks the teacher named in `config`."""
        teacher: Teacher = registry().thing("teacher", config.name)(config)
        if teacher.judge not in self._makers:
            self._makers[teacher.judge] = registry().thing("judge", teacher.judge)(self.asking)
        judge = self._makers[teacher.judge].judge(teacher)
        self.teachers.append(teacher)
        return judge

    def embed(self, config: Teacher.Config, texts: Texts, budget: Budget | None) -> np.ndarray:
        """What answers an `Embedder`: see `EmbeddingJudge`. All embedders with the same settings share a judge."""
        judge = self._embedders.get(settings := config.model_dump_json()) or self(config)
        self._embedders[settings] = judge
        if not isinstance(judge, EmbeddingJudge):
            raise TeacherError(f"teacher {config.name!r}: its judge embeds nothing")
        return judge.embed(texts, budget)

    def __enter__(self) -> Judges:
        return self

    def __exit__(self, _: object, problem: BaseException | None, __: object) -> None:
        """Close all judges."""
        for maker in self._makers.values():
            maker.close(problem)


def check_plugin(thing: object) -> None:
    """Raise TypeError if `thing` cannot be registered as a maker of judges."""
    check_subclass(thing, JudgeMaker, "xmcbench.teachers.JudgeMaker")
