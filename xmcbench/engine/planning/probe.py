"""The workload, a dataset as plans see it; and the probe, which observes what a method does with embeddings, on a few
texts with random vectors, without an encoder.

Of a dataset on disk the texts are tokenised. The stand-in vector of a text is the sum of a random vector for each of
its tokens: samplers find neighbours and clusters among them much as among embeddings. Of a dataset that is not on disk
the card gives the sizes; labels are drawn at random, and lengths are those the user gives, else those that follow from
the card's words per text, else the longest.

Legend: N training queries, L labels, B queries of a batch, S labels of its pool, T test queries, D dimensions of an
embedding or a stand-in vector.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from xmcbench.data import DatasetCard
from xmcbench.data.dataset import TrainingData
from xmcbench.data.text_files import no_pairs
from xmcbench.data.tokens import Tokens
from xmcbench.engine import flops
from xmcbench.engine.device import computing_on
from xmcbench.engine.dual_encoder import add_modules
from xmcbench.engine.embedding_method import EmbeddingMethod
from xmcbench.engine.encoders.encoder import evaluating
from xmcbench.engine.sampling.batch import Batch, gather_rows
from xmcbench.engine.sampling.embeddings import Embeddings
from xmcbench.engine.sampling.sharding import Shard
from xmcbench.engine.training.gradient_cache import SavedBytes
from xmcbench.engine.workers import ALONE
from xmcbench.trial.run import derive_seed

STAND_IN = 32  # dimensions of a stand-in vector; of a large dataset 1
LEANING = 1.5  # weight of true labels in a trained query: pools are then about as large as those of trained encoders
LARGE = 200_000  # texts: a dataset with more queries is represented by a sample
SAMPLE = 50_000  # queries of the sample
LABELS_PER_QUERY = 5  # where the card does not say
VOCABULARY = 30_000  # different tokens of a dataset that is not on disk
FEW_QUERIES, FEW_LABELS = 48, 160  # that a probe sees
MORE_LABELS = 32  # at least, that are true for none of the queries


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
    token_counts_V: np.ndarray = field(repr=False)  # in all texts here
    num_held_out: int = 0  # queries that training evaluates on

    @property
    def share(self) -> float:
        """The share of the dataset's training queries that are here; the others are taken to be like them."""
        return len(self.query_lengths_N) / self.num_queries

    def distinct(self, tokens: int) -> float:
        """About how many different tokens so many have."""
        shares_V = self.token_counts_V / max(1, self.token_counts_V.sum())
        return float((1 - (1 - shares_V) ** tokens).sum())

    @cached_property
    def all_query_lengths_N(self) -> np.ndarray:
        """The lengths of all training queries of the dataset: those here, repeated."""
        return np.resize(self.query_lengths_N, self.num_queries)

    @cached_property
    def trained_labels_LD(self) -> Tensor:
        """Stand-in vectors of the labels once a model was trained: half the text's, half those of its queries."""
        queries_LD = torch.from_numpy(self.train.targets.T @ self.queries_ND.numpy())
        return normalize(self.labels_LD + normalize(queries_LD, dim=1), dim=1)

    @cached_property
    def trained_queries_ND(self) -> Tensor:
        """Stand-in vectors of the queries once a model was trained: the text's, and those of its true labels."""
        labels_ND = torch.from_numpy(self.train.targets @ self.trained_labels_LD.numpy())
        return normalize(self.queries_ND + LEANING * normalize(labels_ND, dim=1), dim=1)

    @classmethod
    def of(
        cls, train: TrainingData, queries: Tokens, labels: Tokens, num_test: int, num_queries: int, *, measured: bool
    ) -> Workload:
        """The workload of a dataset with `num_queries` training queries, all of which or a sample are tokenised."""
        flat = queries.flat(), labels.flat()
        vocabulary = 1 + max(int(ids.max(initial=0)) for ids, _ in flat)
        size = STAND_IN if max(len(queries), len(labels)) <= LARGE else 1
        words_VD = np.random.default_rng(0).standard_normal((vocabulary, size), dtype=np.float32)
        # Frequent tokens weigh less: they distinguish texts the least.
        counts_V, of_labels_V = (np.bincount(ids, minlength=vocabulary) for ids, _ in flat)
        words_VD /= np.log(np.e + counts_V)[:, None]

        def vectors(ids: np.ndarray, offsets: np.ndarray) -> Tensor:
            """[N, D] the sum of the vectors of each text's tokens, of length 1."""
            occur = sp.csr_array((np.ones(len(ids), np.float32), ids, offsets), shape=(len(offsets) - 1, vocabulary))
            return normalize(torch.from_numpy(occur @ words_VD), dim=1)

        lengths, (queries_ND, labels_LD) = (queries.lengths, labels.lengths), (vectors(*tokens) for tokens in flat)
        return cls(train, *lengths, num_test, queries_ND, labels_LD, measured, num_queries, counts_V + of_labels_V)

    @classmethod
    def assumed(
        cls, card: DatasetCard, query_tokens: int, label_tokens: int, labels_per_query: int = LABELS_PER_QUERY
    ) -> Workload:
        """A dataset known by its card alone: random tokens, one length for queries and one for labels."""
        rng = np.random.default_rng(derive_seed(0, "assumed"))
        rows, columns = (SAMPLE if card.num_train > LARGE else card.num_train), card.num_labels
        width = min(labels_per_query, columns)
        ids = np.sort(rng.integers(0, columns, (rows, width), dtype=np.int32), axis=1)
        indptr = np.arange(0, rows * width + 1, width, dtype=np.int64)
        targets = sp.csr_array((np.ones(rows * width, np.float32), ids.ravel(), indptr), shape=(rows, columns))
        queries, labels = (
            Tokens.from_offsets(
                rng.integers(0, VOCABULARY, count * length, dtype=np.int32),
                np.arange(0, count * length + 1, length, dtype=np.int64),
            )
            for count, length in ((rows, query_tokens), (columns, label_tokens))
        )
        train = _textless(card, targets)
        return cls.of(train, queries, labels, card.num_test, card.num_train, measured=False)

    def part(self) -> TrainingData:
        """At most `FEW_QUERIES` queries that have a label, and their labels before others: `FEW_LABELS`, or more."""
        targets = self.train.targets
        rows = np.flatnonzero(np.diff(targets.indptr))[:FEW_QUERIES]
        theirs = np.unique(targets[rows].indices)
        others = np.setdiff1d(np.arange(min(self.train.num_labels, 4 * FEW_LABELS)), theirs)
        columns = np.concatenate((theirs, others[: max(MORE_LABELS, FEW_LABELS - len(theirs))]))
        return _textless(self.train.card, sp.csr_array(targets[rows][:, columns]))


