"""PRIME: label prototypes and a dynamic margin (Dahiya et al., NAACL 2025).

Legend: B queries, S labels of the pool (of this worker), L labels, N training queries, V free vectors, T tokens of a
label's bag, D dimensions, P true pairs, M pairs of queries and hard negatives, E extra queries of a label, U different
ones of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import scipy
from pydantic import Field, model_validator

from xmcbench import Budget, EmbeddingMethod, MethodInfo, data, encoders, hookimpl, losses, sampling, tables, upload

if TYPE_CHECKING:
    from torch import Tensor, nn

    from xmcbench_plugins.prime.prototypes import Prototypes

AT_ONCE = 16_384  # prototypes of a step: a bag holds several vectors
INDEXED = 512  # prototypes of an index that are computed at a time
# Length of Xavier's initial vectors at the paper's V = 65,536 and D = 768: sqrt(2 D / (V + D)).
PAPERS_LENGTH = 0.152
SEEDS = 2**62


def unit(vectors_ND: Tensor) -> Tensor:
    """[N, D] the vectors, scaled to length 1; zeros stay zeros."""
    from torch.nn.functional import normalize

    return normalize(vectors_ND, dim=1)


class PRIME(EmbeddingMethod):
    """Scores queries against prototypes: a small network combines a label's text, centroid and free vector."""

    name = "prime"
    info = MethodInfo(
        summary="dual encoder with label prototypes, triplet losses with a dynamic margin",
        citation="Dahiya et al., Prototypical Extreme Multi-label Classification with a Dynamic Margin Loss, "
        "NAACL 2025",
        needs=("label texts",),
        charges={"flops": 2},  # 2: operations of the prototype network
        # 2: free vectors begin at the paper's length; 3: dropout follows the label; 4: a query's positives are the
        # labels that were drawn for it, and all terms are divided by the number of queries
        version=4,
    )

    counted: ClassVar = {"free_vectors": ("labels",)}

    class Config(sampling.ClusteredBatches, EmbeddingMethod.Config):
        batch_size: int = Field(3200, gt=0, description="queries per step")
        positives_per_query: int = Field(2, gt=0, description="positives per query sampled into the pool")
        positives_by: Literal["propensity", "uniform"] = Field(
            "propensity",
            description="they are sampled with probability proportional to their inverse propensity, or uniformly",
        )
        positives: losses.TrainedPositives = "drawn"
        free_vectors: int = Field(
            65_536,
            ge=0,
            description="V, a power of two: this many clusters of labels, by balanced 2-means of their texts "
            "before training, share a free vector each; at most V labels have their own; 0: none",
        )
        free_vector_length: float | None = Field(
            PAPERS_LENGTH,
            gt=0,
            description="mean length of the initial free vectors; null: Xavier's for the bank's own size; with "
            "free vectors",
        )
        centroids: Literal["momentum", "frozen", "none"] = Field(
            "momentum", description="moved by Eq. 4, frozen at their initial values, or left out of the prototype"
        )
        momentum: float = Field(0.95, ge=0, lt=1, description="alpha of Eq. 4; with `momentum` centroids")
        queries_per_centroid: int = Field(
            1,
            gt=0,
            description="queries of a label that move its centroid in a step: 1 is those of the batch alone; n "
            "adds n - 1 of the label's training queries, embedded without a gradient and charged; "
            "with `momentum` centroids",
        )
        final_centroids: Literal["as trained", "exact"] = Field(
            "as trained",
            description="centroids of predictions; exact: means over all training queries of a label, embedded by "
            "the trained encoder, a pass for which training leaves room in the budget",
        )
        feedforward: int = Field(1024, gt=0, description="width of the feed-forward part of the transformer layer")
        prototype_dropout: float = Field(0.1, ge=0, lt=1, description="dropout in the transformer layer")
        query_to_prototype: bool = Field(True, description="whether the loss has its first term, T(h_q, z_l)")
        query_to_label: bool = Field(True, description="whether the loss has T(h_q, h_l), on texts")
        label_to_query: bool = Field(True, description="whether the loss has T(h_l, h_q), on texts")
        over_labels: Literal["sum", "mean"] = Field(
            "sum",
            exclude_if=lambda way: way == "sum",  # keys of trials without it stay
            description="of the labels' losses in T(h_l, h_q); sum: divided by the number of queries of the batch, as "
            "the other terms, so that all three are the sums of Eq. 1 up to one factor; mean: divided by the number of "
            "labels in the pool; with `label_to_query`",
        )
        regulariser_weight: float = Field(0.1, ge=0, description="lambda; 0 leaves the regulariser out")
        regulariser_margin: float = Field(0.3, ge=0, description="m', by which prototypes should beat texts")
        regulariser_mean: Literal["all", "violators"] = Field(
            "all", description="mean over all pairs compared, or over those that violate the margin"
        )
        margin: Literal["dynamic", "as-printed", "fixed"] = Field(
            "dynamic",
            description="dynamic: clip(|s_p - s_n|, smallest, largest) without a gradient, as defined; as-printed: "
            "Eq. 3 and 14, which pull a positive that is ahead by less than `smallest_margin` back; fixed: "
            "`largest_margin`",
        )
        smallest_margin: float = Field(0.1, ge=0, description="lower end of the clip; not with a `fixed` margin")
        largest_margin: float = Field(0.3, ge=0, description="upper end of the clip, and the `fixed` margin")
        hardest: int = Field(100, gt=0, description="negatives of a query in each term, the highest-scored of the pool")
        weight_temperature: float | None = Field(
            0.1,
            gt=0,
            description="of the softmax over scores that weighs the violating negatives; null weighs all alike",
        )

        @model_validator(mode="after")
        def _makes_sense(self) -> PRIME.Config:
            if self.free_vectors & (self.free_vectors - 1):
                raise ValueError(f"free_vectors must be a power of two or 0, found {self.free_vectors}")
            if self.smallest_margin > self.largest_margin:
                raise ValueError(f"smallest_margin {self.smallest_margin} exceeds largest_margin {self.largest_margin}")
            if not (self.query_to_prototype or self.query_to_label or self.label_to_query):
                raise ValueError("the loss needs a term: query_to_prototype, query_to_label or label_to_query")
            return self

        def unused(self) -> frozenset[str]:
            used = {
                **dict.fromkeys(("regulariser_margin", "regulariser_mean"), self.regulariser_weight),
                "smallest_margin": self.margin != "fixed",
                **dict.fromkeys(("momentum", "queries_per_centroid"), self.centroids == "momentum"),
                "final_centroids": self.centroids != "none",
                "free_vector_length": self.free_vectors,
                "over_labels": self.label_to_query,
            }
            return super().unused() | {name for name, is_used in used.items() if not is_used}

    config: PRIME.Config
    # The pool holds more true labels of a query than those drawn for it, from which few epochs learn little.
    in_few_epochs: ClassVar = {"positives": "all"}

    @classmethod
    def following(cls, given: Mapping[str, Any], data: data.Extent, budget: Budget) -> dict[str, Any]:
        """Half as many free vectors as labels, as on LF-AmazonTitles-131K, up to the paper's number."""
        half = 1 << max(0, (data.labels // 2).bit_length() - 1)
        vectors = {"free_vectors": min(half, cls.Config.model_fields["free_vectors"].default)}
        return vectors | super().following(given, data, budget)

    @property
    def first_passes(self) -> tuple[Literal["queries", "labels"], ...]:
        labels: tuple[Literal["labels"], ...] = ("labels",) if self.config.free_vectors else ()
        return labels if self.config.centroids == "none" else (*labels, "queries")

    @property
    def last_passes(self) -> tuple[Literal["queries", "labels"], ...]:
        exact = self.config.final_centroids == "exact" and self.config.centroids != "none"
        return ("queries",) if exact else ()

    def label_groups(self, train: data.TrainingData, embeddings: sampling.Embeddings) -> np.ndarray | None:  # noqa: ARG002
        """[L] the number of each label's free vector: labels with similar texts share one."""
        import torch

        if not self.config.free_vectors:
            return None
        rng = np.random.default_rng(torch.initial_seed())
        return sampling.balanced_clusters(embeddings.labels(), self.config.free_vectors, rng)

    def build_modules(self, train: data.TrainingData) -> nn.Module:
        from torch import nn

        settings, shard, size = self.config, self.shard, self.encoder.dimension
        modules: dict[str, nn.Module] = {"prototypes": self._network()}
        if settings.free_vectors:
            mine = np.unique(shard.groups_L[shard.label_ids])
            length = settings.free_vector_length or (2 * size / (int(shard.groups_L.max()) + 1 + size)) ** 0.5
            bound = length * (3 / size) ** 0.5  # of a uniform distribution, whose vectors have that length
            config = tables.TableConfig(learning_rate=settings.learning_rate)
            modules["bank"] = tables.LabelTable(mine, size, config)
            modules["bank"].fill(lambda block_VD, rng: block_VD.uniform_(-bound, bound, generator=rng))
        if settings.centroids != "none":
            self.queries_of = scipy.sparse.csr_array(train.targets.T)
            config = tables.TableConfig(optimizer="none")
            modules["centroids"] = tables.LabelTable(shard.label_ids, size, config, seed=0)
        return nn.ModuleDict(modules)

    def load_modules(self, tensors: dict[str, Tensor]) -> nn.Module:
        from torch import nn

        modules = nn.ModuleDict({"prototypes": self._network()})
        modules.load_state_dict(tensors, assign=True)
        return modules

    def _network(self) -> Prototypes:
        from xmcbench_plugins.prime.prototypes import Prototypes

        return Prototypes(self.encoder.dimension, self.config.feedforward, self.config.prototype_dropout)

    def begin(self, embeddings: sampling.Embeddings) -> None:
        """Centroids start as the means of their labels' queries, of length 1; without queries as zero."""
        if self.config.centroids != "none":
            self._set_centroids(embeddings.queries())

    def _set_centroids(self, queries_ND: Tensor) -> None:
        """Set each centroid to the mean of its label's queries, scaled to length 1."""
        import torch

        unit_ND = unit(queries_ND).cpu().numpy()
        sums_SD = self.queries_of[self.shard.label_ids] @ unit_ND
        self.modules["centroids"].weight.copy_(unit(torch.from_numpy(sums_SD)))

    def end(self, embeddings: sampling.Embeddings) -> None:
        """Centroids of the trained encoder, where the settings say so (Appendix G)."""
        self._set_centroids(embeddings.queries())

    def sampler(self, train: data.TrainingData, seed: int) -> sampling.Sampler:
        settings = self.config
        order, drawn = settings.order(), sampling.Draw(settings.positives_per_query, settings.positives_by)
        return sampling.Sampler(train, batch_size=settings.batch_size, seed=seed, order=order, positives=drawn)

    def query_vectors(self, embeddings_ND: Tensor) -> Tensor:
        return unit(embeddings_ND)

    def label_vectors(self, embeddings_SD: Tensor, label_ids: np.ndarray) -> Tensor:
        """[S, D] prototypes of length 1."""
        return self._prototypes(embeddings_SD, label_ids, INDEXED, dropout_seed=0)  # dropout is off

    def _prototypes(self, embeddings_SD: Tensor, label_ids: np.ndarray, at_once: int, dropout_seed: int) -> Tensor:
        """[S, D] prototypes of length 1, computed `at_once` at a time."""
        import torch

        prototypes = []
        for start in range(0, max(1, len(label_ids)), at_once):
            part = slice(start, start + at_once)
            with encoders.row_dropout(dropout_seed, "label", label_ids[part]):
                prototypes.append(self._prototypes_of(embeddings_SD[part], label_ids[part]))
        return torch.cat(prototypes)

    def _prototypes_of(self, embeddings_SD: Tensor, label_ids: np.ndarray) -> Tensor:
        import torch

        bag = [embeddings_SD]
        if self.config.free_vectors:
            bank = self.modules["bank"]
            bag.append(bank(bank.rows_of(self.shard.groups_L[label_ids])))
        if self.config.centroids != "none":
            centroids = self.modules["centroids"]
            # A centroid without queries stays zero: `unit` divides by at least 1e-12.
            bag.append(unit(centroids(centroids.rows_of(label_ids))))
        prototypes_SD: Tensor = self.modules["prototypes"](torch.stack(bag, dim=1))
        return prototypes_SD

    def mining_label_vectors(self, embeddings_SD: Tensor, label_ids: np.ndarray) -> Tensor:  # noqa: ARG002
        """[S, D] text embeddings: the sampler clusters queries only, so prototypes would be computed for nothing."""
        return self.query_vectors(embeddings_SD)

    def loss(self, queries_BD: Tensor, labels_SD: Tensor, batch: sampling.Batch) -> Tensor:
        """T(h_q, z_l) + T(h_q, h_l) + T(h_l, h_q) + lambda R (Eq. 5)."""
        import torch

        settings, positives = self.config, batch.positives
        texts_BD, texts_SD = unit(queries_BD), unit(labels_SD)
        loss = texts_BD.new_zeros(())
        if settings.label_to_query:
            texts_RD, pool_BD, turned = losses.label_to_query(texts_BD, texts_SD, positives)
            if settings.over_labels == "sum":  # the sums of Eq. 1 are over the same pairs as those of the other terms
                turned = replace(turned, total_rows=positives.num_queries)
            loss = loss + self._triplet(texts_RD, pool_BD, turned)
        if settings.query_to_label:
            loss = loss + self._triplet(texts_BD, texts_SD, positives)
        if settings.query_to_prototype or settings.regulariser_weight:
            prototypes_SD = self._prototypes(labels_SD, batch.label_ids, AT_ONCE, int(torch.randint(SEEDS, ())))
            if settings.query_to_prototype:
                loss = loss + self._triplet(texts_BD, prototypes_SD, positives)
            if settings.regulariser_weight:
                regulariser = self._regulariser(texts_BD, texts_SD, prototypes_SD, positives)
                loss = loss + settings.regulariser_weight * regulariser
        return loss

    def _triplet(self, queries_BD: Tensor, labels_SD: Tensor, positives: losses.Positives) -> Tensor:
        settings = self.config
        margin: float | losses.DynamicMargin = settings.largest_margin
        if settings.margin != "fixed":
            printed = settings.margin == "as-printed"
            margin = losses.DynamicMargin(settings.smallest_margin, settings.largest_margin, printed)
        return losses.triplet(
            queries_BD,
            labels_SD,
            positives,
            positives.weights(settings.positives),
            margin=margin,
            hardest=settings.hardest,
            weight_temperature=settings.weight_temperature,
            over_negatives="sum",
        )

    def _regulariser(
        self, queries_BD: Tensor, texts_SD: Tensor, prototypes_SD: Tensor, positives: losses.Positives
    ) -> Tensor:
        """R: prototypes should score m' higher than texts for positives, m' lower for negatives (Eq. 6, 7)."""
        negatives = losses.hardest_pairs(queries_BD, prototypes_SD, positives, self.config.hardest)

        def part(pairs: losses.Positives, weights_P: Tensor, sign: int) -> Tensor:
            """A worker's part of the weighted mean over the pairs of all workers; 0 where there are none."""
            of_texts_P, of_prototypes_P = (losses.pair_scores(queries_BD, z, pairs) for z in (texts_SD, prototypes_SD))
            hinges_P = (sign * (of_texts_P - of_prototypes_P) + self.config.regulariser_margin).relu()
            counted_P = weights_P * (hinges_P > 0) if self.config.regulariser_mean == "violators" else weights_P
            return (hinges_P * weights_P).sum() / positives.workers.sum(counted_P.sum()).clamp(min=1)

        trained_P = positives.weights(self.config.positives)
        return (part(positives, trained_P, 1) + part(negatives, negatives.every(), -1)) / 2

    def after_step(self, batch: sampling.Batch, queries_BD: Tensor, labels_SD: Tensor) -> None:  # noqa: ARG002
        """c_p <- alpha c_p + (1 - alpha) h_q for each query q of a positive p, in the order of the batch (Eq. 4)."""
        import torch

        if self.config.centroids != "momentum":
            return
        alpha, table, device = self.config.momentum, self.modules["centroids"], queries_BD.device
        # Numbers of labels and queries are computed on the CPU, so that nothing waits for a GPU.
        columns_P, queries_PD = batch.positives.host.columns_P, unit(queries_BD)[batch.positives.rows_P]
        if self.config.queries_per_centroid > 1:
            more_P, more_PD = self._more_queries(columns_P.unique(), batch.label_ids)
            columns_P, queries_PD = torch.cat((columns_P, more_P)), torch.cat((queries_PD, more_PD))
        columns_P, by_label_P = columns_P.sort(stable=True)
        labels_S, group_P, counts_S = torch.unique_consecutive(columns_P, return_inverse=True, return_counts=True)
        # A label's n queries are applied in order: the last weighs the most, the old centroid weighs alpha^n.
        later_P = counts_S.cumsum(0)[group_P] - 1 - torch.arange(len(columns_P)).to(columns_P)
        rows_S = table.rows_of(batch.label_ids[labels_S.numpy()])
        indices = (rows_S, alpha**counts_S, group_P, by_label_P, (1 - alpha) * alpha**later_P)
        rows_S, left_S, group_P, by_label_P, weights_P = (upload(each, device) for each in indices)
        old_SD = table.weight[rows_S] * left_S[:, None]
        table.weight[rows_S] = old_SD.index_add(0, group_P, queries_PD[by_label_P] * weights_P[:, None])

    def _more_queries(self, columns_S: Tensor, label_ids: np.ndarray) -> tuple[Tensor, Tensor]:
        """Columns [P] and vectors [P, D] of further training queries of the labels in the columns [S] (Appendix G).

        Columns are on the CPU. The queries are embedded without a gradient, and charged. A query is drawn by its
        relative place in the list of its label's queries. Within a step the relative places are the same for all
        labels, so workers agree.
        """
        labels_S = label_ids[columns_S.numpy()]
        starts_S, counts_S = self.queries_of.indptr[labels_S], np.diff(self.queries_of.indptr)[labels_S]
        seed = int(self.run.rng("centroids").integers(SEEDS))
        rng = np.random.default_rng([seed, self.run.ledger.steps])
        places_E = rng.random(self.config.queries_per_centroid - 1)
        drawn_SE = self.queries_of.indices[starts_S[:, None] + (places_E * counts_S[:, None]).astype(np.int64)]
        queries_U, inverse_P = np.unique(drawn_SE, return_inverse=True)
        tokens = self.queries.take(queries_U)
        self.charging.own_encoding(tokens.lengths)
        vectors_UD = unit(self.embed(tokens))
        columns_P = columns_S.repeat_interleave(drawn_SE.shape[1])
        return columns_P, vectors_UD[upload(inverse_P.ravel(), vectors_UD.device)]


@hookimpl
def register_methods(register: Callable[[type[Any]], None]) -> None:
    register(PRIME)
