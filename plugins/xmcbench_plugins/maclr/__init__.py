"""MACLR: a dual encoder that learns from titles, from clusters of growing fineness, and from its own best labels.

1. Pretraining: documents of a cluster share their titles as positives. The model clusters them anew as it learns, until
   each document is by itself (multi-scale adaptive clustering). Second views of documents are positives likewise,
   beside random labels of the dataset as negatives (label regularisation).
2. Self-training, from those weights, on each document's best label by TF-IDF and the model's surest.

Legend: N documents, B of a batch, L labels, S titles, views or labels of a pool, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import scipy
from pydantic import Field

from xmcbench import (
    EmbeddingMethod,
    Method,
    MethodInfo,
    PassTooLargeError,
    Run,
    data,
    evaluation,
    hookimpl,
    losses,
    registry,
    sampling,
    search,
)
from xmcbench_plugins.pseudo_labels import ICT

if TYPE_CHECKING:
    from torch import Tensor

    from xmcbench_plugins.maclr.parts import FinerClusters

WORDS = "tfidf-label"


class Pretraining(ICT):
    """The first stage alone. Labels of its training are N titles, N views of documents, then the dataset's labels."""

    name = "maclr-pretraining"
    info = MethodInfo(
        summary="dual encoder trained on titles and clusters of documents, with random labels as negatives",
        citation="Xiong et al., Extreme Zero-Shot Learning for Extreme Text Classification, NAACL 2022",
        needs=("label texts",),
    )
    not_planned: ClassVar[str] = "what it trains on depends on its own embeddings"

    class Config(ICT.Config):
        cluster_size: int = Field(128, gt=0, description="documents of a cluster at first; see `clustered`")
        cluster_every: int = Field(2, gt=0, description="epochs between clusterings, each a pass over the documents")
        clustered: float = Field(
            0.5, gt=0, le=1, description="share of pretraining with clusters, which halve in size at each fifth of it"
        )
        random_labels: float = Field(0.25, ge=0, description="labels of the dataset as negatives, per query of a batch")
        regularisation: float = Field(1.0, ge=0, description="weight of the loss over views and random labels")
        learning_rate: float = Field(1e-5, gt=0, description="peak of the schedule of a stage")
        weight_decay: float = Field(0.0, ge=0, description="of AdamW, on matrices")
        batch_size: int = Field(128, gt=0, description="queries per step")
        clip_norm: float | None = Field(1.0, gt=0, description="largest norm of the whole gradient; null: no clipping")

    config: Pretraining.Config
    _clusters: FinerClusters

    def training_data(self, train: data.TrainingData) -> data.TrainingData:
        """One title and one view for each document, and the dataset's labels, which are true for none."""
        self._real = train
        queries, titles = zip(*self.pairs(train), strict=True)
        self._documents = len(queries)
        shape = self._documents, 2 * self._documents + train.num_labels
        own = np.arange(2 * self._documents)
        pairs = data.pairs_csr(own % self._documents, own, shape)
        labels = [*titles, *queries, *train.label_texts]
        return data.TrainingData(train.card, queries, pairs, labels, scipy.sparse.csr_array(shape, dtype=np.float32))

    def sampler(self, train: data.TrainingData, seed: int) -> sampling.Sampler:
        from xmcbench_plugins.maclr.parts import FinerClusters, RandomLabels

        own = self.config
        self._clusters = FinerClusters(own.cluster_size, own.cluster_every, own.clustered, self._spent)
        parts: Any = {"order": self._clusters, "positives": sampling.Draw(None)}
        labels = RandomLabels(2 * self._documents, own.random_labels)
        return sampling.Sampler(train, batch_size=own.batch_size, seed=seed, negatives=(labels,), **parts)

    def _spent(self) -> float:
        return self.shard.workers.largest(self.run.ledger.fraction(self.run.budget))

    def loss(self, queries_BD: Tensor, labels_SD: Tensor, batch: sampling.Batch) -> Tensor:
        """Softmax over titles plus softmax over views and labels, each averaged over what is of a query's cluster."""
        import torch

        ids_S, clusters_N = batch.label_ids, self._clusters.clusters_Q
        assert clusters_N is not None  # of the first refresh
        titles, views = np.searchsorted(ids_S, [self._documents, 2 * self._documents])
        clusters_S = np.full(len(ids_S), -1)  # of no document
        clusters_S[:views] = clusters_N[ids_S[:views] % self._documents]
        same_BS = clusters_N[batch.query_ids][:, None] == clusters_S

        def contrast(part: slice) -> Tensor:
            rows, columns = (torch.from_numpy(places) for places in np.nonzero(same_BS[:, part]))
            positives = losses.Positives(rows, columns, *same_BS[:, part].shape, workers=batch.positives.workers)
            positives = positives.to(queries_BD.device)
            return losses.psl(queries_BD, labels_SD[part], positives, temperature=self.config.temperature)

        return contrast(slice(titles)) + self.config.regularisation * contrast(slice(titles, None))