def _textless(card: DatasetCard, targets: sp.csr_array) -> TrainingData:
    """Training data with these targets, whose texts nobody reads."""
    rows, columns = targets.shape
    sized = card.model_copy(update={"num_train": rows, "num_labels": columns})
    return TrainingData(sized, [""] * rows, targets, [""] * columns, no_pairs(targets.shape))


@dataclass(frozen=True)
class Table:
    """A label table at full size. A row's bytes are those of its weights, optimiser state and other buffers."""

    rows: int
    row_bytes: float
    dimension: int
    learns: bool
    whole_gradient: bool = True  # whether the gradients of all rows that a step reads are there at once


@dataclass(frozen=True)
class PairwiseFlops:
    """Operations that grow with queries, with labels and with their pairs."""

    query: float
    label: float
    pair: float

    @classmethod
    def of(cls, whole: int, queries: int, labels: int, by_query: float, by_label: float | None) -> PairwiseFlops:
        """What gives `whole` for so many queries and labels, and grows as said with each query and label more there.

        With None for labels, nothing grows with pairs.
        """
        if by_label is None:
            by_label = (whole - by_query * queries) / labels
        pair = (by_query * queries + by_label * labels - whole) / (queries * labels)
        return cls(by_query - pair * labels, by_label - pair * queries, pair)

    def __call__(self, queries: int, labels: int) -> float:
        return self.query * queries + self.label * labels + self.pair * queries * labels


