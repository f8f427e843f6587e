"""The judge: a method's view of a teacher, which it asks about document-label pairs.

Legend: N pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

import numpy as np

YES, NO = 1, 0
UNPARSED = -1  # the teacher answered, but with neither yes nor no
UNASKED = -2  # the budget was spent before the pair's turn


@dataclass(frozen=True)
class Judgements:
    """A teacher's answers about N pairs."""

    answers: np.ndarray  # int8 [N]: YES, NO, UNPARSED, or UNASKED
    confidence: np.ndarray  # float32 [N] in 0..1, how sure the teacher was of its answer

    @property
    def yes(self) -> np.ndarray:
        """bool [N]: the answer is yes."""
        return np.asarray(self.answers == YES)

    @property
    def no(self) -> np.ndarray:
        """bool [N]: the answer is no."""
        return np.asarray(self.answers == NO)

    @property
    def asked(self) -> np.ndarray:
        """bool [N]: there is an answer, possibly UNPARSED."""
        return np.asarray(self.answers != UNASKED)


class TeacherSettings(Protocol):
    """The settings that name a teacher: `xmcbench.teachers.Teacher.Config` or a subclass."""

    @property
    def name(self) -> str:
        """The name of the teacher."""


class Judge(Protocol):
    """Asks one teacher about the training documents and labels of a trial. Leaving the `with` block closes it."""

    def __call__(self, document_ids: np.ndarray, label_ids: np.ndarray, /) -> Judgements:
        """Judge N pairs, given as ids [N] of documents and of labels, in the order in which the budget is spent.

        An answer that is in the store is not asked for again, but is charged like a new one. A trial is charged once
        for each distinct pair. Raises an XMCBenchError where the teacher does not answer.
        """

    def write(self, document_ids: np.ndarray, prompt: str, tokens: int) -> list[str | None]:
        """What the teacher writes about each of N documents to `prompt`, a template, in at most `tokens` tokens.

        It is kept and charged as judgements are, one call for each distinct document; None once the budget is spent.
        """

    def close(self) -> None:
        """Release the teacher and the store."""

    def __enter__(self) -> Judge: ...

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
