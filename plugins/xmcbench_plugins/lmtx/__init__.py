"""LMTX: a dual encoder trained on the labels that a language model accepts of its own shortlists (Zhang et al., 2024).

One cycle: the encoder lists the best labels of each document; the teacher accepts or rejects each of them; the encoder
is trained on the accepted pairs; the teacher judges the best label of the development documents. Cycles go on while the
share of accepted best labels grows.

Legend: B queries of a batch, S labels of its pool, N documents that are trained on, L labels, K labels of a shortlist.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
import scipy
from pydantic import Field

from xmcbench import (
    Budget,
    Choice,
    ChosenBy,
    EmbeddingMethod,
    Method,
    MethodInfo,
    PassTooLargeError,
    Progress,
    Run,
    XMCBenchError,
    data,
    files,
    hookimpl,
    losses,
    sampling,
    search,
    teachers,
)
from xmcbench_plugins.lmtx.cycles import CycleAnswers, Cycles

if TYPE_CHECKING:
    from torch import Tensor

TEACHER_METRIC = "teacher P@1"
SEEDS = 2**62  # each cycle draws one


class Rejected(sampling.Nearest):
    """`per_query` negatives sampled from the labels of each query that the teacher rejected (Table 7)."""

    def __init__(self, rejected_NL: scipy.sparse.csr_array, per_query: int) -> None:
        super().__init__(per_query)
        counts_N = np.diff(rejected_NL.indptr)
        self.nearest_NK = np.full((len(counts_N), max(1, int(counts_N.max(initial=0)))), -1, np.int32)
        self.nearest_NK[np.arange(self.nearest_NK.shape[1]) < counts_N[:, None]] = rejected_NL.indices

    def refresh(self, epoch: int, embeddings: sampling.Embeddings) -> None:
        """Keep the rejected labels: they change only with the next cycle."""


class Documents(NamedTuple):
    """The documents that all cycles work with, and the encoder's weights before the first cycle."""

    data: data.TrainingData  # the N documents
    ids: np.ndarray  # [N] their rows in the training split
    development: np.ndarray  # the rows of `data` whose best label the teacher judges after a cycle
    weights: dict[str, Tensor]


