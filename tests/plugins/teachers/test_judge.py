"""A judge: nothing is asked twice, nothing is lost, and what is spent is what was asked for, cached or not."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import make_run

from xmcbench.errors import XMCBenchError
from xmcbench.teachers import UNASKED, UNPARSED, Answers, Pairs, Teacher, TeacherError
from xmcbench.teachers.judges import Asking, Judges
from xmcbench.teachers.teacher import CUT, REFUSED
from xmcbench.trial.budget import Budget, Ledger
from xmcbench.trial.store import StoreError
from xmcbench_plugins.teachers.cached_judge import FIRST, CachedJudges
from xmcbench_plugins.teachers.charged_pairs import UNANSWERED, ChargedPairs, UnansweredPairs
from xmcbench_plugins.teachers.database import JudgementStore

from .desk import ANSWERED, DOCUMENTS, LABELS, Counting, Desk, ask_everything, counting, every_pair, told


def test_answers_are_the_teachers_in_the_order_of_the_questions(tmp_path: Path) -> None:
    desk, teacher = Desk(tmp_path), counting()
    documents, labels = every_pair()
    shuffle = np.random.default_rng(0).permutation(len(documents))
    found = desk.judge(teacher)(documents[shuffle], labels[shuffle])
    assert np.array_equal(found.answers, desk.expected(documents, labels)[shuffle])
    assert np.all(found.confidence == np.float32(0.75))
    assert found.asked.all()
    assert np.array_equal(found.yes, found.answers == 1)
    assert np.array_equal(found.no, found.answers == 0)
    assert len(teacher.asked) == len(documents) == desk.ledger.teacher_calls


def test_a_pair_is_asked_and_charged_once_however_often_it_is_put(tmp_path: Path) -> None:
    desk, teacher = Desk(tmp_path), counting()
    judge = desk.judge(teacher)
    judge(np.array([1, 1, 2, 1]), np.array([0, 0, 0, 3]))
    judge(np.array([2, 1, 5]), np.array([0, 3, 0]))
    assert Counter(teacher.asked).most_common(1)[0][1] == 1
    assert desk.ledger.teacher_calls == len(teacher.asked) == 4
    assert desk.ledger.teacher_cached == 0
    assert desk.ledger.teacher_prompt_tokens == sum(len(document) for document, _ in teacher.asked)
    assert desk.ledger.teacher_completion_tokens == sum(len(label) for _, label in teacher.asked)


def test_a_second_trial_asks_nobody_and_is_charged_the_same(tmp_path: Path) -> None:
    first, second = Desk(tmp_path, "first"), Desk(tmp_path, "second")
    teacher = counting()
    one = first.judge(teacher)(*every_pair(labels=ANSWERED))
    two = second.judge(counting(breath=0))(*every_pair(labels=ANSWERED))
    assert np.array_equal(one.answers, two.answers)
    assert np.array_equal(one.confidence, two.confidence)
    assert second.ledger.teacher_tokens == first.ledger.teacher_tokens > 0
    assert second.ledger.teacher_calls == second.ledger.teacher_cached == first.ledger.teacher_calls


def test_another_teacher_or_prompt_has_answers_of_its_own(tmp_path: Path) -> None:
    class Prompted(Counting):
        template = "{document} {label}"

    desk = Desk(tmp_path)
    desk.judge(counting())(*every_pair())
    for other in (counting(flavour="sour"), Prompted(counting().config)):
        Desk(tmp_path, "other").judge(other)(*every_pair(3, 3))
        assert len(other.asked) == 9


def test_equal_texts_are_one_text(tmp_path: Path) -> None:
    desk, teacher = Desk(tmp_path, documents=["red hat", "red hat"]), counting()
    found = desk.judge(teacher)(np.array([0, 1]), np.array([0, 0]))
    assert found.yes.all()
    assert desk.ledger.teacher_calls == 2  # two documents of the method
    again = counting(breath=0)
    Desk(tmp_path, "other", documents=["red hat"]).judge(again)(np.array([0]), np.array([0]))


def test_what_was_answered_before_a_teacher_fell_silent_is_kept(tmp_path: Path) -> None:
    documents, labels = every_pair()  # some replies hold no answer: a trial that was not failed remembers these too
    asked = Counter[tuple[str, str]]()
    for breath in (10, 25, 3, None):
        desk, teacher = Desk(tmp_path), counting(breath=breath)
        if breath is None:
            found = desk.judge(teacher)(documents, labels)
        else:
            with pytest.raises(ConnectionError):
                desk.judge(teacher)(documents, labels)
        asked.update(teacher.asked)
    assert np.array_equal(found.answers, desk.expected(documents, labels))
    assert asked == Counter({(document, label): 1 for document in DOCUMENTS for label in LABELS})


@pytest.mark.parametrize("cached", [False, True])
def test_a_limit_on_calls_is_kept_to_the_pair(tmp_path: Path, cached: bool) -> None:
    if cached:
        Desk(tmp_path, "before").judge(counting())(*every_pair())
    desk, teacher = Desk(tmp_path, budget=Budget(teacher_calls=20)), counting()
    judge = desk.judge(teacher)
    documents, labels = every_pair()
    found = judge(documents, labels)
    assert np.array_equal(found.asked, np.arange(len(documents)) < 20)
    assert np.all(found.answers[20:] == UNASKED)
    assert len(teacher.asked) == ((labels[:20] == ANSWERED).sum() if cached else 20)  # the store has no silence
    assert desk.ledger.fraction(desk.budget) == 1
    assert not desk.ledger.over(desk.budget)
    again = judge(documents[10:30], labels[10:30])  # what is paid for is still answered
    assert np.array_equal(again.asked, np.arange(20) < 10)
    assert desk.ledger.teacher_calls == 20


@pytest.mark.parametrize("cached", [False, True])
def test_a_limit_on_tokens_is_crossed_by_one_pair_at_most(tmp_path: Path, cached: bool) -> None:
    if cached:
        Desk(tmp_path, "before").judge(counting())(*every_pair())
    desk, teacher = Desk(tmp_path, budget=Budget(teacher_tokens=500)), counting()
    documents, labels = every_pair()
    found = desk.judge(teacher)(documents, labels)
    costs = np.array([len(DOCUMENTS[d]) + len(LABELS[label]) for d, label in zip(documents, labels, strict=True)])
    charged = int(np.searchsorted(np.cumsum(costs) - costs, 500))
    assert np.array_equal(found.asked, np.arange(len(documents)) < charged)
    assert desk.ledger.teacher_tokens == costs[:charged].sum() >= 500
    assert desk.ledger.fraction(desk.budget) >= 1
    assert not desk.ledger.over(desk.budget)
    assert charged <= len(teacher.asked) < charged + teacher.batch_size or cached


def test_a_resumed_trial_ends_as_an_unbroken_one(tmp_path: Path) -> None:
    """It was killed after its checkpoint: what it asked since lies in the store, and is charged anew."""
    budget = Budget(teacher_calls=60)
    documents, labels = every_pair()
    unbroken = Desk(tmp_path / "unbroken", budget=budget)
    judge = unbroken.judge(counting())
    expected = [judge(documents[part], labels[part]).answers for part in (slice(30), slice(20, 50), slice(10, 90))]

    killed = Desk(tmp_path / "killed", budget=budget)
    judge = killed.judge(counting())
    judge(documents[:30], labels[:30])
    checkpoint = killed.ledger.state()
    judge(documents[20:50], labels[20:50])
    resumed = Desk(tmp_path / "killed", budget=budget, ledger=Ledger(**checkpoint))
    teacher = counting()
    judge = resumed.judge(teacher)
    for part, answers in zip((slice(20, 50), slice(10, 90)), expected[1:], strict=True):
        assert np.array_equal(judge(documents[part], labels[part]).answers, answers)
    assert len(teacher.asked) == 10
    for name in ("teacher_calls", "teacher_prompt_tokens", "teacher_completion_tokens"):
        assert getattr(resumed.ledger, name) == getattr(unbroken.ledger, name)


CALLS = st.lists(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, len(LABELS) - 1)), max_size=30), min_size=1, max_size=5
)


@settings(max_examples=25)
@given(
    calls=CALLS,
    before=st.sets(st.tuples(st.integers(0, 9), st.integers(0, len(LABELS) - 1))),
    calls_limit=st.one_of(st.none(), st.integers(1, 40)),
    tokens_limit=st.one_of(st.none(), st.integers(1, 800)),
)
def test_what_is_in_the_store_changes_neither_answers_nor_charges(
    calls: list[list[tuple[int, int]]],
    before: set[tuple[int, int]],
    calls_limit: int | None,
    tokens_limit: int | None,
) -> None:
    """Equal to charging pair by pair, whatever another trial asked before."""
    budget = Budget(steps=1, teacher_calls=calls_limit, teacher_tokens=tokens_limit)
    paid: dict[tuple[int, int], int] = {}
    expected = []
    for call in calls:
        answers = []
        for d, label in call:
            room = len(paid) < (calls_limit or np.inf) and sum(paid.values()) < (tokens_limit or np.inf)
            if (d, label) not in paid and room:
                paid[d, label] = len(DOCUMENTS[d]) + len(LABELS[label])
            answers.append(told(DOCUMENTS[d], LABELS[label]) if (d, label) in paid else UNASKED)
        expected.append(answers)
    with TemporaryDirectory() as root:
        if before:
            ids = np.array(sorted(before))
            Desk(Path(root), "before").judge(counting())(ids[:, 0], ids[:, 1])
        desk, teacher = Desk(Path(root), budget=budget), counting(size=4)
        with desk.judge(teacher) as judge:
            for call, answers in zip(calls, expected, strict=True):
                ids = np.array(call, np.int64).reshape(-1, 2)
                assert judge(ids[:, 0], ids[:, 1]).answers.tolist() == answers
    assert desk.ledger.teacher_calls == len(paid)
    assert desk.ledger.teacher_tokens == sum(paid.values())
    # A reply without an answer is not kept, so that it is asked again.
    kept = {(d, label) for d, label in paid.keys() & before if told(DOCUMENTS[d], LABELS[label]) != UNPARSED}
    assert desk.ledger.teacher_cached == len(kept) or tokens_limit
    assert not desk.ledger.over(budget)
    assert len(teacher.asked) == len(set(teacher.asked))


def test_two_processes_share_the_work_and_ask_each_pair_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ends = [context.Pipe() for _ in range(2)]
    workers = [
        context.Process(target=ask_everything, args=(str(tmp_path), f"trial-{i}", end[1])) for i, end in enumerate(ends)
    ]
    for worker in workers:
        worker.start()
    told = [end[0].recv() for end in ends]
    for worker in workers:
        worker.join()
    assert told[0][1] == told[1][1] == Desk(tmp_path).expected(*every_pair(labels=ANSWERED)).tolist()
    assert [cached for *_, cached in told] == [len(told[1][0]), len(told[0][0])]
    asked = Counter(map(tuple, told[0][0] + told[1][0]))
    assert asked == Counter({(document, label): 1 for document in DOCUMENTS for label in LABELS[:ANSWERED]})


def test_ids_that_are_none_are_refused(tmp_path: Path) -> None:
    judge = Desk(tmp_path).judge(counting())
    with pytest.raises(XMCBenchError, match=r"document 99 of a pair to judge is out of range, expected one of 0\.\.29"):
        judge(np.array([0, 99]), np.array([0, 0]))
    with pytest.raises(XMCBenchError, match="label -1"):
        judge(np.array([0]), np.array([-1]))
    with pytest.raises(XMCBenchError, match="shapes"):
        judge(np.array([0]), np.array([0, 1]))
    assert len(judge(np.array([], np.int64), np.array([], np.int64)).answers) == 0


@pytest.mark.parametrize("wrong", ["answer", "place", "silence"])
def test_a_teacher_that_breaks_the_contract_leaves_nothing_wrong_behind(tmp_path: Path, wrong: str) -> None:
    class Wrong(Counting):
        def ask(self, pairs):  # type: ignore[no-untyped-def]
            if wrong == "silence":
                return
            place, answer = (0, 7) if wrong == "answer" else (len(pairs), 1)
            nothing = np.zeros(1, np.int64)
            yield Answers(np.array([place]), np.array([answer], np.int8), np.ones(1, np.float32), nothing, nothing)

    with pytest.raises(TeacherError, match="teacher counting"):
        Desk(tmp_path).judge(Wrong(counting().config))(*every_pair(2, 2))
    honest = counting()
    Desk(tmp_path, "other").judge(honest)(*every_pair(2, 2))
    assert len(honest.asked) == 4


def test_a_damaged_list_of_charged_pairs_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "charged"
    ChargedPairs(path, 0).add(np.array([5, 3, 9]))
    assert ChargedPairs(path, 3).contains(np.array([3, 4])).tolist() == [True, False]
    content = bytearray(path.read_bytes())
    content[16] ^= 1
    path.write_bytes(content)
    with pytest.raises(XMCBenchError, match="charged: found 2 intact pairs, expected 3: delete"):
        ChargedPairs(path, 3)


def test_a_reply_without_an_answer_is_of_the_trial_that_asked(tmp_path: Path) -> None:
    """A killed trial does not ask again, another does, and each pays once."""
    pairs = every_pair(4)
    first = Desk(tmp_path)
    teacher = counting()
    found = first.judge(teacher)(*pairs)
    assert first.ledger.teacher_unparsed == (found.answers == UNPARSED).sum() == 4
    assert len(list(JudgementStore(tmp_path / "results").rows())) == 4 * ANSWERED

    resumed, silent = Desk(tmp_path), counting(breath=0)  # its ledger was not written before the kill
    assert np.array_equal(resumed.judge(silent)(*pairs).answers, found.answers)
    assert not silent.asked
    for name in ("calls", "unparsed", "prompt_tokens", "completion_tokens"):
        assert getattr(resumed.ledger, f"teacher_{name}") == getattr(first.ledger, f"teacher_{name}"), name

    other, again = Desk(tmp_path, "other"), counting()
    other.judge(again)(*pairs)
    assert [label for _, label in again.asked] == ["unclear"] * 4
    assert (other.ledger.teacher_calls, other.ledger.teacher_cached) == (32, 28)


@pytest.mark.parametrize("cut", [0, 1, 39])
def test_of_a_list_of_silences_the_whole_rows_count(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "unanswered.bin"
    kinds, spent = np.array([UNPARSED, CUT, REFUSED]), np.arange(6).reshape(2, 3)
    UnansweredPairs(path).add(np.array([7, -5, 3]), kinds, spent)
    path.write_bytes(path.read_bytes()[: 3 * 40 - cut])
    rest = UnansweredPairs(path)
    places, rows = rest.look_up(np.array([1, 3, -5, 7]))
    assert places.tolist() == [*([1] if not cut else []), 2, 3]
    assert rows["kind"].tolist() == [*([REFUSED] if not cut else []), CUT, UNPARSED]
    assert rows["completion_tokens"].tolist() == [*([5] if not cut else []), 4, 3]
    rest.add(np.array([1]), np.array([CUT]), np.zeros((2, 1)))
    assert UnansweredPairs(path).look_up(np.array([1, 7]))[0].tolist() == [0, 1]


class Silent(Counting):
    """Has nothing to say after its first `breath` replies."""

    def ask(self, pairs: Pairs) -> Iterator[Answers]:
        for batch in super().ask(pairs):
            silent = len(self.asked) > (self.silent_after or 0)
            kinds = np.full(len(batch.places), CUT if silent else 1, np.int8)
            yield replace(batch, answers=kinds)

    silent_after: int | None = None
    without_answer = "a reply: 'hm'; raise the limit"


def test_a_first_batch_without_an_answer_is_the_last(tmp_path: Path) -> None:
    teacher = Silent(Counting.Config(name="counting", size=100))
    silent = r"none of 32 replies holds an answer \(32 cut\); a reply: 'hm'; raise the limit"
    expected = rf"^teacher counting: {silent}; asked so far: 684 tokens$"
    with pytest.raises(TeacherError, match=expected):
        Desk(tmp_path).judge(teacher)(*every_pair())
    assert len(teacher.asked) == FIRST
    assert list(JudgementStore(tmp_path / "results").rows()) == []


def test_a_teacher_that_answers_no_more_is_stopped_after_a_batch(tmp_path: Path) -> None:
    teacher = Silent(Counting.Config(name="counting", size=50))
    teacher.silent_after = FIRST + 1
    with pytest.raises(TeacherError, match="none of 50 replies holds an answer"):
        Desk(tmp_path).judge(teacher)(*every_pair())
    assert len(teacher.asked) <= FIRST + 100
    kept = len(list(JudgementStore(tmp_path / "results").rows()))
    assert 0 < kept <= FIRST + 1


@pytest.mark.parametrize("problem", [TeacherError("down"), KeyboardInterrupt(), StoreError("full"), None])
def test_after_a_failure_the_next_attempt_asks_again(tmp_path: Path, problem: BaseException | None) -> None:
    """An interrupted one, or one whose disk was full, goes on where it was."""
    run = make_run(tmp_path, {"epochs": 1})
    run.checkpoint.mkdir(parents=True)
    (run.checkpoint / UNANSWERED).write_bytes(b"")
    asking = Asking(run, tmp_path, None, [], np.zeros(0, np.int64), [])  # type: ignore[arg-type]
    judges = Judges(asking, [], {CachedJudges.name: CachedJudges(asking)})
    with suppress(TeacherError, KeyboardInterrupt, StoreError), judges:
        if problem:
            raise problem
    assert (run.checkpoint / UNANSWERED).exists() == (not isinstance(problem, TeacherError))


WRITE = "{document}: which labels?"


def written(document: int) -> str:
    return "\n".join(DOCUMENTS[document].split())


def test_what_a_teacher_writes_is_kept_and_charged_once(tmp_path: Path) -> None:
    desk, teacher = Desk(tmp_path), counting()
    judge = desk.judge(teacher)
    ids = np.array([3, 1, 3, 2])
    assert judge.write(ids, WRITE, 9) == [written(i) for i in (3, 1, 3, 2)]
    assert judge.write(np.array([2, 5]), WRITE, 9) == [written(2), written(5)]
    assert Counter(teacher.wrote) == Counter(DOCUMENTS[i] for i in (1, 2, 3, 5))
    assert (desk.ledger.teacher_calls, desk.ledger.teacher_cached) == (4, 0)
    assert desk.ledger.teacher_prompt_tokens == 4 * len(WRITE)
    assert desk.ledger.teacher_completion_tokens == sum(len(written(i)) for i in (1, 2, 3, 5))

    second, silent = Desk(tmp_path, "second"), counting(breath=0)
    assert second.judge(silent).write(np.array([5, 3, 1, 2]), WRITE, 9) == [written(i) for i in (5, 3, 1, 2)]
    assert (second.ledger.teacher_calls, second.ledger.teacher_cached) == (4, 4)
    assert second.ledger.teacher_tokens == desk.ledger.teacher_tokens


def test_another_prompt_or_length_is_another_question_and_none_is_a_judgement(tmp_path: Path) -> None:
    desk, teacher = Desk(tmp_path), counting()
    judge = desk.judge(teacher)
    ids = np.arange(4)
    judge.write(ids, WRITE, 9)
    assert judge.write(ids, "again " + WRITE, 9) == [written(i) for i in range(4)]
    assert judge.write(ids, WRITE, 1) == [written(i).split()[0] for i in range(4)]
    judge(*every_pair(4, 3))
    assert desk.ledger.teacher_calls == 12 + 12
    assert len(teacher.asked) == 12
    assert len(teacher.wrote) == 12


@pytest.mark.parametrize("limit", [{"teacher_calls": 3}, {"teacher_tokens": 3 * (len(WRITE) + len(written(0)))}])
def test_a_spent_budget_writes_no_further(limit: dict[str, int], tmp_path: Path) -> None:
    desk = Desk(tmp_path, budget=Budget(**limit), documents=[DOCUMENTS[0]] * 5)
    found = desk.judge(counting()).write(np.arange(5), WRITE, 9)
    assert found == [written(0)] * 3 + [None] * 2
    assert desk.ledger.teacher_calls == 3


def test_what_was_written_before_a_teacher_fell_silent_is_kept(tmp_path: Path) -> None:
    first = counting(breath=4)
    with pytest.raises(ConnectionError):
        Desk(tmp_path).judge(first).write(np.arange(10), WRITE, 9)
    resumed, teacher = Desk(tmp_path), counting()
    assert resumed.judge(teacher).write(np.arange(10), WRITE, 9) == [written(i) for i in range(10)]
    assert Counter(first.wrote + teacher.wrote) == Counter(DOCUMENTS[:10])
    assert (resumed.ledger.teacher_calls, resumed.ledger.teacher_cached) == (10, 4)


def test_a_teacher_that_writes_nothing_says_so_in_one_line(tmp_path: Path) -> None:
    class Silent(Counting):
        write = Teacher.write

    with pytest.raises(TeacherError, match=r"^teacher counting: it writes nothing$"):
        Desk(tmp_path).judge(Silent(counting().config)).write(np.arange(2), WRITE, 9)
