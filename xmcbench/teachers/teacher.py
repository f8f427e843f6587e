"""The contract of a teacher, which judges whether a label fits a document: yes, no, or a reply without an answer.

A teacher that generates text can also write about a document, such as the labels that it would give it, and one that
embeds texts serves `run.embedder`. Legend: N document-label pairs, documents or texts, M of them in one batch of
answers, D dimensions of an embedding.
"""

from __future__ import annotations

import json
import math
from abc import ABC
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import BeforeValidator, Field, NonNegativeFloat, SerializeAsAny

from xmcbench.data.dataset import TrainingData
from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.plugins.registry import registry
from xmcbench.trial.record_fields import Frozen
from xmcbench.trial.run import NO, UNPARSED, YES

# Kinds of replies without an answer, beside UNPARSED. A method sees UNPARSED for all of them; the ledger counts each.
CUT = -3  # the reply ended at its limit of tokens before it had answered
REFUSED = -4  # the model or its server refused the prompt, as too long or for its content


class TeacherError(XMCBenchError):
    """A teacher does not answer. Its earlier answers are in the store."""


@dataclass(frozen=True)
class Pairs:
    """N document-label pairs to judge: their texts, and their ids among the dataset's training documents and labels."""

    documents: Sequence[str]
    labels: Sequence[str]
    document_ids: np.ndarray  # int64 [N]
    label_ids: np.ndarray  # int64 [N]

    def __len__(self) -> int:
        return len(self.document_ids)

    def runs(self) -> Iterator[range]:
        """The ranges of consecutive pairs with the same document, which can share a prompt or a cached prefix."""
        starts = np.flatnonzero(np.diff(self.document_ids, prepend=-1))
        for start, stop in zip(starts, [*starts[1:], len(self)], strict=True):
            yield range(int(start), int(stop))


@dataclass(frozen=True)
class Answers:
    """A batch of answers to M of the pairs that a teacher was asked about."""

    places: np.ndarray  # int64 [M], indices of the pairs
    answers: np.ndarray  # int8 [M]: YES or NO; UNPARSED, CUT or REFUSED for a reply without an answer
    confidence: np.ndarray  # float32 [M] in 0..1
    prompt_tokens: np.ndarray  # int64 [M]; the tokens of a prompt for several pairs are divided among them
    completion_tokens: np.ndarray  # int64 [M]


@dataclass(frozen=True)
class Replies:
    """A batch of what a teacher wrote about M of the documents that it was given.

    `answers`, int8 [M], are YES where a text says something, else UNPARSED, CUT or REFUSED; None: UNPARSED for blanks.
    """

    places: np.ndarray  # int64 [M], indices of the documents
    texts: Sequence[str]  # M
    prompt_tokens: np.ndarray  # int64 [M]
    completion_tokens: np.ndarray  # int64 [M]
    answers: np.ndarray = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.answers is None:
            kinds = [YES if text.strip() else UNPARSED for text in self.texts]
            object.__setattr__(self, "answers", np.array(kinds, np.int8))


@dataclass(frozen=True)
class Vectors:
    """A batch of the embeddings of M of the texts that a teacher was given."""

    places: np.ndarray  # int64 [M], indices of the texts
    vectors: np.ndarray  # float32 [M, D]
    prompt_tokens: np.ndarray  # int64 [M]

    @property
    def completion_tokens(self) -> np.ndarray:
        """int64 [M]: no text is written."""
        return np.zeros(len(self.places), np.int64)

    @property
    def answers(self) -> np.ndarray:
        """int8 [M]: each text has an answer."""
        return np.full(len(self.places), YES, np.int8)


def has_answer(answers: np.ndarray) -> np.ndarray:
    """bool [M]: the reply is a YES or a NO."""
    return np.asarray((answers == YES) | (answers == NO))


