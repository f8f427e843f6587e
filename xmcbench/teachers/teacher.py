"""What a teacher is: it is asked whether labels fit documents, and answers yes or no, or nothing one can make out.

Legend: N pairs of a document and a label, M of them answered at a time.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, SerializeAsAny

from xmcbench.data.dataset import TrainingData
from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.plugins.registry import registry


class TeacherError(XMCBenchError):
    """A teacher that does not answer. What it answered before is kept."""


@dataclass(frozen=True)
class Pairs:
    """N pairs to judge: the texts, and their rows among the dataset's training documents and labels."""

    documents: Sequence[str]
    labels: Sequence[str]
    document_ids: np.ndarray  # int64 [N]
    label_ids: np.ndarray  # int64 [N]

    def __len__(self) -> int:
        return len(self.document_ids)

    def runs(self) -> Iterator[range]:
        """Stretches of pairs of one document, which a prompt or its prefix may serve together."""
        starts = np.flatnonzero(np.diff(self.document_ids, prepend=-1))
        for start, stop in zip(starts, [*starts[1:], len(self)], strict=True):
            yield range(int(start), int(stop))


@dataclass(frozen=True)
class Answers:
    """Answers to M of the pairs a teacher was asked, as soon as it has them."""

    places: np.ndarray  # int64 [M], which of the pairs
    answers: np.ndarray  # int8 [M]: YES, NO or UNPARSED
    confidence: np.ndarray  # float32 [M] in 0..1
    prompt_tokens: np.ndarray  # int64 [M]; a prompt for several pairs is shared out among them
    completion_tokens: np.ndarray  # int64 [M]


class Teacher(ABC):
    """Judges pairs of a document and a label. The harness keeps every answer, and asks no pair twice.

    A subclass has a `name`, a `summary`, a `Config`, and `ask`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    version: ClassVar[int] = 1  # to be raised by every change that moves its answers
    simulated: ClassVar[bool] = False
    """Whether the answers come from annotations: it is shown the training data (`attend`), in a process of its own
    that no method can look into, and records say so."""

    class Config(BaseModel):
        """Settings of a teacher: frozen, and a key it does not know is an error. A bare name is `{name: ...}`."""

        model_config = ConfigDict(frozen=True, extra="forbid")
        indifferent: ClassVar[frozenset[str]] = frozenset({"name", "prompt"})
        """Settings on which an answer does not depend, or which (name, prompt) are told apart on their own."""

        name: str

        @classmethod
        def kind_of(cls, value: Any) -> type[Teacher.Config]:
            """The class of settings that `value`, as it stands in a file, has to fit: that of the teacher it names.

            Raises ValueError where no teacher has the name.
            """
            name = value.get("name") if isinstance(value, dict) else None
            if not isinstance(name, str):
                return cls
            try:
                found: type[Teacher.Config] = registry().teacher(name).Config
            except UnknownNameError as problem:
                raise ValueError(str(problem)) from None
            return found

    def __init__(self, config: Config) -> None:
        self.config = config

    @property
    def title(self) -> str:
        """What people are told of it: its name, and what else tells it from others of the name."""
        return self.name

    @property
    def template(self) -> str:
        """The text of its prompts, with placeholders; none for a teacher that reads no prompt."""
        return ""

    @property
    def at_once(self) -> int:
        """Pairs it is handed at a time: what is asked in vain, at most, when a limit on tokens is reached."""
        return 4096

    def identity(self) -> dict[str, Any]:
        """All that determines its answers, beside template and texts; no secret."""
        settings = self.config.model_dump(mode="json", exclude=set(self.config.indifferent))
        name = self.name if self.version == 1 else f"{self.name} version {self.version}"
        return {"teacher": name, **settings}

    def attend(self, train: TrainingData) -> None:  # noqa: B027
        """Called once before it is asked, of a simulated teacher only, with the whole training split."""

    @abstractmethod
    def ask(self, pairs: Pairs) -> Iterator[Answers]:
        """Answer every pair once, in any order, a few at a time: what is handed over is kept, whatever comes after.

        Raises TeacherError where it cannot.
        """

    def close(self) -> None:  # noqa: B027
        """Let go of what it holds."""


def _settings(value: Any) -> Any:
    if isinstance(value, Teacher.Config):
        return value
    value = {"name": value} if isinstance(value, str) else value
    # As suites are read: types as written, lists for tuples.
    return Teacher.Config.kind_of(value).model_validate_json(json.dumps(value), strict=True)


TeacherConfig = Annotated[SerializeAsAny[Teacher.Config], BeforeValidator(_settings)]
"""The type of a method's setting that names a teacher: the settings of that teacher."""
