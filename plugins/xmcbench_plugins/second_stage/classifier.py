"""One-vs-all classifiers on a frozen encoder, trained on negatives from its index (NGAME's classifier; PRIME (W)).

Legend: N training queries, B of a batch, L labels, S of a pool (of this worker), D dimensions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from xmcbench import MethodInfo, Run, data, encoders, losses, sampling, tables, upload
from xmcbench_plugins.second_stage.stage import SecondStage

if TYPE_CHECKING:
    from torch import Tensor


SEEDS = 2**63  # one per purpose


class Classifier(SecondStage):
    """One row per label, compared with the query by cosine. The score of the first method is added.

    Both scores are inner products with the same query, so their sum is that with the sum of the label's two vectors:
    what is learnt ends in the first method's index.
    """

    name = "classifier"
    info = MethodInfo(
        summary="second stage: one-vs-all classifiers on a frozen dual encoder",
        citation="Dahiya et al., NGAME: Negative Mining-aware Mini-batching for Extreme Classification, WSDM 2023",
        # 2: operations of clustering count; 3: a query's positives are the labels that were drawn for it, and dropout
        # follows the query, alike on every device; 4: tuned by its own answers to held-out queries
        version=4,
    )

    counted: ClassVar = {"shortlist": ("labels",), "negatives_per_query": ("labels",)}
    multiplies = True

    class Config(SecondStage.Config):
        epochs: int = Field(
            20,
            gt=0,
            description="passes over the embedded training queries, within the budget; they count as epochs and steps",
        )
        batch_size: int = Field(1024, gt=0, description="queries per step")
        batches: Literal["shuffled", "clusters"] = Field(
            "shuffled",
            description="shuffled, or clusters of queries with similar vectors of the first method, clustered once",
        )
        cluster_size: int = Field(64, gt=0, description="most queries of a cluster; with `clusters` (chosen)")
        warmup: float = Field(
            0.0,
            ge=0,
            lt=1,
            description="share of the second stage in which the learning rate rises; it falls to 0 over the rest",
        )
        table: tables.TableConfig = Field(
            tables.TableConfig(), description="optimiser and storage of the rows: a label table"
        )
        dropout: float = Field(0.5, ge=0, lt=1, description="dropout on the query's vector")
        margin: float = Field(0.2, gt=0, description="margin of the hinge of a positive and a negative")
        hardest: int = Field(10, gt=0, description="negatives per query in the loss")
        positives_per_query: int = Field(3, gt=0, description="positives sampled into the pool")
        positives: losses.TrainedPositives = "drawn"
        negatives_per_query: int = Field(5, gt=0, description="negatives sampled into the pool from the shortlist")
        shortlist: int = Field(
            100, gt=0, description="nearest labels of each query in the first method's index that are not true"
        )
        fuse: float = Field(1.0, ge=0, description="weight of the first method's score; 0: the classifier only")

        def unused(self) -> frozenset[str]:
            return super().unused() | ({"cluster_size"} if self.batches == "shuffled" else set())

    config: Classifier.Config

    @property
    def num_parameters(self) -> int:
        return self.first.num_parameters + self.first.index_LD.numel()

    def learn(self, train: data.TrainingData, queries_ND: Tensor | None, run: Run) -> None:
        import torch
        from torch.nn.functional import normalize

        if queries_ND is None:
            return
        index_LD, shard = self.first.index_LD, self.first.shard
        seed, settings = _seed(run, "rows"), self.config.table
        table = tables.LabelTable(shard.label_ids, index_LD.shape[1], settings, seed).to(index_LD.device)
        table.weight.copy_(normalize(index_LD[table.row_ids], dim=1))
        queries_ND = normalize(queries_ND, dim=1)
        sampler = self._sampler(train, queries_ND, run)
        self._train(sampler, table, queries_ND, run)
        with run.ledger.stage("index"):
            rows_LD = torch.empty_like(index_LD)
            rows_LD[shard.everyone()] = shard.workers.gather(normalize(table.weight.float(), dim=1))
            self.first.index_LD = rows_LD + self.config.fuse * index_LD

    def _sampler(self, train: data.TrainingData, queries_ND: Tensor, run: Run) -> sampling.Sampler:
        """Batches with negatives from shortlists. Shortlists and clusters are computed once: the encoder is frozen."""
        settings = self.config
        order: sampling.Order = sampling.Shuffled()
        if settings.batches == "clusters":
            order = sampling.Clusters(settings.cluster_size, start=0, vectors="fresh")
        nearest = sampling.Nearest(settings.negatives_per_query, settings.shortlist, start=0)
        sampler = sampling.Sampler(
            train,
            batch_size=settings.batch_size,
            seed=_seed(run, "batches"),
            order=order,
            positives=sampling.Draw(settings.positives_per_query),
            negatives=(nearest,),
        )
        with self.first.charging_to(run.ledger, run.budget).counted("mine"):
            sampler.refresh(0, self.vectors(queries_ND, run))
        return sampler

    def _train(self, sampler: sampling.Sampler, table: tables.LabelTable, queries_ND: Tensor, run: Run) -> None:
        """Take steps until `epochs` or the budget end, whichever is first; the learning rate falls to 0 by then."""
        ledger, epochs, batches = run.ledger, run.ledger.epochs, sampler.num_batches(0)
        for step, place in self.steps(self.config.epochs * batches, run):
            with ledger.between_checks(run.budget), ledger.stage("train"):
                batch = sampler.batch(*divmod(step, batches))
                loss = self._step(batch, table, queries_ND, _seed(run, "dropout", step))
                table.step(self.config.table.learning_rate * _rate(place, self.config.warmup))
                ledger.steps += 1
                ledger.epochs = epochs + (step + 1) / batches  # a sum of parts could stay just below the budget
                ledger.queries += len(batch.query_ids)
                # A forward pass, and a backward pass that multiplies twice as much.
                ledger.scoring_flops += 6 * len(batch.query_ids) * len(batch.label_ids) * queries_ND.shape[1]
            self.report(run, place, loss=loss, step=ledger.steps)

    def _step(self, whole: sampling.Batch, table: tables.LabelTable, queries_ND: Tensor, seed: int) -> float:
        """The loss of a batch, after its backward pass; all workers use the same dropout masks."""
        from torch.nn.functional import dropout, normalize

        shard, settings = self.first.shard, self.config
        batch = shard.share(whole)
        queries_BD = queries_ND[upload(batch.query_ids, queries_ND.device)]
        with encoders.row_dropout(seed, "query", batch.query_ids):
            queries_BD = dropout(queries_BD, settings.dropout)
        positives = batch.positives.to(queries_ND.device)
        loss = losses.triplet(
            queries_BD,
            normalize(table(table.rows_of(batch.label_ids)), dim=1),
            positives,
            positives.weights(settings.positives),
            margin=settings.margin,
            hardest=settings.hardest,
            over_negatives="mean",
        )
        loss.backward()  # type: ignore[no-untyped-call]
        return float(shard.workers.sum(loss.detach()))


def _rate(place: float, warmup: float) -> float:
    """Factor of the learning rate at `place` in 0..1: a linear rise over `warmup`, then a linear fall to 0."""
    return place / warmup if place < warmup else (1 - place) / (1 - warmup)


def _seed(run: Run, *purpose: str | int) -> int:
    return int(run.rng("classifier", *purpose).integers(SEEDS))
