"""A simulated teacher: the training annotations, with errors at a chosen rate. It writes the labels that it accepts.

Legend: N pairs, D documents, L labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import scipy
from pydantic import Field

from xmcbench.data.dataset import TrainingData
from xmcbench.data.pairs import contains
from xmcbench.data.text_files import pairs_csr
from xmcbench.teachers.teacher import Answers, Pairs, Replies, Teacher
from xmcbench.trial.splitmix64 import mix


class Annotated(Teacher):
    """Accepts a share `recall` of the annotated pairs and a share `false_accepts` of the other pairs.

    The answer about a pair depends on its texts and the seed alone. Of two teachers with the same seed, the better one
    errs on a subset of the pairs that the other errs on. Documents with the same text share their annotations, and so
    do labels.
    """

    name = "annotated"
    summary = "simulated: the training annotations, with errors at a chosen rate"
    simulated = True
    batch_size = 65_536  # an unused answer costs nothing

    class Config(Teacher.Config):
        recall: float = Field(1.0, ge=0, le=1, description="share of the annotated pairs that it accepts")
        false_accepts: float = Field(0.0, ge=0, le=1, description="share of the other pairs that it accepts")
        seed: int = Field(0, ge=0, description="chooses the pairs it errs on")

    config: Config
    annotations: scipy.sparse.csr_array  # [distinct documents, distinct labels]

    @property
    def title(self) -> str:
        return f"annotated (recall {self.config.recall:g}, false accepts {self.config.false_accepts:g})"

    def read_annotations(self, train: TrainingData) -> None:
        self._train = train
        self._document_D, documents = _distinct(train.texts)
        self._label_L, labels = _distinct(train.label_texts)
        targets = scipy.sparse.coo_array(train.targets)
        rows, columns = self._document_D[targets.coords[0]], self._label_L[targets.coords[1]]
        self.annotations = pairs_csr(rows, columns, (documents, labels))

    def ask(self, pairs: Pairs) -> Iterator[Answers]:
        rows, columns = self._document_D[pairs.document_ids], self._label_L[pairs.label_ids]
        true_N = contains(self.annotations[rows], columns[:, None])[:, 0]
        uniform_N = _uniform(pairs.documents, pairs.labels, self.config.seed)
        accepted_N = uniform_N < np.where(true_N, self.config.recall, self.config.false_accepts)
        tokens = np.zeros(len(pairs), np.int64)
        confidence = np.ones(len(pairs), np.float32)
        yield Answers(np.arange(len(pairs)), accepted_N.astype(np.int8), confidence, tokens, tokens)

    def write(self, documents: Sequence[str], prompt: str, tokens: int) -> Iterator[Replies]:  # noqa: ARG002
        """The texts of a share `recall` of the labels of each document, a line each."""
        rows = {text: row for row, text in zip(self._document_D, self._train.texts, strict=True)}
        _, firsts = np.unique(self._label_L, return_index=True)
        none = np.zeros(1, np.int64)
        for place, document in enumerate(documents):
            columns = self.annotations[[rows[document]]].indices
            labels = [self._train.label_texts[int(firsts[column])] for column in columns]
            accepted = _uniform([document] * len(labels), labels, self.config.seed) < self.config.recall
            text = "\n".join(label for label, said in zip(labels, accepted, strict=True) if said)
            yield Replies(np.array([place]), [text], none, none)


def _uniform(documents: Sequence[str], labels: Sequence[str], seed: int) -> np.ndarray:
    """[N] numbers in [0, 1), each a hash of the texts of a pair and the seed."""
    hashes_N = mix((_hashes(documents, f"document {seed}") ^ _hashes(labels, f"label {seed}")).view(np.int64))
    return np.asarray((hashes_N.view(np.uint64) >> np.uint64(11)).astype(np.float64) / 2**53)


def _hashes(texts: Sequence[str], purpose: str) -> np.ndarray:
    """uint64 [N]: a hash of each text for one purpose."""
    known: dict[str, int] = {}
    person = blake2b(purpose.encode(), digest_size=16).digest()
    for text in texts:
        if text not in known:
            known[text] = int.from_bytes(blake2b(text.encode(), digest_size=8, person=person).digest(), "little")
    return np.fromiter((known[text] for text in texts), np.uint64, len(texts))


def _distinct(texts: Sequence[Any]) -> tuple[np.ndarray, int]:
    """int64 [N]: the number of each text among the distinct texts; and how many distinct texts there are."""
    known: dict[bytes, int] = {}
    digests = (blake2b(texts[i].encode(), digest_size=16).digest() for i in range(len(texts)))
    numbers = np.fromiter((known.setdefault(digest, len(known)) for digest in digests), np.int64, len(texts))
    return numbers, len(known)
