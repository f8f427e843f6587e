"""LMTX: what each switch changes, when cycles end, what they cost, and that a killed run ends as an unbroken one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from fakes.bench import Bench
from fitting import Killed, assert_saved_predicts_the_same, killer
from pydantic import ValidationError
from toy import LABELS, QUERIES, UNLABELLED, make_run, toy_data

from xmcbench import losses, sampling, search
from xmcbench.data.dataset import TrainingData
from xmcbench.engine.training import resume, steps
from xmcbench.errors import XMCBenchError
from xmcbench.plugins.registry import registry
from xmcbench.teachers import NO, UNASKED, UNPARSED, YES, Judgements, Teacher
from xmcbench.trial.record import Status
from xmcbench.trial.run import HeldOut, Run
from xmcbench_lmtx import LMTX, TEACHER_METRIC, Rejected
from xmcbench_lmtx.cycles import Answers, Cycles

PLENTY = {"epochs": 100}
SMALL = {"shortlist": 5, "batch_size": 20, "development": 30, "learning_rate": 1e-3, "warmup": 0.1}


@dataclass
class FakeJudge:
    """Answers as `says` does, and charges as the real one: a pair once, those on the tab that are paid for nothing."""

    run: Run
    says: Callable[[int, int], int]
    tab: list[tuple[int, int]]
    asked: list[list[tuple[int, int]]] = field(default_factory=list)
    paid: set[tuple[int, int]] | None = None

    def __enter__(self) -> FakeJudge:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __call__(self, documents: np.ndarray, labels: np.ndarray) -> Judgements:
        ledger, limit = self.run.ledger, self.run.budget.teacher_calls
        pairs = [(int(d), int(label)) for d, label in zip(documents, labels, strict=True)]
        if self.paid is None:
            self.paid = set(self.tab[: ledger.teacher_calls])
            del self.tab[ledger.teacher_calls :]
        self.asked.append(pairs)
        answers = []
        for pair in pairs:
            if pair not in self.paid and limit is not None and ledger.teacher_calls >= limit:
                answers.append(UNASKED)
                continue
            if pair not in self.paid:
                ledger.teacher_calls += 1
                self.paid.add(pair)
                self.tab.append(pair)
            answers.append(self.says(*pair))
        return Judgements(np.array(answers, np.int8), np.ones(len(answers), np.float32))


def truthful(data: TrainingData) -> Callable[[int, int], int]:
    truth = data.targets.toarray()
    return lambda document, label: int(truth[document, label])


def yes_to_all(*_: int) -> int:
    return YES


@dataclass
class Trials:
    """A place where LMTX is fitted, killed and fitted again on toy data without annotations."""

    root: Path
    encoder: str
    says: Callable[[int, int], int]
    data: TrainingData
    tab: list[tuple[int, int]] = field(default_factory=list)
    judge: FakeJudge | None = None

    def method(self, **settings: Any) -> LMTX:
        return LMTX(LMTX.Config(**({"encoder": self.encoder, "teacher": "annotated", "cycles": 2} | SMALL | settings)))

    def run(self, budget: dict[str, Any], **settings: Any) -> Run:
        def judge(config: Teacher.Config) -> Any:
            assert config.name == "annotated"
            self.judge = FakeJudge(run, self.says, self.tab)
            return self.judge

        run = make_run(self.root, budget, judge=judge, **settings)
        run.checkpoint.mkdir(parents=True, exist_ok=True)
        return run

    def fitted(self, budget: dict[str, Any] = PLENTY, run: Run | None = None, **settings: Any) -> tuple[LMTX, Run]:
        method, run = self.method(**settings), run or self.run(budget)
        method.fit(self.data.unannotated("lmtx"), run)
        return method, run

    @property
    def asked(self) -> list[list[tuple[int, int]]]:
        assert self.judge is not None
        return self.judge.asked


@pytest.fixture
def trials(small_encoder: str, tmp_path: Path) -> Trials:
    data = toy_data(ignored=1)
    return Trials(tmp_path, small_encoder, truthful(data), data)


def weights(method: LMTX) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in method.encoder.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


# A cycle ----------------------------------------------------------------------------------------------------------


def test_a_cycle_asks_about_the_best_labels_of_every_document_then_of_some(trials: Trials) -> None:
    """Best first, a document's together, none that evaluation ignores; and after training the best of some."""
    method = trials.method(cycles=1)
    first = trials.method(cycles=1)
    method.fit(trials.data.unannotated("lmtx"), trials.run(PLENTY))
    first.prepare(trials.data, trials.run(PLENTY))
    queries, labels = first.queries, first.labels
    scores = (first.embed(queries) @ first.embed(labels).T).numpy()
    scores[trials.data.ignore.toarray() > 0] = -np.inf
    shortlist, development = trials.asked
    wanted = [(d, int(label)) for d in range(QUERIES) for label in np.argsort(-scores[d], kind="stable")[:5]]
    assert shortlist == wanted
    best = method.predict([trials.data.texts[document] for document, _ in development], LABELS)
    for row, (document, label) in enumerate(development):
        left = [each for each in best.indices[row] if not trials.data.ignore[document, each]]
        assert label == left[0]
    assert len({document for document, _ in development}) == 30