class LMTX(EmbeddingMethod):
    """Learns from a teacher's judgements of labels that the encoder proposes itself; it reads no annotation."""

    name = "lmtx"
    info = MethodInfo(
        summary="dual encoder trained in cycles on what a teacher accepts of its shortlists",
        citation="Zhang et al., Zero-Shot Learning Over Large Output Spaces: Utilizing Indirect Knowledge Extraction "
        "from Large Language Models",
        needs=("label texts", "a teacher"),
        # 2: a document's positive is the label that was drawn for it; 3: the development documents are charged;
        # 4: what a budget of calls leaves out is drawn, not the last documents
        version=4,
    )
    many_workers: ClassVar[bool] = False  # each question is asked once, by one process
    not_planned: ClassVar[str] = "it trains on what its teacher accepts, which is not known before"

    counted: ClassVar = {"documents": ("queries",), "development": ("queries",), "shortlist": ("labels",)}

    class Config(losses.TripletLoss, EmbeddingMethod.Config):
        teacher: teachers.TeacherConfig = Field(description="the name of a teacher, or a mapping of its settings")
        cycles: int = Field(6, gt=0, description="maximum number of cycles")
        epochs: float = Field(1.0, gt=0, description="passes per cycle over the documents with an accepted label")
        documents: int | None = Field(
            30_000,
            gt=0,
            description="documents sampled from the training split; null: all; a smaller sample is a subset of a "
            "larger one",
        )
        development: int = Field(
            800, gt=0, description="documents whose best label is judged after each cycle; they are trained on too"
        )
        shortlist: int = Field(
            10,
            gt=0,
            description="labels per document that are judged in a cycle; found by `search`, without ignored pairs",
        )
        start: Literal["continue", "afresh"] = Field(
            "continue",
            description="initial weights of a cycle: those of the last cycle, or those of the pretrained encoder",
        )
        accepted: Literal["cycle", "all"] = Field(
            "cycle", description="train on the answers of this cycle, or of all cycles so far"
        )
        negatives: Literal["in-batch", "rejected"] = Field(
            "in-batch", description="rejected adds labels that the teacher rejected"
        )
        rejected_per_query: int = Field(
            3, gt=0, description="sampled from a document's rejected labels; with `rejected` negatives"
        )
        batch_size: int = Field(128, gt=0, description="queries per step")
        learning_rate: float = Field(2e-4, gt=0, description="peak of each cycle's schedule")
        weight_decay: float = Field(0.0, ge=0, description="of AdamW, on matrices")
        warmup: float = Field(
            0.4,
            ge=0,
            lt=1,
            description="share of a cycle in which the learning rate rises; it falls to 0 over the rest",
        )

        def unused(self) -> frozenset[str]:
            return super().unused() | ({"rejected_per_query"} if self.negatives == "in-batch" else set())

    config: LMTX.Config

    @classmethod
    def versions(cls, config: Method.Config) -> dict[str, int]:
        assert isinstance(config, LMTX.Config)
        return {**super().versions(config), **config.teacher.versions()}

    @classmethod
    def needs_annotations(cls, config: Method.Config) -> bool:  # noqa: ARG003
        return False

    def foreseen(self, data: data.Extent, budget: Budget) -> dict[str, float]:
        """The teacher's calls at most: a shortlist of each document in each cycle, and the development documents."""
        config, documents = self.config, data.documents or data.queries
        judged = min(documents, config.documents or documents) * min(config.shortlist, data.labels)
        calls = config.cycles * (judged + min(documents, config.development))
        limit = calls if budget.teacher_calls is None else budget.teacher_calls
        return {**super().foreseen(data, budget), "teacher_calls": min(calls, limit)}

    def fit(self, train: data.TrainingData, run: Run) -> None:
        documents, cycles = self._documents(train, run), Cycles(run)
        if cycles.scores:
            self.load(cycles.model(len(cycles.scores) - 1))
        else:
            self.index(self.labels)
        with run.judge(self.config.teacher) as judge:
            while self._goes_on(cycles) and self._cycle(documents, cycles, judge):
                pass
        if cycles.scores:
            self.load(cycles.model(cycles.best))
        if run.held_out is None:
            run.log.chosen_by = Choice(by=ChosenBy.TEACHER, queries=len(documents.development))

    def _documents(self, train: data.TrainingData, run: Run) -> Documents:
        """Draw the documents; a smaller number of documents is a subset of a larger one."""
        order = run.rng("documents").permutation(len(train.texts))[: self.config.documents]
        ids = np.sort(order)
        development = np.searchsorted(ids, np.sort(order[: self.config.development]))
        data = train.rows(ids)
        self.prepare(data, run)
        return Documents(data, ids, development, self.encoder.state_dict())

    def _goes_on(self, cycles: Cycles) -> bool:
        # A cycle whose questions are answered goes on to train: the teacher's budget may be spent, not the training's.
        answered = len(cycles.answers) > len(cycles.scores)
        within = answered or cycles.run.ledger.fraction(cycles.run.budget) < 1
        return within and cycles.improving and len(cycles.scores) < self.config.cycles

    def _cycle(self, documents: Documents, cycles: Cycles, judge: teachers.Judge) -> bool:
        """Run one cycle; False where no budget or no accepted pair is left to train with."""
        run, cycle = cycles.run, len(cycles.scores)
        if len(cycles.answers) == cycle:
            try:
                answers = self._ask(documents, judge, run, cycle)
            except PassTooLargeError:
                if not cycle:
                    raise
                return False
            cycles.add_answers(answers)
        data, accumulated = documents.data, self.config.accepted == "all"
        shape = len(data.texts), data.num_labels
        accepted = cycles.pairs("yes", shape, accumulated=accumulated)
        if not cycle and not accepted.nnz:
            raise XMCBenchError(f"{data.card.name}: the teacher accepted no label of {len(data.texts)} documents")
        budget = run.rest(self.config.epochs)
        if budget is None or not accepted.nnz:
            return False
        self._rejected = cycles.pairs("no", shape, accumulated=accumulated)
        self._start = documents.weights if self.config.start == "afresh" else self.encoder.state_dict()
        seed, total = int(run.rng("cycle", cycle).integers(SEEDS)), self.config.cycles
        with run.part(cycles.directory(cycle).name, budget, cycle / total, (cycle + 1) / total) as own:

            def report(progress: Progress) -> None:
                own.report(replace(progress, metrics={**progress.metrics, "cycle": cycle + 1}))

            try:
                super().fit(data.with_targets(accepted), replace(own, seed=seed, report=report))
            except PassTooLargeError:  # the rest of the budget went into preparing the cycle
                if not cycle:
                    raise
                return False
        with files.checked_folder(cycles.model(cycle)) as folder:
            self.save(folder)
        cycles.add_score(self._evaluate(documents, cycles, judge))
        return True

    def _ask(self, documents: Documents, judge: teachers.Judge, run: Run, cycle: int) -> CycleAnswers:
        """The teacher's answers about the best labels of every document under the current encoder."""
        charging, operations = self.charging_to(run.ledger, run.budget), 2 * len(documents.ids) * self.index_LD.numel()
        with run.ledger.stage("mine"):
            # The vectors of labels are in the index.
            charging.passes(self.queries.lengths, self.labels.lengths, scoring_flops=operations)
            queries_ND = self.all_query_vectors(self.queries)
            index = self.built_index()
            k = min(self.config.shortlist, len(self.index_LD))
            best = index.top_k(queries_ND, k, exclude=documents.data.ignore)
            if self.approximates:
                recall = search.measured_recall(index, queries_ND, self.index_LD, k, documents.data.ignore)
                run.ledger.note_recall(recall)
        rows, places = np.nonzero(best.indices >= 0)
        # Document by document, in a random order: a budget of calls that ends on the way leaves a random part.
        order = np.argsort(run.rng("asked", cycle).permutation(len(documents.ids))[rows], kind="stable")
        rows, places = rows[order], places[order]
        labels = best.indices[rows, places].astype(np.int64)
        judged = judge(documents.ids[rows], labels)
        return CycleAnswers(*(column[judged.asked] for column in (rows, labels, judged.yes, judged.no)))

    def _evaluate(self, documents: Documents, cycles: Cycles, judge: teachers.Judge) -> float:
        """The score by which cycles are compared: the suite's held-out metric, else the teacher's; it joins the curve.

        Infinite where a budget does not reach: then the last cycle counts as the best.
        """
        run, ledger, held_out = cycles.run, cycles.run.ledger, cycles.run.held_out
        if held_out is not None:
            with ledger.uncharged():
                metrics = held_out.evaluate(self.predict, len(self.index_LD))
        else:
            judged = self._judged(documents, judge, run)
            metrics = {TEACHER_METRIC: float(judged.yes.mean())} if judged is not None and judged.asked.all() else {}
        context = {"cycle": len(cycles.scores) + 1, "teacher_calls": ledger.teacher_calls}
        run.log.add_point(min(1.0, ledger.fraction(run.budget)), {**context, **metrics})
        return held_out.worth(metrics) if held_out is not None else metrics.get(TEACHER_METRIC, math.inf)

    def _judged(self, documents: Documents, judge: teachers.Judge, run: Run) -> teachers.Judgements | None:
        """The teacher's answers about the best label of the development documents, which are training documents.

        Embedding and searching them is charged; None where that does not fit into the budget.
        """
        rows = documents.development
        charging, tokens = self.charging_to(run.ledger, run.budget), self.queries.take(rows)
        with run.ledger.stage("mine"):
            try:
                charging.passes(tokens.lengths, scoring_flops=search.search_flops(len(rows), *self.index_LD.shape))
            except PassTooLargeError:
                return None
            index = self.built_index()
            queries_BD = self.all_query_vectors(tokens)
            best = index.top_k(queries_BD, 1, exclude=documents.data.ignore[rows]).indices[:, 0]
        return judge(documents.ids[rows], best.astype(np.int64))

    def begin(self, embeddings: sampling.Embeddings) -> None:  # noqa: ARG002
        self.encoder.load_state_dict(self._start)

    def sampler(self, train: data.TrainingData, seed: int) -> sampling.Sampler:
        negatives = []
        if self.config.negatives == "rejected":
            negatives = [Rejected(self._rejected, self.config.rejected_per_query)]
        return sampling.Sampler(train, batch_size=self.config.batch_size, seed=seed, negatives=negatives)

    def loss(self, queries_BD: Tensor, labels_SD: Tensor, batch: sampling.Batch) -> Tensor:
        return self.config.triplet(queries_BD, labels_SD, batch.positives)


@hookimpl
def register_methods(register: Callable[[type[Any]], None]) -> None:
    register(LMTX)
