"""A dataset as plans see it: text lengths in tokens, targets, and stand-in vectors of the texts.

Of a dataset on disk the texts are tokenised. The stand-in vector of a text is the sum of a random vector for each of
its tokens: samplers find neighbours and clusters among them much as among embeddings. Of a dataset that is not on disk
the card gives the sizes; labels are drawn at random, and lengths are those the user gives, else those that follow from
the card's words per text, else the longest.

Legend: N training queries, L labels, T test queries, D dimensions of stand-in vectors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn.functional import normalize

from xmcbench.data import DatasetCard
from xmcbench.data.dataset import TrainingData
from xmcbench.data.text_files import no_pairs
from xmcbench.data.tokens import Tokens
from xmcbench.trial.run import derive_seed

STAND_IN = 32  # dimensions of a stand-in vector; of a large dataset 1
LARGE = 200_000  # texts: a dataset with more queries is represented by a sample
SAMPLE = 50_000  # queries of the sample
LABELS_PER_QUERY = 5  # where the card does not say


@dataclass(frozen=True)
class Lengths:
    """Lengths in tokens that the user gives for a dataset that is not on disk; None: those that its card implies."""

    query_tokens: int | None = None
    label_tokens: int | None = None


@dataclass(frozen=True)
class Workload:
    """A dataset as a plan sees it. `measured` is False where lengths and targets are assumed."""

    train: TrainingData
    query_lengths_N: np.ndarray
    label_lengths_L: np.ndarray
    num_test: int
    queries_ND: Tensor = field(repr=False)
    labels_LD: Tensor = field(repr=False)
    measured: bool
    num_queries: int  # of the dataset; those here may be a sample of them
    token_counts_V: np.ndarray | None = field(default=None, repr=False)  # in all texts here; None where assumed

    @property
    def share(self) -> float:
        """The share of the dataset's training queries that are here; the others are taken to be like them."""
        return len(self.query_lengths_N) / self.num_queries

    def distinct(self, tokens: int) -> float:
        """About how many different tokens so many have; where they are assumed, each is another."""
        if self.token_counts_V is None:
            return float(tokens)
        shares_V = self.token_counts_V / max(1, self.token_counts_V.sum())
        return float((1 - (1 - shares_V) ** tokens).sum())

    @cached_property
    def all_query_lengths_N(self) -> np.ndarray:
        """The lengths of all training queries of the dataset: those here, repeated."""
        return np.resize(self.query_lengths_N, self.num_queries)

    @cached_property
    def trained_queries_ND(self) -> Tensor:
        """Stand-in vectors of the queries once a model was trained: half the text's, half those of its true labels."""
        sums_ND = torch.from_numpy(self.train.targets @ self.labels_LD.numpy())
        return normalize(self.queries_ND + normalize(sums_ND, dim=1), dim=1)

    @classmethod
    def of(cls, train: TrainingData, queries: Tokens, labels: Tokens, num_test: int, num_queries: int) -> Workload:
        """The workload of a dataset with `num_queries` training queries, all of which or a sample are tokenised."""
        query_tokens, label_tokens = queries.flat(), labels.flat()
        vocabulary = 1 + max(int(ids.max(initial=0)) for ids, _ in (query_tokens, label_tokens))
        size = STAND_IN if max(len(queries), len(labels)) <= LARGE else 1
        words_VD = np.random.default_rng(0).standard_normal((vocabulary, size), dtype=np.float32)
        # Frequent tokens weigh less: they distinguish texts the least.
        counts_V = np.bincount(query_tokens[0], minlength=vocabulary)
        words_VD /= np.log(np.e + counts_V)[:, None]
        queries_ND, labels_LD = (
            normalize(torch.from_numpy(_sums(words_VD, *tokens)), dim=1) for tokens in (query_tokens, label_tokens)
        )
        every_V = counts_V + np.bincount(label_tokens[0], minlength=vocabulary)
        return cls(train, queries.lengths, labels.lengths, num_test, queries_ND, labels_LD, True, num_queries, every_V)

    @classmethod
    def assumed(
        cls, card: DatasetCard, query_tokens: int, label_tokens: int, labels_per_query: int = LABELS_PER_QUERY
    ) -> Workload:
        """The workload of a dataset of which only the card is known: queries have one length, and labels another."""
        rng = np.random.default_rng(derive_seed(0, "assumed"))
        rows, columns = (SAMPLE if card.num_train > LARGE else card.num_train), card.num_labels
        width = min(labels_per_query, columns)
        ids = np.sort(rng.integers(0, columns, (rows, width), dtype=np.int32), axis=1)
        indptr = np.arange(0, rows * width + 1, width, dtype=np.int64)
        targets = sp.csr_array((np.ones(rows * width, np.float32), ids.ravel(), indptr), shape=(rows, columns))
        nothing = no_pairs((rows, columns))
        texts = [""]  # nobody reads them
        train = TrainingData(card, texts * rows, targets, texts * columns, nothing)
        size = STAND_IN if max(rows, columns) <= LARGE else 1
        queries_ND, labels_LD = (
            normalize(torch.from_numpy(rng.standard_normal((n, size), dtype=np.float32)), dim=1)
            for n in (rows, columns)
        )
        return cls(
            train,
            np.full(rows, query_tokens),
            np.full(columns, label_tokens),
            card.num_test,
            queries_ND,
            labels_LD,
            measured=False,
            num_queries=card.num_train,
        )

    def part(self, queries: int, labels: int) -> TrainingData:
        """At most `queries` queries that have a label, and at most `labels` labels, those of the queries first."""
        targets = self.train.targets
        rows = np.flatnonzero(np.diff(targets.indptr))[:queries]
        theirs = np.unique(targets[rows].indices)
        others = np.setdiff1d(np.arange(min(self.train.num_labels, 4 * labels)), theirs)
        columns = np.concatenate((theirs, others[: max(0, labels - len(theirs))]))
        card = self.train.card.model_copy(update={"num_train": len(rows), "num_labels": len(columns)})
        shape = (len(rows), len(columns))
        return TrainingData(
            card,
            [""] * len(rows),
            sp.csr_array(targets[rows][:, columns]),
            [""] * len(columns),
            no_pairs(shape),
        )


def _sums(words_VD: np.ndarray, ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """[N, D] the sum of the vectors of each text's tokens, which lie end to end."""
    counts = sp.csr_array((np.ones(len(ids), np.float32), ids, offsets), shape=(len(offsets) - 1, len(words_VD)))
    sums: np.ndarray = counts @ words_VD
    return sums
