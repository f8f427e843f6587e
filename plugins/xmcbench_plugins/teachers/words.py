"""A teacher of words alone: no model, no network and no price. It stands in for a paid one while a method is written.

Legend: N texts, D dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b

import numpy as np
from pydantic import Field

from xmcbench.teachers.teacher import Answers, Pairs, Replies, Teacher, Vectors


class Words(Teacher):
    """Accepts a label if one of its words is in the document, writes a document's first words, embeds hashed words."""

    name = "words"
    summary = "looks for common words: offline, and free"

    class Config(Teacher.Config):
        dimensions: int = Field(64, gt=0, description="of an embedding")

    config: Config

    def ask(self, pairs: Pairs) -> Iterator[Answers]:
        found = [
            not _words(label).isdisjoint(_words(text))
            for text, label in zip(pairs.documents, pairs.labels, strict=True)
        ]
        spent = np.array([_tokens(text) for text in pairs.documents], np.int64)
        ones = np.ones(len(pairs), np.float32)
        yield Answers(np.arange(len(pairs)), np.array(found, np.int8), ones, spent, np.ones_like(spent))

    def write(self, documents: Sequence[str], prompt: str, tokens: int) -> Iterator[Replies]:  # noqa: ARG002
        texts = ["\n".join(text.split()[:tokens]) for text in documents]
        spent = (np.array([_tokens(text) for text in part], np.int64) for part in (documents, texts))
        yield Replies(np.arange(len(texts)), texts, *spent)

    def embed(self, texts: Sequence[str]) -> Iterator[Vectors]:
        vectors_ND = np.zeros((len(texts), self.config.dimensions), np.float32)
        for row, text in enumerate(texts):
            for word in sorted(_words(text)):
                number = int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "little")
                vectors_ND[row, number % self.config.dimensions] += 1 if number >> 63 else -1
        spent = np.array([_tokens(text) for text in texts], np.int64)
        yield Vectors(np.arange(len(texts)), vectors_ND, spent)


def _words(text: str) -> set[str]:
    return set(text.lower().split())


def _tokens(text: str) -> int:
    return max(1, len(text.split()))
