"""Embeddings from a model that is asked elsewhere, as a paid service. Nothing here imports torch.

An `Embedder` is a method's view of it, in `fit`, `predict` and a loaded model. While the harness fits or predicts,
`asked_through` tells which trial's store answers and which ledger is charged; otherwise the model is asked directly.
Legend: N texts, M of them that the budget pays for, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from xmcbench.data.dataset import Texts
from xmcbench.errors import XMCBenchError
from xmcbench.plugins.registry import registry
from xmcbench.trial.budget import Budget

# Settings, texts, budget: float32 [M, D] of the first M texts.
Ask = Callable[[Any, Texts, Budget | None], "np.ndarray"]
_ask: Ask | None = None


class ServiceBudgetSpentError(XMCBenchError):
    """The trial's budget does not pay for all texts that are to be embedded. Those that it paid for are cached."""


@contextmanager
def asked_through(ask: Ask) -> Iterator[None]:
    """Have `ask` answer every embedder of this process in the block."""
    global _ask
    before, _ask = _ask, ask
    try:
        yield
    finally:
        _ask = before


def ask_directly(config: Any, texts: Texts, _: Budget | None = None) -> np.ndarray:
    """The embeddings of all texts, float32 [N, D], from the model itself: no store keeps them, no ledger is charged."""
    teacher = registry().thing("teacher", config.name)(config)
    try:
        parts = list(teacher.embed([teacher.reads(text) for text in texts])) if len(texts) else []
    finally:
        teacher.close()
    if not parts:
        return np.zeros((0, 0), np.float32)
    order = np.argsort(np.concatenate([part.places for part in parts]))
    return np.asarray(np.concatenate([part.vectors for part in parts])[order], np.float32)


class Embedder:
    """Embeds texts by asking the model that `config`, a `teachers.TeacherConfig`, names.

    The store keeps every embedding, by the text and what the model is, for all trials. A trial is charged for each
    distinct text once, at its first cost, also where the store had it, and in `predict` too. `budget` limits `fit`.
    """

    def __init__(self, config: Any, budget: Budget | None = None) -> None:
        self.config, self._budget = config, budget

    def __call__(self, texts: Texts) -> np.ndarray:
        """The embeddings of N texts, float32 [N, D].

        Raises ServiceBudgetSpentError where the budget does not pay for all, and an XMCBenchError of one line where the
        model does not answer.
        """
        vectors_MD = self.within_budget(texts)
        if len(vectors_MD) < len(texts):
            raise ServiceBudgetSpentError(
                f"the budget pays for the embeddings of {len(vectors_MD):,} of {len(texts):,} texts, which are cached: "
                "raise teacher_calls, teacher_tokens or money, embed fewer texts, or keep a share for predict with "
                "run.reserve(0.8).embedder(...)"
            )
        return vectors_MD

    def within_budget(self, texts: Texts) -> np.ndarray:
        """The embeddings of the first M texts, float32 [M, D]: all that the budget pays for; (0, 0) where M is 0."""
        return (_ask or ask_directly)(self.config, texts, self._budget)
