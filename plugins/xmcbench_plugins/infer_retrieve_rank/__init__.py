"""Infer, retrieve, rank (D'Oosterlinck et al., 2024): a teacher writes labels, and judges those near them.

The teacher writes labels for each training document (infer); the encoder finds the dataset's labels nearest to what was
written (retrieve); the teacher judges these, and the surest that it accepts come first (rank). A dual encoder is
trained on the best of them.

Legend: N documents, W distinct texts that the teacher wrote, L labels, D dimensions, B queries of a batch, S labels of
its pool.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import scipy
from pydantic import Field, field_validator

from xmcbench import (
    Budget,
    EmbeddingMethod,
    Method,
    MethodInfo,
    PassTooLargeError,
    Predictions,
    Run,
    XMCBenchError,
    data,
    files,
    hookimpl,
    losses,
    registry,
    sampling,
    search,
    teachers,
)

if TYPE_CHECKING:
    from torch import Tensor

_log = logging.getLogger(__name__)
PROMPT = (
    "document = {document}. Which tags describe this document? Answer with the tags alone, one on each line, the most "
    "fitting first."
)
RANKED = "ranked"  # a folder beside the checkpoints: what the teacher accepted


class InferRetrieveRank(EmbeddingMethod):
    """A dual encoder that learns from labels that a teacher writes and ranks; it reads no annotation."""

    name = "infer-retrieve-rank"
    info = MethodInfo(
        summary="dual encoder trained on the labels nearest to what a teacher writes, as the teacher ranks them",
        citation="D'Oosterlinck et al., In-Context Learning for Extreme Multi-Label Classification, 2024",
        needs=("label texts", "a teacher that writes"),
        version=2,  # what a budget of calls leaves out is drawn; replies have room for thoughts
    )
    many_workers: ClassVar[bool] = False  # each question is asked once, by one process
    not_planned: ClassVar[str] = "it trains on what its teacher accepts, which is not known before"

    counted: ClassVar = {"documents": ("queries",), "shortlist": ("labels",), "kept": ("labels",)}

    class Config(EmbeddingMethod.Config):
        teacher: teachers.TeacherConfig = Field(
            description="the name of a teacher that writes, or a mapping of its settings"
        )
        prompt: teachers.WritingPrompt = Field(PROMPT, description="the template that asks for labels of {document}")
        reply_tokens: int = Field(
            2048, gt=0, description="most tokens of what the teacher writes about a document, thoughts included"
        )
        written: int = Field(10, gt=0, description="labels of a reply that count, the first ones")
        documents: int | None = Field(
            1000, gt=0, description="documents sampled from the training split; null: all; fewer are a subset of more"
        )
        shortlist: int = Field(20, gt=0, description="labels of a document that the teacher judges, nearest first")
        kept: int = Field(5, gt=0, description="accepted labels of a document that are trained on, the surest ones")
        epochs: float = Field(10.0, gt=0, description="most passes over the documents with an accepted label")
        temperature: float = Field(0.05, gt=0, description="divides the inner products (chosen)")

        @field_validator("teacher")
        @classmethod
        def _writes(cls, config: teachers.Teacher.Config) -> teachers.Teacher.Config:
            if registry().thing("teacher", config.name).write is teachers.Teacher.write:
                raise ValueError(f"teacher {config.name!r} writes nothing, expected one that does, as 'openai'")
            return config

    config: InferRetrieveRank.Config

    @classmethod
    def versions(cls, config: Method.Config) -> dict[str, int]:
        assert isinstance(config, InferRetrieveRank.Config)
        return {**super().versions(config), **config.teacher.versions()}

    @classmethod
    def needs_annotations(cls, config: Method.Config) -> bool:  # noqa: ARG003
        return False

    def foreseen(self, data: data.Extent, budget: Budget) -> dict[str, float]:
        """The teacher's calls at most: it writes about each document, and judges a shortlist."""
        config, documents = self.config, data.documents or data.queries
        calls = min(documents, config.documents or documents) * (1 + min(config.shortlist, data.labels))
        limit = calls if budget.teacher_calls is None else budget.teacher_calls
        return {**super().foreseen(data, budget), "teacher_calls": min(calls, limit)}

    def fit(self, train: data.TrainingData, run: Run) -> None:
        ids = np.sort(run.rng("documents").permutation(len(train.texts))[: self.config.documents])
        data = train.rows(ids)
        ranked_NL = _restored(run)
        if ranked_NL is None:
            with run.judge(self.config.teacher) as judge:
                ranked_NL = self._ask(data, ids, judge, run)
            _store(ranked_NL, run)
        if not ranked_NL.nnz:
            raise XMCBenchError(f"{train.card.name}: the teacher accepted no label of {len(ids)} documents")
        if (rest := run.rest(self.config.epochs)) is None:
            raise PassTooLargeError("the budget was spent on the teacher's questions before training began")
        with run.part("training", rest) as own:
            super().fit(data.with_targets(ranked_NL), own)
        if run.held_out is not None:
            with run.ledger.uncharged():
                run.log.add_point(1.0, run.held_out.evaluate(self.predict, train.num_labels))

    def _ask(self, data: data.TrainingData, ids: np.ndarray, judge: teachers.Judge, run: Run) -> scipy.sparse.csr_array:
        """[N, L] ones for the labels that the teacher accepts, at most `kept` a document; `ids` are its documents."""
        asked = run.rng("asked").permutation(len(ids))[: self._affordable(run)]
        replies = judge.write(ids[asked], self.config.prompt, self.config.reply_tokens)
        texts: list[tuple[str, ...]] = [()] * len(ids)
        for row, reply in zip(asked.tolist(), replies, strict=True):
            texts[row] = teachers.read_labels(reply or "")[: self.config.written]
        nearest = self._retrieve(data, texts, run)
        rows = np.repeat(asked, [len(nearest[row]) for row in asked])
        labels = np.concatenate([*(nearest[row] for row in asked), np.empty(0, np.int64)])
        judged = judge(ids[rows], labels)
        return best_accepted(rows, labels, np.where(judged.yes, judged.confidence, 0), self.config.kept, data)

    def _affordable(self, run: Run) -> int | None:
        """The number of documents about which the budget's calls let the teacher write, and judge a whole shortlist."""
        if run.budget.teacher_calls is None:
            return None
        return max(1, (run.budget.teacher_calls - run.ledger.teacher_calls) // (1 + self.config.shortlist))

    def _retrieve(self, data: data.TrainingData, texts: list[tuple[str, ...]], run: Run) -> list[np.ndarray]:
        """The labels nearest to any of the texts that were written about each document, best first."""
        places = {text: place for place, text in enumerate(dict.fromkeys(text for own in texts for text in own))}
        if not places:
            return [np.empty(0, np.int64)] * len(texts)
        with run.ledger.stage("prepare"):
            self.prepare(data, run)
        charging = self.charging_to(run.ledger, run.budget)
        with run.ledger.stage("mine"):
            written = self.encoder.label_tokenizer.tokens(list(places), self.label_length)
            operations = search.search_flops(len(places), len(self.labels.lengths), self.encoder.dimension)
            charging.passes(written.lengths, self.labels.lengths, scoring_flops=operations)
            index = search.build_index(self.all_label_vectors(self.labels), "exact")
            ignored = int(np.diff(data.ignore.indptr).max(initial=0))
            listed = min(data.num_labels, self.config.shortlist + ignored)
            lists = index.top_k(self.embed(written), listed)
        rows = [np.array([places[text] for text in own], np.int64) for own in texts]
        return merged(lists, rows, data.ignore, self.config.shortlist)

    def loss(self, queries_BD: Tensor, labels_SD: Tensor, batch: sampling.Batch) -> Tensor:
        """Softmax over the pool of the label that was sampled for each document."""
        drawn = batch.positives.weights("drawn")
        return losses.softmax(queries_BD, labels_SD, batch.positives, drawn, temperature=self.config.temperature)


def merged(
    lists: Predictions, rows: list[np.ndarray], ignore_NL: scipy.sparse.csr_array, count: int
) -> list[np.ndarray]:
    """Of each document the `count` labels with the highest score in any of its `rows` of the W `lists`, best first.

    Ties go by lower label; ignored labels are left out. Right where a list has `count` labels and as many more as a
    document ignores.
    """
    found = []
    for number, own in enumerate(rows):
        labels, scores = lists.indices[own].ravel().astype(np.int64), lists.scores[own].ravel()
        labels = labels[np.lexsort((labels, -scores))]
        labels = labels[np.sort(np.unique(labels, return_index=True)[1])]  # the first of each
        ignored = ignore_NL.indices[ignore_NL.indptr[number] : ignore_NL.indptr[number + 1]]
        found.append(labels[~np.isin(labels, ignored)][:count])
    return found


def best_accepted(
    rows: np.ndarray, labels: np.ndarray, confidence: np.ndarray, kept: int, data: data.TrainingData
) -> scipy.sparse.csr_array:
    """[N, L] ones for the `kept` surest labels of each document; 0 is no acceptance. Ties go by the order given."""
    order = np.lexsort((np.arange(len(rows)), -confidence, rows))
    order = order[confidence[order] > 0]
    own = rows[order]
    place = np.arange(len(own)) - np.searchsorted(own, own)  # within the document
    best = order[place < kept]
    ones = np.ones(len(best), np.float32)
    return scipy.sparse.csr_array((ones, (rows[best], labels[best])), (len(data.texts), data.num_labels))


def _store(ranked_NL: scipy.sparse.csr_array, run: Run) -> None:
    """Keep what the teacher accepted, and what it has cost until now."""
    with files.checked_folder(run.checkpoint / RANKED) as folder:
        (folder / "note.json").write_text(json.dumps(run.log.state()))
        arrays = {name: getattr(ranked_NL, name) for name in ("data", "indices", "indptr")}
        np.savez(folder / "pairs.npz", shape=ranked_NL.shape, **arrays)


def _restored(run: Run) -> scipy.sparse.csr_array | None:
    """What `_store` kept before a kill; None where there is nothing, or it is damaged: the teacher is asked again."""
    folder = run.checkpoint / RANKED
    if not folder.is_dir():
        return None
    try:
        files.check_manifest(folder)
    except files.DamagedFolder as damage:
        _log.warning("warning: %s; the teacher is asked again", damage)
        return None
    run.log.restore(json.loads((folder / "note.json").read_text()))
    with np.load(folder / "pairs.npz", allow_pickle=False) as arrays:
        return scipy.sparse.csr_array((arrays["data"], arrays["indices"], arrays["indptr"]), tuple(arrays["shape"]))


@hookimpl
def register_methods(register: Callable[[type[Any]], None]) -> None:
    register(InferRetrieveRank)
