"""UniDEC: a dual encoder and a classifier trained as one (Kharbanda et al., arXiv:2405.03714v1).

Legend: B queries, S labels of the pool (of this worker), T labels of the classifier's pool, N texts, P positive pairs,
H hidden size of the encoder, D dimensions of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from xmcbench import Budget, EmbeddingMethod, Method, MethodInfo, data, encoders, hookimpl, losses, sampling, tables

if TYPE_CHECKING:
    from torch import Tensor, nn

SEEDS = 2**62
HEAD_RATE, CLASSIFIER_RATE = 2e-3, 1e-2  # where neither suite nor paper says them


def unit(vectors_ND: Tensor) -> Tensor:
    """[N, D] the vectors, scaled to length 1; zeros stay zeros."""
    from torch.nn.functional import normalize

    return normalize(vectors_ND, dim=1)


class UniDEC(EmbeddingMethod):
    """Two heads on one encoder: the first is scored against label texts, the second against one vector per label."""

    name = "unidec"
    info = MethodInfo(
        summary="dual encoder and classifier in one, multi-class loss over some positives (UniDEC, SupConDE)",
        citation="Kharbanda et al., Unified Dual Encoder and Classifier Training for Extreme Multi-label "
        "Classification, arXiv:2405.03714, 2024",
        needs=("label texts",),
        charges={"flops": 2},  # 2: operations of the heads
        version=3,  # 2: dropout of the heads follows query and label; 3: losses of labels are summed as in the paper
    )

    counted: ClassVar = dict.fromkeys(("negatives_per_query", "shortlist", "extra_positives"), ("labels",))

    class Config(EmbeddingMethod.Config):
        batch_size: int = Field(576, gt=0, description="queries per step")
        learning_rate: float = Field(1e-4, gt=0, description="peak learning rate of the encoder")
        head_learning_rate: float = Field(2e-4, gt=0, description="peak learning rate of both heads")
        classifier_learning_rate: float = Field(
            1e-3, gt=0, description="peak learning rate of the classifier's rows; with `both` heads"
        )
        heads: Literal["both", "de"] = Field("both", description="both, or only the dual encoder's head (SupConDE)")
        inference: Literal["both", "de", "clf"] = Field(
            "both", description="vectors that score: both, each of length 1, or those of one head"
        )
        fusion: float = Field(
            0.5,
            ge=0,
            le=1,
            description="weight of the encoder's cosine in the score of `both`; the classifier has the rest",
        )
        rows: Literal["random", "label-embeddings"] = Field(
            "random",
            description="initial rows of the classifier: normal, of length about 1, or the second head's vectors of "
            "the label texts before the first step (charged), scaled to length 1; with `both` heads",
        )
        loss: Literal["psl", "pal"] = Field(
            "psl", description="psl is averaged over a query's positives, pal is summed"
        )
        directions: Literal["both", "query-to-label"] = Field(
            "both", description="half the loss each way, or from queries to labels alone"
        )
        over_labels: Literal["sum", "mean"] = Field(
            "sum",
            description="of the labels' losses, in the direction from labels to queries; sum: divided by the number of "
            "queries, as the other direction, so that both are the sums of Section 3.1 up to one factor; with `both` "
            "directions",
        )
        de_weight: float = Field(
            0.3,
            ge=0,
            le=1,
            description="lambda, weight of the dual encoder's loss; the classifier's has the rest; with `both` heads",
        )
        temperature: float = Field(0.05, gt=0, description="of the dual encoder's loss (chosen)")
        classifier_temperature: float = Field(
            1.0, gt=0, description="of the classifier's loss, whose scores are not normalised (chosen)"
        )
        dimension: int = Field(384, gt=0, description="dimension of each head")
        head_dropout: float = Field(0.1, ge=0, lt=1, description="dropout on the heads' outputs")
        positives_per_query: int = Field(3, gt=0, description="beta, positives of a query sampled into the pool")
        extra_positives: int = Field(
            0, ge=0, description="beta_E, additional positives in the classifier's pool only; with `both` heads"
        )
        negatives_per_query: int = Field(
            6, ge=0, description="eta, labels sampled from a query's shortlist; 0: no mining"
        )
        shortlist: int | None = Field(
            None,
            gt=0,
            description="nearest labels that are not true, mined for each query; null: `negatives_per_query` "
            "times `refresh_every`",
        )
        batches: Literal["clusters", "shuffled"] = Field(
            "clusters", description="batches of similar queries, or shuffled"
        )
        cluster_size: int | None = Field(
            None, gt=0, description="queries per cluster; null: the batch size; with `clusters`"
        )
        refresh_start: int = Field(0, ge=0, description="first epoch, from 0, with clusters and shortlists")
        refresh_every: int = Field(5, gt=0, description="epochs between refreshes of clusters and shortlists")

        def unused(self) -> frozenset[str]:
            unused = {"over_labels"} if self.directions == "query-to-label" else set()
            if self.heads == "de":
                unused |= {"inference", "fusion", "rows", "de_weight", "extra_positives"}
                unused |= {"classifier_temperature", "classifier_learning_rate"}
            if self.inference != "both":
                unused.add("fusion")
            if not self.negatives_per_query:
                unused.add("shortlist")
            if self.batches == "shuffled":
                unused.add("cluster_size")
                if not self.negatives_per_query:
                    unused |= {"refresh_start", "refresh_every"}
            return frozenset(unused)

    # Both heads are in the index whatever `inference` is, so that one training serves every inference.
    scoring_settings = frozenset({"inference", "fusion"})
    config: UniDEC.Config

    @classmethod
    def following(cls, given: Mapping[str, Any], data: data.Extent, budget: Budget) -> dict[str, Any]:
        """Heads and classifier begin at random: in short trainings they learn faster than in the paper's 150 epochs."""
        rates = {"head_learning_rate": HEAD_RATE, "classifier_learning_rate": CLASSIFIER_RATE}
        if given.get("heads") == "de":
            del rates["classifier_learning_rate"]
        return rates | super().following(given, data, budget)

    modules: nn.ModuleDict

    @classmethod
    def search_space(cls, config: Method.Config) -> dict[str, Any]:
        assert isinstance(config, UniDEC.Config)
        tau, rate = config.temperature, config.classifier_learning_rate
        own: dict[str, Any] = {"temperature": {"low": tau / 5, "high": 2 * tau, "log": True}}
        if config.heads == "both":
            own["classifier_learning_rate"] = {"low": rate / 10, "high": 3 * rate, "log": True}
        return super().search_space(config) | own

    def build_modules(self, train: data.TrainingData) -> nn.Module:
        modules, size = self._heads(), self.config.dimension
        if self.config.heads == "both":
            self.targets = train.targets
            config = tables.TableConfig(learning_rate=self.config.classifier_learning_rate)
            table = tables.LabelTable(self.shard.label_ids, size, config)
            table.fill(lambda block_ND, generator: block_ND.normal_(0, size**-0.5, generator=generator))
            modules["classifier"] = table
        return modules

    def load_modules(self, tensors: dict[str, Tensor]) -> nn.Module:
        modules = self._heads()
        modules.load_state_dict(tensors, assign=True)
        return modules

    def _heads(self) -> nn.ModuleDict:
        """g1 and g2 of Appendix C.1; g1's output is scaled to length 1, g2's in training is not."""
        from torch import nn

        def linear() -> nn.Linear:
            return nn.Linear(self.encoder.dimension, self.config.dimension)

        heads = {"de": nn.Sequential(linear(), nn.Tanh(), nn.Dropout(self.config.head_dropout))}
        if self.config.heads == "both":
            heads["clf"] = nn.Sequential(linear(), nn.Dropout(self.config.head_dropout))
        return nn.ModuleDict(heads)

    @property
    def first_passes(self) -> tuple[Literal["queries", "labels"], ...]:
        return ("labels",) if self.config.heads == "both" and self.config.rows == "label-embeddings" else ()

    def begin(self, embeddings: sampling.Embeddings) -> None:
        """With `rows: label-embeddings`, start each row as the second head's unit vector of its label text."""
        if self.first_passes:
            table, linear = self.tables()["classifier"], self.modules["clf"][0]  # type: ignore[index]
            table.weight.copy_(unit(linear(embeddings.labels()[table.row_ids])))

    @property
    def module_rate(self) -> float:
        """The heads have a learning rate of their own."""
        return self.config.head_learning_rate

    def sampler(self, train: data.TrainingData, seed: int) -> sampling.Sampler:
        settings = self.config
        timing = {"start": settings.refresh_start, "every": settings.refresh_every}
        negatives: list[sampling.Nearest] = []
        if count := settings.negatives_per_query:
            shortlist = settings.shortlist or count * settings.refresh_every
            negatives.append(sampling.Nearest(count, shortlist, **timing))
        order: sampling.Order = sampling.Shuffled()
        if settings.batches == "clusters":
            order = sampling.Clusters(settings.cluster_size or settings.batch_size, vectors="fresh", **timing)
        sampler = sampling.Sampler(
            train,
            batch_size=settings.batch_size,
            seed=seed,
            order=order,
            positives=sampling.Draw(settings.positives_per_query),
            negatives=negatives,
        )
        self.extra = sampling.Draw(settings.extra_positives)
        self.extra.attach(sampler)
        return sampler

    def mining_query_vectors(self, embeddings_NH: Tensor) -> Tensor:
        """[N, D] the first head's vectors, which clusters and shortlists use whatever `inference` is."""
        return unit(self.modules["de"](embeddings_NH))

    def mining_label_vectors(self, embeddings_SH: Tensor, label_ids: np.ndarray) -> Tensor:  # noqa: ARG002
        return self.mining_query_vectors(embeddings_SH)

    def query_vectors(self, embeddings_NH: Tensor) -> Tensor:
        """[N, D], or with both heads [N, 2D]: each half of the score's weight times a vector of length 1 (Section 3.3).

        With the weights 1 and 1 the score is the sum of both cosines.
        """
        import torch

        de_ND = self.mining_query_vectors(embeddings_NH)
        if self.config.heads == "de":
            return de_ND
        clf_ND = unit(self.modules["clf"](embeddings_NH))
        of_both = 2 * self.config.fusion, 2 * (1 - self.config.fusion)
        of_de, of_clf = {"both": of_both, "de": (1.0, 0.0), "clf": (0.0, 1.0)}[self.config.inference]
        return torch.cat((of_de * de_ND, of_clf * clf_ND), dim=1)

    def label_vectors(self, embeddings_SH: Tensor, label_ids: np.ndarray) -> Tensor:
        import torch

        de_SD = self.mining_query_vectors(embeddings_SH)
        if self.config.heads == "de":
            return de_SD
        return torch.cat((de_SD, unit(self._rows(label_ids))), dim=1)

    def _rows(self, label_ids: np.ndarray) -> Tensor:
        """[S, D] the classifier's rows of labels that this worker holds."""
        table = self.tables()["classifier"]
        return table.forward(table.rows_of(label_ids))

    def loss(self, queries_BH: Tensor, labels_SH: Tensor, batch: sampling.Batch) -> Tensor:
        """lambda L_D + (1 - lambda) L_C (Algorithm 1)."""
        import torch

        settings, seed, workers = self.config, int(torch.randint(SEEDS, ())), self.shard.workers
        own = self.shard.queries(len(queries_BH))  # whose heads this worker computes; of labels it holds its own alone
        with encoders.row_dropout(seed, "query", batch.query_ids[own]):
            de_BD = workers.gather(self.mining_query_vectors(queries_BH[own]))
            clf_BD = workers.gather(self.modules["clf"](queries_BH[own])) if settings.heads == "both" else None
        with encoders.row_dropout(seed, "label", batch.label_ids):
            labels_SD = self.mining_query_vectors(labels_SH)
        of_de = self._both_ways(de_BD, labels_SD, batch.positives, settings.temperature)
        if clf_BD is None:
            return of_de
        label_ids, positives = self._classifier_pool(batch)
        of_clf = self._both_ways(clf_BD, self._rows(label_ids), positives, settings.classifier_temperature)
        return settings.de_weight * of_de + (1 - settings.de_weight) * of_clf

    def _both_ways(self, queries_BD: Tensor, labels_SD: Tensor, positives: losses.Positives, tau: float) -> Tensor:
        """The mean of the losses of queries over labels and of labels over queries; or the first loss alone."""
        loss = losses.psl if self.config.loss == "psl" else losses.pal
        there = loss(queries_BD, labels_SD, positives, temperature=tau)
        if self.config.directions == "query-to-label":
            return there
        labels_RD, queries_BD, turned = losses.label_to_query(queries_BD, labels_SD, positives)
        if self.config.over_labels == "sum":
            turned = replace(turned, total_rows=positives.num_queries)
        return (there + loss(labels_RD, queries_BD, turned, temperature=tau)) / 2

    def _classifier_pool(self, batch: sampling.Batch) -> tuple[np.ndarray, losses.Positives]:
        """Labels [T] and true pairs of the pool with up to `extra_positives` more labels of each query (Section C.4).

        They need no text. They are drawn from all of a query's labels, so some may be in the pool already.
        """
        import torch

        if not self.config.extra_positives:
            return batch.label_ids, batch.positives
        # Seeded from torch's generator, so that every worker draws alike before it keeps those it holds.
        _, drawn = self.extra.pairs(batch.query_ids, np.random.default_rng(int(torch.randint(SEEDS, ()))))
        label_ids = np.union1d(batch.label_ids, drawn[self.shard.mine_L[drawn]])
        of_pool, targets = batch.positives, self.targets[batch.query_ids][:, label_ids]
        pairs = (torch.from_numpy(ids.astype(np.int64)) for ids in targets.nonzero())
        positives = losses.Positives(*pairs, *targets.shape, workers=of_pool.workers)
        return label_ids, positives.to(of_pool.rows_P.device)


@hookimpl
def register_methods(register: Callable[[type[Any]], None]) -> None:
    register(UniDEC)