class Teacher(ABC):
    """Judges pairs, writes or embeds. The harness stores every answer, and never asks twice for what it knows.

    A subclass defines `name`, `summary`, `Config`, and what it can do of `ask`, `write` and `embed`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    version: ClassVar[int] = 1  # raise it with every change that alters the answers
    judge: ClassVar[str] = "cached"  # the name of the maker of judges through which methods ask it
    simulated: ClassVar[bool] = False
    """Whether the answers come from annotations. The teacher then receives the training data (`read_annotations`) and
    runs in a separate process, out of reach of the method. Its records are marked as simulated."""

    class Config(Frozen):
        """Settings of a teacher: immutable, and an unknown key is an error. A bare name means `{name: ...}`."""

        not_in_identity: ClassVar[frozenset[str]] = frozenset({"name", "prompt", "price"})
        """Settings that `identity` leaves out: those that change no answer, and name and prompt, which are stored
        separately."""

        name: str
        price: tuple[NonNegativeFloat, NonNegativeFloat] | None = Field(
            None,
            exclude_if=lambda price: price is None,  # keys are those of settings that know none
            description="money for a million tokens of prompts, and of answers: charged as `money`",
        )

        def versions(self) -> dict[str, int]:
            """The teacher's version, as the record of a method that asks it names it."""
            return {f"teacher {self.name}": registry().version("teacher", self.name)}

        @classmethod
        def kind_of(cls, value: Any) -> type[Teacher.Config]:
            """The `Config` class of the teacher that `value`, the settings in a file, names.

            Raises ValueError if there is no teacher with this name.
            """
            name = value.get("name") if isinstance(value, dict) else None
            if not isinstance(name, str):
                return cls
            try:
                config_class: type[Teacher.Config] = registry().thing("teacher", name).Config
            except UnknownNameError as problem:
                raise ValueError(str(problem)) from None
            return config_class

    def __init__(self, config: Config) -> None:
        self.config = config
        self.served_as: set[str] = set()
        """The names by which a server has called its model, in this trial's replies and in earlier ones."""

    def check_machine(self) -> None:  # noqa: B027
        """Raises XMCBenchError if this machine lacks a package, a key or a file that the teacher needs. Asks nothing.

        It is told before any trial runs.
        """

    @property
    def title(self) -> str:
        """The teacher in tables and messages: its name and what distinguishes it from others of that name."""
        return self.name

    @property
    def described(self) -> str:
        """The title, with the names by which its server calls the model where it has others than the settings."""
        names = sorted(self.served_as)
        differ = names and names != [getattr(self.config, "model", None)]
        return f"{self.title}, served as {' and '.join(names)}" if differ else self.title

    @property
    def price(self) -> tuple[float, float]:
        """Money for a million tokens of prompts, and of answers."""
        return self.config.price or (0.0, 0.0)

    @property
    def template(self) -> str:
        """The prompt template, with placeholders; empty for a teacher without prompts."""
        return ""

    @property
    def batch_size(self) -> int:
        """Pairs per call of `ask`. When a limit on tokens is reached, the answers to at most this many go unused."""
        return 4096

    def reads(self, document: str) -> str:
        """The part of a document that the teacher reads. Documents with the same part share their answers."""
        return document

    @property
    def without_answer(self) -> str:
        """The latest reply without an answer, and the setting that may mend it, for an error message."""
        return ""

    @property
    def longest_document(self) -> float:
        """About how many tokens of a document the teacher reads at most, for what is said before a run."""
        return math.inf

    @property
    def pairs_per_prompt(self) -> int:
        """Pairs of one document that share a prompt."""
        return 1

    def identity(self) -> dict[str, Any]:
        """Everything that determines the answers, apart from the template and the texts. It must contain no secret."""
        settings = self.config.model_dump(mode="json", exclude=set(self.config.not_in_identity))
        name = self.name if self.version == 1 else f"{self.name} version {self.version}"
        return {"teacher": name, **settings}

    def read_annotations(self, train: TrainingData) -> None:  # noqa: B027
        """Receive the whole training split. Called once before `ask`, and only on a simulated teacher."""

    def ask(self, pairs: Pairs) -> Iterator[Answers]:  # noqa: ARG002
        """Answer every pair once, in any order. Each yielded batch is stored at once, so a later failure loses nothing.

        Raises TeacherError if the teacher judges nothing, which is the default, or does not answer.
        """
        raise TeacherError(f"teacher {self.title}: it judges nothing")

    def write(self, documents: Sequence[str], prompt: str, tokens: int) -> Iterator[Replies]:  # noqa: ARG002
        """Reply in at most `tokens` tokens to `prompt`, a template, about each of N documents, as `ask` answers.

        Raises TeacherError if the teacher writes nothing, which is the default, or does not answer.
        """
        raise TeacherError(f"teacher {self.title}: it writes nothing")

    def embed(self, texts: Sequence[str]) -> Iterator[Vectors]:  # noqa: ARG002
        """The embeddings of N texts, each once, in any order, as `ask` answers; `reads` has cut the texts.

        Raises TeacherError if the teacher embeds nothing, which is the default, or does not answer.
        """
        raise TeacherError(f"teacher {self.title}: it embeds nothing")

    def close(self) -> None:  # noqa: B027
        """Release connections, models and memory."""


def _settings(value: Any) -> Any:
    if isinstance(value, Teacher.Config):
        return value
    value = {"name": value} if isinstance(value, str) else value
    # Validate as strictly as a suite: no conversion of types, lists for tuples.
    return Teacher.Config.kind_of(value).model_validate_json(json.dumps(value), strict=True)


TeacherConfig = Annotated[SerializeAsAny[Teacher.Config], BeforeValidator(_settings)]
"""The type of a method's setting that holds the settings of a teacher."""