def test_only_accepted_pairs_are_positives_and_each_document_has_one_of_a_batch(
    trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(LMTX, "sampler", spied(LMTX.sampler, seen))
    trials.fitted(cycles=1)
    (train,) = seen
    truth = trials.data.targets.toarray()
    wanted = {pair for pair in trials.asked[0] if truth[pair]}
    assert set(zip(*(ids.tolist() for ids in train.targets.nonzero()), strict=True)) == wanted
    pool = trials.method().sampler(train, 0).batch(0, 0)
    assert len(pool.label_ids) <= len(pool.query_ids)


def spied(sampler: Any, seen: list[TrainingData]) -> Any:
    def wrapper(self: LMTX, train: TrainingData, seed: int) -> sampling.Sampler:
        seen.append(train)
        made: sampling.Sampler = sampler(self, train, seed)
        return made

    return wrapper


def test_settings_of_the_loss_change_the_loss(trials: Trials) -> None:
    batch = trials.method().sampler(trials.data, 0).batch(0, 0)
    generator = torch.Generator().manual_seed(0)
    sizes = (len(batch.query_ids), len(batch.label_ids))
    queries, labels = (torch.nn.functional.normalize(torch.randn(n, 8, generator=generator), dim=1) for n in sizes)
    defaults = {"margin": 0.3, "hardest": 10, "weight_temperature": 0.1, "bystanders": "zero logit"}
    found = set()
    changes: list[dict[str, Any]] = [{}, {"bystanders": "excluded"}, {"margin": 0.2}, {"hardest": 3}]
    changes += [{"weight_temperature": 0.5}, {"weight_temperature": None}]
    for changed in changes:
        value = trials.method(**(defaults | changed)).loss(queries, labels, batch).item()
        settings: dict[str, Any] = defaults | changed
        wanted = losses.triplet(queries, labels, batch.positives, over_negatives="mean", **settings)
        assert value == pytest.approx(wanted.item())
        found.add(value)
    assert len(found) == len(changes)


# Its switches -----------------------------------------------------------------------------------------------------


def test_a_cycle_goes_on_from_the_last_ones_weights_or_afresh(trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    first = weights_at_begin(monkeypatch)
    trials.says = yes_to_all
    monkeypatch.setattr(Cycles, "improving", property(lambda _: True))
    begun = {}
    for start in ("continue", "afresh"):
        here = Trials(trials.root / start, trials.encoder, trials.says, trials.data)
        here.fitted(start=start)
        begun[start], first[:] = list(first), []
    assert same(begun["continue"][0], begun["afresh"][0])
    assert same(begun["afresh"][0], begun["afresh"][1])
    assert not same(begun["continue"][0], begun["continue"][1])


def weights_at_begin(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, torch.Tensor]]:
    seen: list[dict[str, torch.Tensor]] = []
    begin = LMTX.begin

    def wrapper(self: LMTX, embeddings: sampling.Embeddings) -> None:
        begin(self, embeddings)
        seen.append(weights(self))

    monkeypatch.setattr(LMTX, "begin", wrapper)
    return seen


@pytest.mark.parametrize("accepted", ["cycle", "all"])
def test_answers_of_one_cycle_or_of_all_are_trained_on(
    accepted: str, trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[TrainingData] = []
    monkeypatch.setattr(LMTX, "sampler", spied(LMTX.sampler, seen))
    monkeypatch.setattr(Cycles, "improving", property(lambda _: True))
    trials.says = yes_to_all
    trials.fitted(accepted=accepted, cycles=3, learning_rate=3e-3)
    found = [set(zip(*(ids.tolist() for ids in train.targets.nonzero()), strict=True)) for train in seen]
    asked = [set(pairs) for pairs in trials.asked[::2]]
    assert asked[0] - asked[1]  # a guard: the second shortlist is another
    assert found == (asked if accepted == "cycle" else [asked[0], asked[0] | asked[1], asked[0] | asked[1] | asked[2]])
    assert all(np.all(train.targets.data == 1) for train in seen)


def test_rejected_labels_join_the_pool_or_not(trials: Trials) -> None:
    accepted, rejected = (np.zeros((QUERIES, LABELS), np.float32) for _ in range(2))
    accepted[:, 0] = 1
    rejected[np.arange(QUERIES), 1 + np.arange(QUERIES) % 30] = 1
    rejected[:7, 35:] = 1
    train = trials.data.with_targets(sp.csr_array(accepted))
    pools = {}
    for settings in ({"negatives": "in-batch"}, *({"negatives": "rejected", "rejected_per_query": n} for n in (1, 9))):
        method = trials.method(**settings)
        method._rejected = sp.csr_array(rejected)
        batch = method.sampler(train, 0).batch(0, 0)
        pools[settings.get("rejected_per_query", 0)] = set(batch.label_ids.tolist())
        allowed = {0, *np.flatnonzero(rejected[batch.query_ids].sum(0)).tolist()}
        assert pools[settings.get("rejected_per_query", 0)] <= allowed
        assert batch.positives.columns_P.tolist() == [0] * 20  # what was rejected is no positive
    assert pools[0] == {0} < pools[1]
    assert pools[9] == allowed


def test_nothing_rejected_adds_nothing() -> None:
    part = Rejected(sp.csr_array((4, 9), dtype=np.float32), 3)
    assert part.labels(np.arange(4), np.random.default_rng(0)).tolist() == []


def test_training_on_rejected_labels_ends_elsewhere(trials: Trials) -> None:
    ends = []
    for number, settings in enumerate(({"negatives": "in-batch"}, {"negatives": "rejected"})):
        here = Trials(trials.root / str(number), trials.encoder, trials.says, trials.data)
        ends.append(weights(here.fitted(cycles=1, **settings)[0]))
    assert not same(*ends)


def test_fewer_documents_are_among_more(trials: Trials) -> None:
    asked, development = {}, {}
    for count in (20, 40, None):
        here = Trials(trials.root / str(count), trials.encoder, yes_to_all, trials.data)
        here.fitted(documents=count, cycles=1, development=12)
        asked[count], development[count] = ({document for document, _ in pairs} for pairs in here.asked)
    assert [len(asked[count]) for count in asked] == [20, 40, QUERIES]
    assert asked[20] < asked[40] < asked[None]
    assert development[20] == development[40] == development[None] < asked[20]


def test_the_shortlist_is_searched_as_predictions_are(trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    backends = []
    build = search.build_index

    def spy(labels_LD: torch.Tensor, backend: str = "exact", **settings: Any) -> Any:
        backends.append(backend)
        return build(labels_LD, "exact", **settings)

    monkeypatch.setattr(search, "build_index", spy)
    trials.fitted(cycles=1, search="faiss-hnsw")
    assert backends == ["faiss-hnsw"] * 2


# When it ends -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("figures", "cycles", "best"),
    [([0.5, 0.6, 0.6, 0.9], 3, 1), ([0.5, 0.4, 0.9], 2, 0), ([0.1, 0.2, 0.3, 0.4, 0.5], 4, 3), ([0.5, 0.5], 2, 0)],
)
def test_it_stops_at_the_first_cycle_without_improvement_and_keeps_the_best(
    figures: list[float], cycles: int, best: int, trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[dict[str, torch.Tensor]] = []
    given = iter(figures)

    def look(self: LMTX, *_: Any) -> float:
        ends.append(weights(self))
        return next(given)

    monkeypatch.setattr(LMTX, "_evaluate", look)
    method, run = trials.fitted(cycles=4)
    assert len(ends) == cycles
    assert same(weights(method), ends[best])
    assert len(list(run.checkpoint.glob("model-*"))) <= 2  # the best and the last


def test_the_development_figure_is_the_share_of_best_labels_that_are_accepted(trials: Trials) -> None:
    _, run = trials.fitted(cycles=1)
    truth = trials.data.targets.toarray()
    (point,) = run.log.curve
    assert point[TEACHER_METRIC] == np.mean([truth[pair] for pair in trials.asked[1]])
    assert point["cycle"] == 1
    assert point["teacher_calls"] == run.ledger.teacher_calls


def test_held_out_queries_of_a_suite_choose_where_there_are_some(trials: Trials) -> None:
    """In the supervised track `selection` means what it does everywhere; the teacher is not asked for the figure."""
    given = iter([0.3, 0.2])
    held_out = HeldOut(trials.data.texts[:9], lambda _: {"nDCG@5": next(given), "P@1": 0.0})
    run = trials.run(PLENTY, held_out=held_out)
    trials.fitted(run=run, cycles=4)
    assert [point["nDCG@5"] for point in run.log.curve] == [0.3, 0.2]
    assert len(trials.asked) == 2  # a shortlist each, and no development documents
    assert all(TEACHER_METRIC not in point for point in run.log.curve)


def test_a_teacher_that_accepts_nothing_is_one_line(trials: Trials) -> None:
    for answer in (NO, UNPARSED):
        trials.says = lambda *_, answer=answer: answer
        with pytest.raises(XMCBenchError, match="toy: the teacher accepted no label of 60 documents"):
            trials.fitted()
        trials.tab.clear()
        (trials.root / "checkpoint/cycles.json").unlink()


# What it costs ----------------------------------------------------------------------------------------------------


def test_every_part_is_charged(trials: Trials) -> None:
    """Shortlists once over documents and labels, a step three passes; development documents nothing but questions."""
    method, run = trials.fitted(cycles=1)
    tokenizer, ledger = method.encoder.tokenizer, run.ledger
    queries = tokenizer.tokens(trials.data.texts, 16).lengths.sum()
    labels = tokenizer.tokens(trials.data.label_texts, 8).lengths.sum()
    assert ledger.queries == len({d for d, label in trials.asked[0] if trials.data.targets[d, label]})
    assert ledger.steps == -(-ledger.queries // 20)
    assert ledger.epochs == 1
    steps = ledger.encoder_tokens - queries - labels  # the documents that have a label once, and pools of 20 labels
    assert 0 < steps < queries + 20 * ledger.steps * 8
    distinct = {pair for pairs in trials.asked for pair in pairs}
    assert ledger.teacher_calls == len(distinct)
    assert {"prepare", "mine", "train", "index"} <= ledger.stage_seconds.keys()


@pytest.mark.parametrize("limit", ["steps", "epochs", "encoder_tokens"])
def test_a_budget_ends_the_cycles_within_a_step(limit: str, trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cycles, "improving", property(lambda _: True))
    trials.says = yes_to_all
    budget = {"steps": 4, "epochs": 1.4, "encoder_tokens": 3000}
    _, run = trials.fitted({limit: budget[limit]}, cycles=9)
    assert run.ledger.fraction(run.budget) >= 1
    assert not run.ledger.over(run.budget)


def test_a_shorter_budget_is_a_shorter_schedule(trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    """The learning rate of each cycle rises and falls, in the last one within what is left."""
    factors: list[float] = []
    warmup = steps.warmup_linear

    def spy(fraction: float, share: float) -> float:
        factors.append(fraction)
        return warmup(fraction, share)

    monkeypatch.setattr(steps, "warmup_linear", spy)
    monkeypatch.setattr(Cycles, "improving", property(lambda _: True))
    trials.says = yes_to_all
    trials.fitted({"steps": 5}, cycles=9)  # an epoch is 3 steps
    assert factors == pytest.approx([1 / 6, 3 / 6, 5 / 6, 1 / 4, 3 / 4])


def test_a_teachers_budget_ends_the_questions_and_the_last_cycle_counts(trials: Trials) -> None:
    trials.says = yes_to_all
    method, run = trials.fitted({"teacher_calls": 40}, cycles=9)
    assert run.ledger.teacher_calls == 40
    assert run.ledger.queries == 40 / 5  # the documents that were asked about; their training is not cut
    (point,) = run.log.curve
    assert TEACHER_METRIC not in point
    assert not run.ledger.over(run.budget)
    assert method.num_parameters > 0


# Killed -----------------------------------------------------------------------------------------------------------


OWN = ("stage_seconds", "peak_bytes", "worker_bytes")  # what differs between two runs of the same


def outcome(method: LMTX, run: Run, data: TrainingData) -> Any:
    spent = {name: value for name, value in run.ledger.state().items() if name not in OWN}
    curve = [{name: value for name, value in point.items() if name != "device_seconds"} for point in run.log.curve]
    scores = method.predict(data.texts, 10).scores.tolist()
    return spent, curve, scores, {name: tensor.tolist() for name, tensor in weights(method).items()}


@pytest.mark.parametrize(
    ("kills", "settings"),
    [
        ([(1, 1)], {}),
        ([(1, 2), (2, 1)], {}),
        ([(2, 2), (2, 3)], {"start": "afresh", "accepted": "all", "negatives": "rejected"}),
    ],
)
def test_resumed_equals_unbroken(
    kills: list[tuple[int, int]], settings: dict[str, Any], trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume, "SECONDS", -1.0)
    monkeypatch.setattr(Cycles, "improving", property(lambda _: True))
    trials.says = lambda document, label: int((document + label) % 3 > 0)
    unbroken = outcome(*trials.fitted(**settings), trials.data)
    here = Trials(trials.root / "killed", trials.encoder, trials.says, trials.data)
    for cycle, step in kills:
        run = here.run(PLENTY, report=killer(cycle=cycle, step=step))
        with pytest.raises(Killed):
            here.fitted(run=run, **settings)
    assert outcome(*here.fitted(**settings), trials.data) == unbroken


@pytest.mark.parametrize("question", [7, 305, 400])
def test_a_run_killed_while_the_teacher_is_asked_pays_no_pair_twice(
    question: int, trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cycles, "improving", property(lambda _: True))
    says, questions = (lambda document, label: int((document + label) % 3 > 0)), []

    def dying(document: int, label: int) -> int:
        questions.append((document, label))
        if len(questions) == question:
            raise Killed
        return says(document, label)

    trials.says = says
    unbroken = outcome(*trials.fitted(), trials.data)
    here = Trials(trials.root / "killed", trials.encoder, dying, trials.data)
    with pytest.raises(Killed):
        here.fitted()
    here.says = says
    assert outcome(*here.fitted(), trials.data) == unbroken
    assert len(set(here.tab)) == len(here.tab)


def test_a_run_that_had_ended_asks_and_trains_no_more(trials: Trials) -> None:
    first = outcome(*trials.fitted(), trials.data)
    assert outcome(*trials.fitted(), trials.data) == first
    assert trials.asked == []


def test_answers_are_kept_as_they_were(trials: Trials) -> None:
    run = trials.run(PLENTY)
    cycles = Cycles(run)
    asked = [Answers(np.arange(n), np.arange(n) * 2, np.arange(n) % 2 == 0, np.arange(n) % 2 == 1) for n in (4, 6)]
    run.ledger.teacher_calls = 10
    for each in asked:
        cycles.add_answers(each)
    cycles.add_score(0.25)
    run = trials.run(PLENTY)
    again = Cycles(run)
    assert (again.scores, run.ledger.teacher_calls) == ([0.25], 10)
    for kept, each in zip(again.answers, asked, strict=True):
        assert all(np.array_equal(one, other) for one, other in zip(kept, each, strict=True))
    last, every = (again.pairs("yes", (9, 12), accumulated=flag).toarray() for flag in (False, True))
    assert np.flatnonzero(last.sum(1)).tolist() == [0, 2, 4]
    assert np.array_equal(every, last)


# The rest ---------------------------------------------------------------------------------------------------------


def test_unused_settings_are_told() -> None:
    assert LMTX.Config(teacher="annotated").unused() == {"rejected_per_query"}
    assert LMTX.Config(teacher="annotated", negatives="rejected").unused() == set()
    no_weights = LMTX.Config(teacher="annotated", negatives="rejected", weight_temperature=None)
    assert no_weights.unused() == {"bystanders"}


@pytest.mark.parametrize("wrong", [{"cycles": 0}, {"start": "again"}, {"teacher": {"name": "annotated", "recall": 2}}])
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        LMTX.Config(**({"teacher": "annotated"} | wrong))


def test_it_improves_on_its_initialisation(trials: Trials) -> None:
    """From random weights and a teacher that knows: the encoder learns what the teacher accepts."""
    labelled = sorted(set(range(QUERIES)) - set(UNLABELLED))
    texts, truth = [trials.data.texts[n] for n in labelled], trials.data.targets.toarray()[labelled]

    def quality(method: LMTX) -> float:
        top = method.predict(texts, 1).indices[:, 0]
        return float(np.mean(truth[np.arange(len(top)), top]))

    method, run = trials.fitted(
        shortlist=LABELS, epochs=16.0, cycles=1, hardest=40, learning_rate=5e-3, weight_temperature=None
    )
    before = trials.method()
    before.prepare(trials.data, trials.run(PLENTY))
    labels = before.labels
    before.index(labels)
    assert quality(before) < 0.3 < 0.5 < quality(method)
    assert run.log.curve[0][TEACHER_METRIC] > 0.4


def test_what_is_saved_predicts_the_same(trials: Trials) -> None:
    method, _ = trials.fitted(cycles=1)
    assert_saved_predicts_the_same(method, trials.method(), trials.data.texts, trials.root)
    assert method.encoder_alone_scores


def test_a_suite_of_the_zero_shot_track(bench: Bench, small_encoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the judge of the harness: what it says is what the simulated teacher knows, and the record tells."""
    monkeypatch.setenv("XMCBENCH_PLUGINS", "xmcbench,xmcbench-fakes")
    registry.cache_clear()
    good = {"name": "annotated", "recall": 0.8, "false_accepts": 0.05}
    methods = {"lmtx": {"method": "lmtx", "teacher": good, "cycles": 2, "shortlist": 8, "development": 20}}
    methods["ict"] = {"method": "ict"}
    settings = {"encoder": small_encoder, "batch_size": 16, "max_query_length": 24, "max_label_length": 24}
    suite = bench.suite(methods, datasets=["catalog-60"], track="zero-shot", settings=settings, budget={"epochs": 3})
    records = bench.run(suite, debug=True)
    lmtx, ict = records["lmtx"], records["ict"]
    assert (lmtx.status, ict.status) == (Status.OK, Status.OK)
    assert (lmtx.simulated_teacher, ict.simulated_teacher) == (True, False)
    assert "0.8" in lmtx.teacher
    assert lmtx.spent["teacher_calls"] >= 144 * 8
    assert [point["cycle"] for point in lmtx.curve] == list(range(1, len(lmtx.curve) + 1))
    assert lmtx.selection_split == "teacher: the best label of 20 training documents"
    again = bench.run(
        bench.suite(
            {"twin": {**methods["lmtx"], "margin": 0.31}},
            datasets=["catalog-60"],
            track="zero-shot",
            settings=settings,
            budget={"epochs": 3},
        ),
        debug=True,
    )["twin"]
    assert again.spent["teacher_cached"] >= 144 * 8  # the first shortlist is the same, and it is charged
    assert again.spent["teacher_calls"] >= 144 * 8