@dataclass(frozen=True)
class Probe:
    """The observations."""

    flops_per_pair: float  # operations of a step on scores, per pair of a query and a label of its pool
    true_label_flops: float  # of scores that only true labels have: per pair of a query and a label true in the batch
    query_pair_flops: float  # of products of queries with queries, per pair of them and label or dimension
    module_flops: PairwiseFlops  # of a step, of what the method multiplies beside scores
    vector_flops: tuple[int, int]  # of modules that make the vector that samplers see: of a query, and of a label
    begin_flops: float  # of modules before the first step, per text that is embedded then
    keeps_scores: bool  # whether the loss keeps scores of its forward pass for its backward pass
    mining_dimension: int  # of the vectors that samplers see
    pair_flops: int  # of the score of a query and a label
    scored_dimension: int  # of the vectors that are searched
    module_parameters: int  # of the method's own modules, label tables aside
    loss_bytes: float  # that the backward pass of the loss and of these modules takes, per text of a step
    pair_bytes: float  # the same per pair of texts, of a method that defines its own score
    groups: int  # of labels that share vectors; 0: none do
    grouping_flops: int  # operations that find them before training
    tables: dict[str, Table]


@computing_on("cpu")
def observe(method: EmbeddingMethod, work: Workload, dimension: int) -> Probe:
    """Build the method's modules over a few texts, take one step of its loss, and count operations and bytes."""
    part = work.part()
    few = _without_encoder(method, dimension, batch_size=len(part.texts))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vectors = {
            count: normalize(torch.randn(count, dimension), dim=1) for count in {len(part.texts), part.num_labels}
        }
        embeddings = Embeddings(lambda: vectors[len(part.texts)], lambda: vectors[part.num_labels], train=part)
        groups, grouping_flops = _groups(_without_encoder(method, dimension), work)
        # Fewer groups than labels, so that a table with a row for each group is not taken for one of the labels.
        add_modules(few, part, ALONE, np.arange(part.num_labels) // 2 if groups else None, seed=0)
        with torch.no_grad(), flops.counting() as begun:
            few.begin(embeddings)
        sampler = few.training_sampler(part, 0)
        sampler.refresh(0, embeddings)
        batch = sampler.batch(0, 0).scored_by(few.own_score)
        scored, saved = _loss_step(few, batch, dimension)
        queries, labels = len(batch.query_ids), len(batch.label_ids)
        with evaluating(few.modules), torch.no_grad():
            both = torch.randn(2, dimension)
            mining, searched = few.mining_query_vectors(both), few.query_vectors(both)
        per_pair, of_true, of_two = scored.flops / (queries * labels), 0.0, 0.0
        wrong = np.setdiff1d(np.setdiff1d(np.arange(part.num_labels), part.targets.indices), batch.label_ids)
        by_query, by_label = 0.0, None
        if half := queries // 2:
            fewer, _ = _loss_step(few, _first_queries(batch, half), dimension)
            by_query = (scored.module_flops - fewer.module_flops) / (queries - half)
            if len(wrong) == 0:  # the pool has all labels: what grows faster than queries multiplies pairs of them
                growth = scored.flops / queries - fewer.flops / half
                of_two = growth / ((queries - half) * (labels + searched.shape[1]))
                per_pair -= of_two * queries * (labels + searched.shape[1]) / labels
        if len(wrong):  # what grows with the pool is seen in a larger one
            larger, _ = _loss_step(few, sampler.with_pool(batch, np.union1d(batch.label_ids, wrong)), dimension)
            per_pair = (larger.flops - scored.flops) / (queries * len(wrong))
            of_true = (scored.flops / queries - per_pair * labels) / true_labels(part, batch)
            by_label = (larger.module_flops - scored.module_flops) / len(wrong)
        of_text = {"queries": len(part.texts), "labels": part.num_labels}
        own_score = few.own_score is not None
        taken = saved.total + 2 * saved.largest  # two gradients of the largest
    return Probe(
        flops_per_pair=per_pair,
        true_label_flops=of_true,
        query_pair_flops=of_two,
        module_flops=PairwiseFlops.of(scored.module_flops, queries, labels, by_query, by_label),
        vector_flops=few.vector_flops,
        begin_flops=begun.module_flops / max(1, sum(of_text[texts] for texts in few.first_passes)),
        keeps_scores=scored.kept_scores > 0,
        mining_dimension=mining.shape[1],
        pair_flops=few.pair_flops(_label_width(few, dimension)) if own_score else 2 * mining.shape[1],
        scored_dimension=searched.shape[1],
        module_parameters=sum(p.numel() for p in few.modules.parameters() if p.requires_grad),
        loss_bytes=0.0 if own_score else taken / (queries + labels),
        pair_bytes=taken / (queries * labels) if own_score else 0.0,
        groups=groups,
        grouping_flops=grouping_flops,
        tables={
            name: Table(
                rows=work.train.num_labels if not groups or table.num_rows == part.num_labels else groups,
                row_bytes=sum(buffer.nbytes for buffer in table.buffers() if buffer.ndim) / table.num_rows,
                dimension=table.weight.shape[1],
                learns=table.learns,
                whole_gradient=table.config.dtype != "e4m3",
            )
            for name, table in few.tables().items()
        },
    )


def _label_width(few: EmbeddingMethod, dimension: int) -> int:
    """The numbers of the vector of a label."""
    ids_S = few.shard.label_ids[:1]
    with few.inference():
        return few.label_vectors(torch.zeros(1, dimension * few.encodes_labels), ids_S).shape[1]


def _without_encoder(method: EmbeddingMethod, dimension: int, **settings: Any) -> EmbeddingMethod:
    """The method with these settings, and in place of its encoder what has only its dimension."""
    copy = type(method)(method.config.model_copy(update=settings))
    encoder: Any = nn.Module()
    encoder.dimension, copy.encoder = dimension, encoder
    return copy


def _groups(full: EmbeddingMethod, work: Workload) -> tuple[int, int]:
    """The number of groups of labels that share vectors, 0 where none do; the operations that find them."""
    full.modules, full.shard = nn.Module(), Shard(work.train.num_labels, ALONE)
    with flops.counting() as scored:
        groups_L = full.label_groups(work.train, Embeddings(lambda: work.queries_ND, lambda: work.labels_LD))
    operations = scored.flops * full.encoder.dimension // work.labels_LD.shape[1]
    return 0 if groups_L is None else int(np.max(groups_L)) + 1, operations


def true_labels(train: TrainingData, batch: Batch) -> int:
    """The number of labels that are true for a query of the batch."""
    return len(np.unique(gather_rows(train.targets, batch.query_ids)[0]))


def _first_queries(batch: Batch, count: int) -> Batch:
    """The batch with its first queries alone, and the whole pool."""
    pairs = batch.positives
    kept_P = pairs.rows_P < count
    rows, columns = (ids_P[kept_P].numpy() for ids_P in (pairs.rows_P, pairs.columns_P))
    chosen = {which: weights_P[kept_P].numpy() for which, weights_P in pairs.chosen.items()}
    return Batch.of(batch.query_ids[:count], batch.label_ids, rows, columns, chosen).scored_by(pairs.score)


def _loss_step(few: EmbeddingMethod, batch: Batch, dimension: int) -> tuple[flops.Count, SavedBytes]:
    """What a step of the loss on random vectors counts, and what it keeps for its backward pass."""
    queries_BD = normalize(torch.randn(len(batch.query_ids), dimension), dim=1).requires_grad_()
    width = dimension if few.encodes_labels else 0
    labels_SD = normalize(torch.randn(len(batch.label_ids), width), dim=1).requires_grad_()
    few.modules.train()
    saved = SavedBytes((*few.modules.parameters(), queries_BD, labels_SD))  # embeddings are counted by themselves
    with flops.counting() as scored:
        with saved:
            loss = few.loss(queries_BD, labels_SD, batch)
        loss.backward()  # type: ignore[no-untyped-call]
    for table in few.tables().values():
        table.forget()
    return scored, saved