class MACLR(EmbeddingMethod):
    """Both stages: pretraining, then self-training on labels that words and the pretrained model propose."""

    name = "maclr"
    info = MethodInfo(
        summary="dual encoder pretrained on titles and clusters, then trained on labels by TF-IDF and by itself",
        citation=Pretraining.info.citation,
        needs=("label texts",),
    )
    not_planned: ClassVar[str] = Pretraining.not_planned

    class Config(Pretraining.Config):
        self_training: float = Field(0.5, gt=0, lt=1, description="share of every limit of the budget for stage two")
        confident: float = Field(0.5, ge=0, le=1, description="share of documents whose best label by the model counts")

    config: MACLR.Config

    @classmethod
    def versions(cls, config: Method.Config) -> dict[str, int]:
        return {**super().versions(config), WORDS: registry().method(WORDS).version}

    @classmethod
    def needs_annotations(cls, config: Method.Config) -> bool:  # noqa: ARG003
        return False

    def fit(self, train: data.TrainingData, run: Run) -> None:
        first, share = Pretraining(self.config), 1 - self.config.self_training
        with run.part("pretraining", run.budget.times(share), done=share) as own:
            first.fit(train, own)
        pairs_NL = self._proposed(first, train, run)
        self._pretrained = first.encoder
        if (rest := run.rest()) is None:
            raise PassTooLargeError("the budget was spent before self-training began")
        with run.part("self-training", rest, begun=share) as own:
            super().fit(train.with_targets(pairs_NL), own)
        if run.held_out is not None:
            with run.ledger.uncharged():
                run.log.add_point(1.0, run.held_out.evaluate(self.predict, train.num_labels))

    def _proposed(self, first: Pretraining, train: data.TrainingData, run: Run) -> scipy.sparse.csr_array:
        """[N, L] ones for the best labels by TF-IDF that share a word, and for the model's where it is surest."""
        charging, labels = first.charging_to(run.ledger, run.budget), train.label_texts
        with run.ledger.stage("mine"):
            documents = first.encoder.tokenizer.tokens(train.texts, first.query_length, run.cache)
            of_labels = first.encoder.label_tokenizer.tokens(labels, first.label_length, run.cache)
            operations = search.search_flops(len(train.texts), *first.index_LD.shape)
            # The vectors of labels are in the index.
            charging.passes(documents.lengths, of_labels.lengths, scoring_flops=operations)
            index = search.build_index(first.index_LD, "exact")
            own = index.top_k(first.all_query_vectors(documents), 1, exclude=train.ignore)
        words = registry().method(WORDS).thing({})
        words.fit(train, run)
        listed = min(train.num_labels, 1 + int(np.diff(train.ignore.indptr).max(initial=0)))
        with run.ledger.stage("mine"):
            by_words = evaluation.drop_ignored(words.predict(train.texts, listed), train.ignore, 1)
        surest = np.argsort(-own.scores[:, 0], kind="stable")[: round(self.config.confident * len(train.texts))]
        matched = np.flatnonzero(by_words.scores[:, 0] > 0)
        rows = np.concatenate([matched, surest])
        columns = np.concatenate([by_words.indices[matched, 0], own.indices[surest, 0]])
        return data.pairs_csr(rows, columns, (len(train.texts), train.num_labels))  # both may propose the same label

    def prepare(self, train: data.TrainingData, run: Run) -> None:
        """Go on with the pretrained encoder and its tokenizer, which `tiny` and `nano` trained on other texts."""
        super().prepare(train, run)
        self.encoder = self._pretrained
        self.queries = self.encoder.tokenizer.tokens(train.texts, self.query_length, run.cache)
        self.labels = self.encoder.label_tokenizer.tokens(train.label_texts, self.label_length, run.cache)
        self.charging = self.charging_to(run.ledger, run.budget)

    def loss(self, queries_BD: Tensor, labels_SD: Tensor, batch: sampling.Batch) -> Tensor:
        """Softmax over the pool of the label that was drawn for each document."""
        drawn = batch.positives.weights("drawn")
        return losses.softmax(queries_BD, labels_SD, batch.positives, drawn, temperature=self.config.temperature)


@hookimpl
def register_methods(register: Callable[[type[Any]], None]) -> None:
    for method in (Pretraining, MACLR):
        register(method)
