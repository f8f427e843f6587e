"""The dataset and its card.

Shapes: N training queries, T test queries, L labels. Targets are CSR matrices of ones; a row may be empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy
from pydantic import BaseModel, ConfigDict, Field

from xmcbench.data.text_files import no_pairs
from xmcbench.data.texts import PackedTexts, TextSubset, take
from xmcbench.errors import XMCBenchError

Texts = Sequence[str]


class Facts(BaseModel):
    """The facts of a dataset that metrics need besides the data. Nothing is guessed from a dataset's name."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    name: str
    propensity_a: float = Field(default=0.55, allow_inf_nan=False, description="A of the propensity model")
    propensity_b: float = Field(default=1.5, gt=-1, allow_inf_nan=False, description="B of the propensity model")
    max_length: int = Field(default=32, ge=1, description="maximum length of a query in tokens")
    max_label_length: int = Field(default=32, ge=1, description="maximum length of a label in tokens")
    tail_at_most: int = Field(default=5, ge=0, description="a tail label has at most this many training queries")
    head_at_least: int = Field(default=50, ge=1, description="a head label has at least this many training queries")
    source: str = Field(default="", description="where the dataset comes from")
    licence: str = Field(default="", description="terms of use")


class DatasetCard(Facts):
    """The facts about a dataset, its sizes and the hash of its content."""

    num_train: int = Field(ge=1, description="training queries")
    num_test: int = Field(ge=1, description="test queries")
    num_labels: int = Field(ge=1)
    content_hash: str = Field(default="", description="SHA-256 of texts, targets and ignored pairs; filled in on load")


@dataclass(frozen=True)
class Split:
    """Queries and their true labels: `texts` of length N, `targets` [N, L]."""

    texts: Texts
    targets: scipy.sparse.csr_array


@dataclass(frozen=True)
class TrainingData:
    """All that a method may see: the training split and the label texts, but no test target.

    `ignore` [N, L] marks training pairs that evaluation would drop (reciprocal pairs): they must not be hard negatives.
    """

    card: DatasetCard
    texts: Texts
    targets: scipy.sparse.csr_array
    label_texts: Texts
    ignore: scipy.sparse.csr_array

    @property
    def num_labels(self) -> int:
        return len(self.label_texts)

    def rows(self, ids: np.ndarray) -> TrainingData:
        """The same data with only the training queries in `ids`, in that order."""
        return self._with(take(self.texts, ids), ids)

    def most_rows(self, ids: np.ndarray) -> TrainingData:
        """Like `rows`, for nearly all queries: they share the tokenizer and the cached tokens of all."""
        return self._with(TextSubset(PackedTexts.of(self.texts), ids), ids)

    def _with(self, texts: Texts, ids: np.ndarray) -> TrainingData:
        return replace(self, texts=texts, targets=self.targets[ids], ignore=self.ignore[ids])

    def with_targets(self, targets: scipy.sparse.csr_array) -> TrainingData:
        """The same queries with `targets` [N, L] as true pairs, for example a teacher's answers."""
        return TrainingData(self.card, self.texts, targets, self.label_texts, self.ignore)

    def unannotated(self, reader: str) -> TrainingData:
        """The same data without targets, for the method named `reader`; see `Unannotated`."""
        shape = (len(self.texts), self.num_labels)
        return Unannotated(self.card, self.texts, no_pairs(shape), self.label_texts, self.ignore, reader)


@dataclass(frozen=True)
class Unannotated(TrainingData):
    """Training data of the zero-shot track: it holds no annotations, and reading `targets` is an error.

    A method may supply targets of its own, such as a teacher's judgements, through `with_targets`.
    """

    reader: str = ""

    def __getattribute__(self, name: str) -> Any:
        if name == "targets":
            raise XMCBenchError(
                f"method {self.reader!r} asks for training annotations, which the zero-shot track does not have: "
                "run it in a suite with track: supervised"
            )
        return super().__getattribute__(name)

    def rows(self, ids: np.ndarray) -> TrainingData:
        none = no_pairs((len(ids), self.num_labels))
        return replace(self, texts=take(self.texts, ids), targets=none, ignore=self.ignore[ids])


@dataclass(frozen=True, repr=False)
class Dataset:
    """A card, a training split, a test split, label texts, and the pairs that evaluation ignores.

    `ignore_train` [N, L] and `ignore_test` [T, L] hold what the repository's `filter_labels_*.txt` list: pairs
    that are dropped from predictions (never from the truth).
    """

    card: DatasetCard
    train: Split
    test: Split
    label_texts: Texts
    ignore_train: scipy.sparse.csr_array
    ignore_test: scipy.sparse.csr_array

    def __repr__(self) -> str:
        card = self.card
        queries = f"{card.num_train:,} training and {card.num_test:,} test queries"
        return f"<Dataset {card.name}: {queries}, {card.num_labels:,} labels>"

    def training_data(self) -> TrainingData:
        return TrainingData(self.card, self.train.texts, self.train.targets, self.label_texts, self.ignore_train)

    def tested_on(self, rows: np.ndarray) -> Dataset:
        """The same data with only the test queries in `rows`, in that order."""
        test = Split(take(self.test.texts, rows), self.test.targets[rows])
        return replace(self, test=test, ignore_test=self.ignore_test[rows])
