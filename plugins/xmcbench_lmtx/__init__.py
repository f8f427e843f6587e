"""LMTX: a dual encoder trained on what a language model accepts of its own shortlists (Zhang et al., 2024).

A cycle: the encoder lists the best labels of each document; the teacher accepts or rejects each; the encoder is trained
on what was accepted; the teacher judges the best label of some documents, and cycles go on while that gets better.

Legend: B queries of a batch, S labels of its pool, N documents that are trained on, L labels, K labels of a shortlist.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp
from pydantic import Field
from torch import Tensor

from xmcbench import (
    Budget,
    EmbeddingMethod,
    Judge,
    Method,
    MethodInfo,
    Predictions,
    Progress,
    Run,
    TeacherConfig,
    TrainingData,
    TrainingLog,
    XMCBenchError,
    hookimpl,
    losses,
    registry,
    sampling,
    search,
)
from xmcbench_lmtx.cycles import Asked, Cycles

TEACHERS_FIGURE = "teacher P@1"
SEEDS = 2**62  # one is drawn for each cycle
PREDICTED = 100  # labels of a held-out query


class Rejected(sampling.Nearest):
    """`per_query` of the labels of each query that the teacher rejected (Table 7); they are the shortlist."""

    def __init__(self, rejected_NL: sp.csr_array, per_query: int) -> None:
        super().__init__(per_query)
        counts_N = np.diff(rejected_NL.indptr)
        self.nearest_NK = np.full((len(counts_N), max(1, int(counts_N.max(initial=0)))), -1, np.int32)
        self.nearest_NK[np.arange(self.nearest_NK.shape[1]) < counts_N[:, None]] = rejected_NL.indices

    def refresh(self, epoch: int, embeddings: sampling.Embeddings) -> None:
        """What was rejected stays so until the next cycle."""


class Material(NamedTuple):
    """What the cycles work with, alike in all of them."""

    data: TrainingData  # the N documents
    documents: np.ndarray  # [N] their numbers in the training split
    development: np.ndarray  # the rows of `data` whose best label is judged after a cycle
    queries: Any  # tokens of the documents
    labels: Any  # tokens of the labels
    weights: dict[str, Tensor]  # the encoder as it came


class LMTX(EmbeddingMethod):
    """Learns from a teacher's judgement of labels that it proposes itself. No annotation is looked at."""

    name = "lmtx"
    info = MethodInfo(
        summary="dual encoder trained in cycles on what a teacher accepts of its shortlists",
        citation="Zhang et al., Zero-Shot Learning Over Large Output Spaces: Utilizing Indirect Knowledge Extraction "
        "from Large Language Models",
        needs=("label texts", "a teacher"),
    )
    many_workers: ClassVar[bool] = False  # a question is asked once

    class Config(losses.TripletLoss, EmbeddingMethod.Config):
        teacher: TeacherConfig = Field(description="who judges; see docs/teachers.md")
        cycles: int = Field(6, gt=0, description="at most")
        epochs: float = Field(1.0, gt=0, description="passes of a cycle over the documents that have a label")
        documents: int | None = Field(30_000, gt=0, description="drawn from the training split; null takes all")
        development: int = Field(800, gt=0, description="of the documents, whose best label the teacher judges")
        shortlist: int = Field(10, gt=0, description="best labels of a document that the teacher judges in a cycle")
        start: Literal["continue", "afresh"] = Field(
            "continue", description="a cycle's weights: the last one's, or new"
        )
        accepted: Literal["cycle", "all"] = Field(
            "cycle", description="answers trained on: this cycle's, or all so far"
        )
        negatives: Literal["in-batch", "rejected"] = Field("in-batch", description="rejected: and what was rejected")
        rejected_per_query: int = Field(3, gt=0, description="drawn from a document's rejected labels")
        batch_size: int = Field(128, gt=0, description="queries a step")
        learning_rate: float = Field(2e-4, gt=0)
        weight_decay: float = Field(0.0, ge=0, description="not on biases and norms")
        warmup: float = Field(0.4, ge=0, lt=1, description="share of a cycle in which the learning rate rises")

        def unused(self) -> frozenset[str]:
            return super().unused() | ({"rejected_per_query"} if self.negatives == "in-batch" else set())

    config: LMTX.Config

    @classmethod
    def versions(cls, config: Method.Config) -> dict[str, int]:
        assert isinstance(config, LMTX.Config)
        name = config.teacher.name
        return {**super().versions(config), f"teacher {name}": registry().version("teacher", name)}

    def fit(self, train: TrainingData, run: Run) -> None:
        material, cycles = self._material(train, run), Cycles(run)
        if cycles.figures:
            self.load(cycles.model(len(cycles.figures) - 1))
        else:
            self.index(material.labels)
        with run.judge(self.config.teacher) as judge:
            while self._goes_on(cycles) and self._cycle(material, cycles, judge):
                pass
        if cycles.figures:
            self.load(cycles.model(cycles.best))
        if run.held_out is None:
            run.log.chosen_by = f"teacher: the best label of {len(material.development)} training documents"

    def _goes_on(self, cycles: Cycles) -> bool:
        # Once its questions are asked a cycle goes on: the teacher's budget may be spent, that of training is not.
        within = len(cycles.asked) > len(cycles.figures) or cycles.run.ledger.fraction(cycles.run.budget) < 1
        return within and cycles.improving and len(cycles.figures) < self.config.cycles

    def _cycle(self, material: Material, cycles: Cycles, judge: Judge) -> bool:
        """One cycle; False where nothing is left to train with or on."""
        run, cycle = cycles.run, len(cycles.figures)
        if len(cycles.asked) == cycle:
            cycles.add_answers(self._ask(material, judge, run))
        data, everything = material.data, self.config.accepted == "all"
        shape = len(data.texts), data.num_labels
        accepted = cycles.pairs("yes", shape, accumulated=everything)
        if not cycle and not accepted.nnz:
            raise XMCBenchError(f"{data.card.name}: the teacher accepted no label of {len(data.texts)} documents")
        budget = self._rest(run)
        if budget is None or not accepted.nnz:
            return False
        self._rejected = cycles.pairs("no", shape, accumulated=everything)
        self._start = material.weights if self.config.start == "afresh" else self.encoder.state_dict()
        with run.ledger.part() as ledger:
            part = replace(
                run,
                seed=int(run.rng("cycle", cycle).integers(SEEDS)),
                budget=budget,
                checkpoint=cycles.directory(cycle),
                log=TrainingLog(ledger),
                held_out=None,
                report=self._reporter(run, cycle),
            )
            super().fit(data.with_targets(accepted), part)
        self.save(cycles.place(cycle))
        cycles.add_figure(self._look(material, cycles, judge))
        return True

    def _ask(self, material: Material, judge: Judge, run: Run) -> Asked:
        """The teacher's answers about the best labels of every document, under the encoder as it is."""
        ledger = run.ledger
        with ledger.step(run.budget), ledger.stage("mine"):
            for tokens in (material.queries, material.labels):  # the labels' vectors are in the index
                ledger.encoder_tokens += int(tokens.lengths.sum())
                ledger.encoder_flops += self.encoder.flops(tokens.lengths)
            ledger.scoring_flops += 2 * len(material.documents) * self.index_LD.numel()
            best = self._best(material, np.arange(len(material.documents)), self.config.shortlist)
        rows, places = np.nonzero(best.indices >= 0)
        labels = best.indices[rows, places].astype(np.int64)
        found = judge(material.documents[rows], labels)
        return Asked(*(each[found.asked] for each in (rows, labels, found.yes, found.no)))

    def _best(self, material: Material, rows: np.ndarray, k: int) -> Predictions:
        queries_BD = self.all_query_vectors(material.queries.take(rows))
        index = search.build_index(self.index_LD, self.config.search)
        return index.top_k(queries_BD, min(k, len(self.index_LD)), exclude=material.data.ignore[rows])

    def _rest(self, run: Run) -> Budget | None:
        """What the training of a cycle may spend: its epochs, within what is left; None where nothing is."""
        limits = run.budget.spending().items()
        rest = {name: limit - run.ledger.spent(name) for name, limit in limits if not name.startswith("teacher")}
        if min(rest.values(), default=1.0) <= 0:
            return None
        rest["epochs"] = min(self.config.epochs, rest.get("epochs", math.inf))
        return Budget(**rest, peak_bytes=run.budget.peak_bytes)

    def _reporter(self, run: Run, cycle: int) -> Callable[[Progress], None]:
        def report(progress: Progress) -> None:
            metrics = {**progress.metrics, "cycle": cycle + 1}
            fraction = (cycle + progress.fraction) / self.config.cycles
            run.report(replace(progress, fraction=fraction, metrics=metrics))

        return report

    def _look(self, material: Material, cycles: Cycles, judge: Judge) -> float:
        """What cycles are compared by: the suite's figure of held-out queries, else the teacher's; it joins the curve.

        Infinite where the teacher's budget does not reach: of the cycles the last one counts then.
        """
        run, ledger, held_out = cycles.run, cycles.run.ledger, cycles.run.held_out
        with ledger.off_the_books():
            if held_out is not None:
                figures = held_out.score(self.predict(held_out.texts, min(PREDICTED, len(self.index_LD))))
            else:
                best = self._best(material, material.development, 1).indices[:, 0]
        if held_out is None:
            found = judge(material.documents[material.development], best.astype(np.int64))
            figures = {TEACHERS_FIGURE: float(found.yes.mean())} if found.asked.all() else {}
        known = {"cycle": len(cycles.figures) + 1, "teacher_calls": ledger.teacher_calls}
        run.log.add_point(min(1.0, ledger.fraction(run.budget)), {**known, **figures})
        chosen_by = TEACHERS_FIGURE if held_out is None else held_out.metric
        return figures.get(chosen_by, math.inf)

    # What the engine asks for in a cycle ----------------------------------------------------------------------------

    def begin(self, embeddings: sampling.Embeddings) -> None:  # noqa: ARG002
        self.encoder.load_state_dict(self._start)

    def sampler(self, train: TrainingData, seed: int) -> sampling.Sampler:
        negatives = []
        if self.config.negatives == "rejected":
            negatives = [Rejected(self._rejected, self.config.rejected_per_query)]
        return sampling.Sampler(train, batch_size=self.config.batch_size, seed=seed, negatives=negatives)

    def loss(self, queries_BD: Tensor, labels_SD: Tensor, batch: sampling.Batch) -> Tensor:
        return self.config.triplet(queries_BD, labels_SD, batch.positives)

    def _material(self, train: TrainingData, run: Run) -> Material:
        """Draw the documents: fewer of them are among those of more."""
        order = run.rng("documents").permutation(len(train.texts))[: self.config.documents]
        documents = np.sort(order)
        development = np.searchsorted(documents, np.sort(order[: self.config.development]))
        data = train.rows(documents)
        queries, labels = self.prepare(data, run)
        return Material(data, documents, development, queries, labels, self.encoder.state_dict())


@hookimpl
def register_methods(register: Callable[[type[Any]], None]) -> None:
    register(LMTX)
