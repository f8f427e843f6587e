"""ICT and RTS: dual encoders trained on pairs of texts that are cut out of one document, without any annotation.

Of each pair one text is the query, the other its label; the labels of the other pairs of a batch are its negatives.
What is predicted are the dataset's labels: the encoder that learnt to find a document by a part of it embeds them.

Legend: B queries of a batch, S pseudo labels of its pool, D dimensions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy
from pydantic import Field

from xmcbench import EmbeddingMethod, Method, MethodInfo, Run, XMCBenchError, data, hookimpl, losses, sampling

if TYPE_CHECKING:
    from torch import Tensor

Words = list[str]


class PseudoLabels(EmbeddingMethod):
    """The label of a document is a part of its text, which the subclass chooses."""

    class Config(EmbeddingMethod.Config):
        pairs_per_document: int = Field(
            1, gt=0, description="pairs sampled once, before training; an epoch is a pass over all of them"
        )
        temperature: float = Field(0.05, gt=0, description="divides the inner products (chosen)")

    config: PseudoLabels.Config

    def __init__(self, config: PseudoLabels.Config) -> None:
        super().__init__(config)
        self._rng = np.random.default_rng(0)  # for a plan; a trial draws its pairs by its own seed

    @abstractmethod
    def pair(self, words: Words, rng: np.random.Generator) -> tuple[Words, Words]:
        """A non-empty query and label from the words of a document, which has at least two."""

    @classmethod
    def needs_annotations(cls, config: Method.Config) -> bool:  # noqa: ARG003
        return False

    def fit(self, train: data.TrainingData, run: Run) -> None:
        self._rng = run.rng("pairs")
        super().fit(train, run)
        self.shard = self._real_shard()  # after training only the dataset's labels matter

    def pairs(self, train: data.TrainingData) -> list[tuple[str, str]]:
        """The queries and labels that are cut out of the documents. Raises XMCBenchError if there are none."""
        documents = (text.split() for text in train.texts)
        pairs = [
            (" ".join(query), " ".join(label))
            for words in documents
            if len(words) > 1
            for query, label in (self.pair(words, self._rng) for _ in range(self.config.pairs_per_document))
        ]
        if not pairs:
            raise XMCBenchError(
                f"{train.card.name}: no document has two words, expected at least one to split into a pair"
            )
        return pairs

    def training_data(self, train: data.TrainingData) -> data.TrainingData:
        """Pairs in place of documents and labels. Labels with the same words become one label."""
        self._real = train
        queries, labels = zip(*self.pairs(train), strict=True)
        numbers = {text: number for number, text in enumerate(dict.fromkeys(labels))}
        columns = np.fromiter((numbers[text] for text in labels), np.int64, len(labels))
        shape = len(queries), len(numbers)
        pairs = data.pairs_csr(np.arange(len(columns)), columns, shape)
        return data.TrainingData(
            train.card, queries, pairs, list(numbers), scipy.sparse.csr_array(shape, dtype=np.float32)
        )

    def index(self, labels: Any) -> None:  # noqa: ARG002
        """Embed the labels of the dataset instead of those of the training pairs."""
        length = self.config.max_label_length or self._real.card.max_label_length
        labels_of_pairs, self.shard = self.shard, self._real_shard()
        self.index_LD = self.all_label_vectors(self.encoder.label_tokenizer.tokens(self._real.label_texts, length))
        self.shard = labels_of_pairs  # training may continue

    def _real_shard(self) -> Any:
        return type(self.shard)(self._real.num_labels, self.shard.workers)

    def loss(self, queries_BD: Tensor, labels_SD: Tensor, batch: sampling.Batch) -> Tensor:
        positives = batch.positives
        return losses.softmax(queries_BD, labels_SD, positives, positives.every(), temperature=self.config.temperature)


class ICT(PseudoLabels):
    """The inverse cloze task: the label is a span of the document, the query is the document without it."""

    name = "ict"
    info = MethodInfo(
        summary="dual encoder trained on a span and the rest of its document",
        citation="Lee et al., Latent Retrieval for Weakly Supervised Open Domain Question Answering, ACL 2019",
        needs=("label texts",),
    )

    class Config(PseudoLabels.Config):
        span: Literal["random", "opening"] = Field(
            "random", description="position of the span; the opening contains the title, if there is one"
        )
        span_words: int = Field(8, gt=0, description="most words of the span")

    config: ICT.Config

    def pair(self, words: Words, rng: np.random.Generator) -> tuple[Words, Words]:
        length = min(self.config.span_words, len(words) // 2)
        start = int(rng.integers(len(words) - length + 1)) if self.config.span == "random" else 0
        return words[:start] + words[start + length :], words[start : start + length]


class RTS(PseudoLabels):
    """Randomised text segmentation: a document is split at random; query and label are spans of the two parts."""

    name = "rts"
    info = MethodInfo(
        summary="dual encoder trained on two random spans of a document",
        needs=("label texts",),
    )

    class Config(PseudoLabels.Config):
        span_words: int = Field(64, gt=0, description="most words of the span")

    config: RTS.Config

    def pair(self, words: Words, rng: np.random.Generator) -> tuple[Words, Words]:
        cut = int(rng.integers(1, len(words)))
        sides = [words[:cut], words[cut:]]
        if rng.random() < 0.5:
            sides.reverse()
        first, second = (self._window(side, rng) for side in sides)
        return first, second

    def _window(self, side: Words, rng: np.random.Generator) -> Words:
        start = int(rng.integers(max(0, len(side) - self.config.span_words) + 1))
        return side[start : start + self.config.span_words]


METHODS: tuple[type[PseudoLabels], ...] = (ICT, RTS)


@hookimpl
def register_methods(register: Callable[[type[Any]], None]) -> None:
    for method in METHODS:
        register(method)
