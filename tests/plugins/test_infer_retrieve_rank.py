"""Infer, retrieve, rank: what is trained on is what brute force finds, and a killed run asks nothing twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from fitting import Killed
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from toy import make_run, toy_data

from xmcbench import Predictions, XMCBenchError
from xmcbench.data.dataset import TrainingData
from xmcbench.data.extent import Extent
from xmcbench.evaluation import rank
from xmcbench.teachers import Answers, Pairs, Replies, Teacher, read_labels
from xmcbench.trial.run import Progress, Run
from xmcbench_plugins.infer_retrieve_rank import InferRetrieveRank, best_accepted, merged
from xmcbench_plugins.teachers.cached_judge import Account, CachedJudge
from xmcbench_plugins.teachers.charged_pairs import ChargedPairs
from xmcbench_plugins.teachers.database import JudgementStore

SMALL = {"teacher": "annotated", "documents": 30, "shortlist": 6, "kept": 2, "batch_size": 10, "learning_rate": 1e-3}
OWN = (
    "stage_seconds",
    "stage_cpu_seconds",
    "peak_bytes",
    "worker_bytes",
    "teacher_cached",
)  # two runs of one trial differ in these


def confidence(document: str, label: str) -> float:
    """How sure the teacher is; it accepts what it is more than half sure of."""
    return (len(document) * 7 + len(label) * 13) % 10 / 10


class Scripted(Teacher):
    """Writes the first words of a document, and judges by the lengths of the texts, until its breath is spent."""

    name = "scripted"
    summary = "a function"

    def __init__(self, breath: int) -> None:
        super().__init__(Teacher.Config(name=self.name))
        self.breath, self.asked = breath, Counter[tuple[str, str]]()

    def breathe(self, document: str, label: str) -> None:
        if self.asked.total() >= self.breath:
            raise Killed
        self.asked[document, label] += 1

    def ask(self, pairs: Pairs) -> Iterator[Answers]:
        for place, pair in enumerate(zip(pairs.documents, pairs.labels, strict=True)):
            self.breathe(*pair)
            sure, one = np.array([confidence(*pair)], np.float32), np.ones(1, np.int64)
            yield Answers(np.array([place]), (sure > 0.5).astype(np.int8), sure, one, one)

    def write(self, documents: Sequence[str], prompt: str, tokens: int) -> Iterator[Replies]:
        assert "{document}" in prompt
        for place, document in enumerate(documents):
            self.breathe(document, "")
            yield Replies(np.array([place]), [", ".join(document.split()[:3])], np.ones(1, int), np.full(1, tokens))


class Trials:
    """A folder where the method is fitted, killed and fitted again."""

    def __init__(self, root: Path, encoder: str) -> None:
        self.root, self.encoder, self.data = root, encoder, toy_data(ignored=1)
        self.documents = [f"{text} {i}" for i, text in enumerate(self.data.texts)]  # equal texts would share answers
        self.labels = [f"{text} {i}" for i, text in enumerate(self.data.label_texts)]
        self.trained: list[TrainingData] = []
        self.teachers: list[Scripted] = []

    def fitted(self, breath: int = 10**6, budget: Any = None, report: Any = None, **settings: Any) -> tuple[Any, Run]:
        trained = self.trained

        class Method(InferRetrieveRank):
            def sampler(self, train: TrainingData, seed: int) -> Any:
                trained.append(train)
                return super().sampler(train, seed)

        def judge(_: Teacher.Config) -> CachedJudge:
            self.teachers.append(Scripted(breath))
            charged = cache(lambda: ChargedPairs(self.root / "charged.bin", run.ledger.teacher_calls))
            store, rows = JudgementStore(self.root / "store"), np.arange(len(self.documents))
            account = Account(run.ledger, run.budget, charged)
            return CachedJudge(self.teachers[-1], 0, store, self.documents, rows, self.labels, account)

        told = {} if report is None else {"report": report}
        run = make_run(self.root, budget or {"steps": 12}, judge=judge, **told)
        run.checkpoint.mkdir(parents=True, exist_ok=True)
        method = Method(Method.Config(**({"encoder": self.encoder} | SMALL | settings)))
        method.fit(self.data.unannotated("infer-retrieve-rank"), run)
        return method, run

    @property
    def asked(self) -> Counter[tuple[str, str]]:
        return sum((teacher.asked for teacher in self.teachers), Counter[tuple[str, str]]())


@pytest.fixture
def trials(small_encoder: str, tmp_path: Path) -> Trials:
    return Trials(tmp_path, small_encoder)


def test_it_trains_on_what_brute_force_finds(trials: Trials) -> None:
    method, run = trials.fitted()
    untrained, data = InferRetrieveRank(method.config), trials.data
    untrained.prepare(data, make_run(trials.root / "other", {"steps": 1}))
    labels_LD = untrained.embed(untrained.labels)
    (train,) = trials.trained
    ids = np.sort(run.rng("documents").permutation(len(data.texts))[:30])
    assert list(train.texts) == [data.texts[i] for i in ids]
    assert train.targets.nnz > 0
    sizes = Extent(len(data.texts), data.num_labels, 16, 8)
    assert run.ledger.teacher_calls <= method.foreseen(sizes, run.budget)["teacher_calls"]
    for row, own in enumerate(ids):
        text = trials.documents[own]
        words = list(dict.fromkeys(text.split()[:3]))
        written_WD = untrained.embed(untrained.encoder.label_tokenizer.tokens(words, untrained.label_length))
        scores_L = (written_WD @ labels_LD.T).amax(0).numpy().astype(np.float64)
        scores_L[data.ignore[[own]].indices] = -np.inf
        shortlist = np.argsort(-scores_L, kind="stable")[:6].tolist()
        sure = {label: confidence(text, trials.labels[label]) for label in shortlist}
        accepted = sorted((label for label in shortlist if sure[label] > 0.5), key=lambda label: -sure[label])
        assert sorted(train.targets[[row]].indices.tolist()) == sorted(accepted[:2]), text


@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(0, 3))
def test_merged_lists_are_those_of_the_whole_matrix(seed: int, count: int, ignored: int) -> None:
    rng = np.random.default_rng(seed)
    scores_WL = rng.integers(0, 5, (6, 15)).astype(np.float32)  # many ties
    ignore = np.zeros((4, 15), np.float32)
    for row in ignore:
        row[rng.permutation(15)[:ignored]] = 1
    rows = [np.sort(rng.permutation(6)[: rng.integers(0, 5)]) for _ in range(4)]
    columns_WL = np.tile(np.arange(15), (6, 1))
    lists = rank(columns_WL, scores_WL, count + ignored)
    assert isinstance(lists, Predictions)
    for own, mask_L, found in zip(rows, ignore, merged(lists, rows, sp.csr_array(ignore), count), strict=True):
        best_L = np.where(mask_L > 0, -1, scores_WL[own].max(0, initial=-1))
        expected = np.argsort(-best_L, kind="stable")[:count] if len(own) else []
        assert found.tolist() == [label for label in expected if best_L[label] >= 0]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=20), st.integers(1, 3))
def test_the_surest_of_each_document_are_kept(given_pairs: list[tuple[int, int]], kept: int) -> None:
    rows = np.sort(np.array([row for row, _ in given_pairs], np.int64))
    labels = np.concatenate([np.arange(int((rows == row).sum())) for row in range(4)]).astype(np.int64)
    sure = np.array([level / 3 for _, level in given_pairs], np.float32)
    data = toy_data().rows(np.arange(4))
    found = best_accepted(rows, labels, sure, kept, data)
    assert found.shape == (4, data.num_labels)
    for row in range(4):
        own = [(-float(sure[place]), int(labels[place])) for place in np.flatnonzero(rows == row)]
        assert sorted(found[[row]].indices) == sorted(label for level, label in sorted(own)[:kept] if level < 0)


@pytest.mark.parametrize("breath", [0, 17, 60])
def test_resumed_equals_unbroken_and_asks_nothing_twice(breath: int, trials: Trials, tmp_path: Path) -> None:
    unbroken = Trials(tmp_path / "unbroken", trials.encoder)
    method, run = unbroken.fitted()

    def killer(progress: Progress) -> None:
        if progress.stage == "train":
            raise Killed

    with pytest.raises(Killed):
        trials.fitted(breath=breath)
    with pytest.raises(Killed):
        trials.fitted(report=killer)
    resumed, other = trials.fitted()
    assert trials.asked == unbroken.asked
    assert set(trials.asked.values()) == {1}
    assert len(trials.teachers) == 2  # the third run asked nobody
    for name, value in run.ledger.state().items():
        assert name in OWN or value == other.ledger.state()[name], name
    texts = trials.data.texts
    assert np.array_equal(method.predict(texts, 9).scores, resumed.predict(texts, 9).scores)


def test_a_spent_budget_for_the_teacher_leaves_training_its_own(trials: Trials) -> None:
    _, run = trials.fitted(budget={"steps": 12, "teacher_calls": 50}, epochs=100)
    documents = 50 // (1 + SMALL["shortlist"])
    assert documents < run.ledger.teacher_calls <= 50
    assert run.ledger.steps == 12
    written = [document for document, label in trials.asked if not label]
    assert len(written) == documents
    assert {document for document, _ in trials.asked} == set(written)  # each is judged
    ids = np.sort(run.rng("documents").permutation(len(trials.data.texts))[:30])
    assert set(written) != {trials.documents[i] for i in ids[:documents]}  # no lowest rows


def test_a_damaged_folder_is_asked_for_again(trials: Trials, caplog: pytest.LogCaptureFixture) -> None:
    trials.fitted()
    (trials.root / "checkpoint" / "ranked" / "pairs.npz").write_bytes(b"")
    _, run = trials.fitted(breath=0)  # all answers are in the store
    assert "the teacher is asked again" in caplog.text
    assert run.ledger.teacher_calls == run.ledger.teacher_cached > 0


def test_bad_settings_and_a_teacher_that_accepts_nothing_are_one_line_each(
    trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValidationError, match="'transformers' writes nothing, expected one that does, as 'openai'"):
        InferRetrieveRank.Config(**SMALL | {"teacher": {"name": "transformers", "model": "m"}})
    for prompt in ("which labels?", "{document} {label}", "{document} {document}"):
        with pytest.raises(ValidationError, match=r"the placeholder {document}, once, and no other"):
            InferRetrieveRank.Config(**SMALL | {"prompt": prompt})
    monkeypatch.setattr(f"{__name__}.confidence", lambda *_: 0.0)
    with pytest.raises(XMCBenchError, match=r"^toy: the teacher accepted no label of 30 documents$"):
        trials.fitted()


@pytest.mark.parametrize(
    ("reply", "labels"),
    [
        ("1. Red hats\n2) blue shoes\n\n- Red hats\n* 'x'", ("Red hats", "blue shoes", "x")),
        ("<think>maybe: a, b</think>\nred; blue, green.", ("red", "blue", "green")),
        ("19th century\n3D films", ("19th century", "3D films")),
        (" \n ", ()),
        ("-", ()),
    ],
)
def test_labels_are_read_from_replies(reply: str, labels: tuple[str, ...]) -> None:
    assert read_labels(reply) == labels
