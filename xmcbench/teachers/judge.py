"""Asks a teacher on behalf of a trial: looks answers up, has the missing ones given and kept, and charges all.

Legend: N pairs as they are put, B pairs of a block, each once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from types import TracebackType

import numpy as np
from filelock import FileLock

from xmcbench.data.dataset import Texts
from xmcbench.errors import XMCBenchError
from xmcbench.teachers.database import LOCKS, Found, JudgementStore
from xmcbench.teachers.hosted import Hosted
from xmcbench.teachers.tab import Tab
from xmcbench.teachers.teacher import NO, UNASKED, UNPARSED, YES, Answers, Pairs, Teacher, TeacherError
from xmcbench.trial.budget import Budget, Ledger
from xmcbench.trial.run import Progress

BLOCK = 8192  # pairs looked up and charged at a time


@dataclass(frozen=True)
class Judgements:
    """What a teacher said of N pairs."""

    answers: np.ndarray  # int8 [N]: YES, NO, UNPARSED, or UNASKED where the budget was spent first
    confidence: np.ndarray  # float32 [N] in 0..1, how sure it was of its answer

    @property
    def yes(self) -> np.ndarray:
        """bool [N]"""
        return np.asarray(self.answers == YES)

    @property
    def no(self) -> np.ndarray:
        """bool [N]"""
        return np.asarray(self.answers == NO)

    @property
    def asked(self) -> np.ndarray:
        """bool [N]: answered, if only with what is neither yes nor no."""
        return np.asarray(self.answers != UNASKED)


@dataclass(frozen=True)
class Account:
    """Who pays: a trial's ledger within its budget, and the tab of what it has paid for."""

    ledger: Ledger
    budget: Budget
    open_tab: Callable[[], Tab]  # once the ledger is what the trial goes on with
    report: Callable[[Progress], None] = lambda _: None

    def room(self) -> int | None:
        """How many more pairs may be charged; None: any number."""
        limit = self.budget.teacher_calls
        return None if limit is None else max(0, limit - self.ledger.teacher_calls)

    def affords(self, tokens: int) -> bool:
        """Whether a pair may be charged after others of so many tokens."""
        limit = self.budget.teacher_tokens
        return limit is None or self.ledger.teacher_tokens + tokens < limit

    def affordable(self, tokens: np.ndarray) -> int:
        """How many of the next pairs, of so many tokens each, are charged: the last may cross the limit."""
        limit = self.budget.teacher_tokens
        if limit is None:
            return len(tokens)
        before = self.ledger.teacher_tokens + np.cumsum(tokens) - tokens
        return int(np.searchsorted(before, limit))

    def charge(self, found: Found, places: np.ndarray, cached: int) -> None:
        """Enter the pairs at `places` of a block, of which `cached` were answered before."""
        ledger, costs = self.ledger, found.prompt_tokens[places] + found.completion_tokens[places]
        ledger.teacher_calls += len(places)
        ledger.teacher_cached += cached
        ledger.teacher_prompt_tokens += int(found.prompt_tokens[places].sum())
        ledger.teacher_completion_tokens += int(found.completion_tokens[places].sum())
        if self.budget.teacher_tokens is not None:  # by one pair at most is it overrun
            largest = max(ledger.largest_step.get("teacher_tokens", 0), int(costs.max(initial=0)))
            ledger.largest_step["teacher_tokens"] = largest


class Judge:
    """One teacher, asked about the documents and labels of a trial.

    `documents` are the training texts that the method sees, `rows` their rows in the dataset's training split.
    """

    def __init__(
        self,
        teacher: Teacher | Hosted,
        number: int,
        store: JudgementStore,
        documents: Texts,
        rows: np.ndarray,
        labels: Texts,
        account: Account,
    ) -> None:
        self._teacher, self._store, self._account = teacher, store, account
        self._documents, self._rows, self._labels = documents, rows, labels
        identity = teacher.identity()
        self._id = store.teacher(teacher.title, identity, teacher.template)
        name = sha256(repr((sorted(identity.items()), teacher.template)).encode()).hexdigest()[:16]
        self._lock = FileLock(store.path.parent / LOCKS / f"teacher-{name}")
        self._first_key = number * len(documents) * len(labels)  # of this teacher among those of the trial
        self._document_texts = np.zeros(len(documents), np.int64)  # numbers in the store; 0: not looked up yet
        self._label_texts = np.zeros(len(labels), np.int64)

    def __call__(self, document_ids: np.ndarray, label_ids: np.ndarray) -> Judgements:
        """Judge pairs of training documents and labels; N of each, in the order in which a budget is to be spent.

        Whatever was asked before comes from the store, and is charged like the rest; a pair that this trial put
        before, or that is here twice, is charged once. Raises TeacherError where the teacher does not answer.
        """
        documents, labels = self._checked(document_ids, label_ids)
        _, first, inverse = np.unique(documents * len(self._labels) + labels, return_index=True, return_inverse=True)
        order = np.argsort(first)
        places = first[order]  # of each pair's first appearance
        answers, confidence = np.full(len(places), UNASKED, np.int8), np.zeros(len(places), np.float32)
        with self._account.ledger.stage("judge"):
            for start in range(0, len(places), BLOCK):
                part = slice(start, start + BLOCK)
                tell = partial(self._tell, start, len(places))
                answers[part], confidence[part] = self._block(documents[places[part]], labels[places[part]], tell)
        back = np.argsort(order)[inverse]
        return Judgements(answers[back], confidence[back])

    def close(self) -> None:
        """Let go of the teacher and the store."""
        self._teacher.close()
        self._store.close()

    def __enter__(self) -> Judge:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _checked(self, document_ids: np.ndarray, label_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        documents, labels = np.asarray(document_ids, np.int64), np.asarray(label_ids, np.int64)
        if documents.ndim != 1 or documents.shape != labels.shape:
            raise XMCBenchError(f"pairs to judge are of shapes {documents.shape} and {labels.shape}, expected [N] both")
        for what, ids, size in (("document", documents, len(self._documents)), ("label", labels, len(self._labels))):
            if len(ids) and not 0 <= ids.min() <= ids.max() < size:
                wrong = ids[(ids < 0) | (ids >= size)][0]
                raise XMCBenchError(f"{what} {wrong} is to be judged, expected one of 0..{size - 1}")
        return documents, labels

    def _tell(self, start: int, total: int, done: int) -> None:
        self._account.report(Progress("judge", (start + done) / total))

    def _block(
        self, documents: np.ndarray, labels: np.ndarray, tell: Callable[[int], None]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Answers and confidence of pairs that are there once; `tell` is told how many are behind."""
        account, tab = self._account, self._account.open_tab()
        keys = self._first_key + documents * len(self._labels) + labels
        texts = self._numbers(documents, labels)
        found = self._store.look_up(self._id, *texts)
        fresh = np.zeros(len(keys), bool)  # answered for this trial, just now
        paid = tab.holds(keys)
        due = np.flatnonzero(~paid)[: account.room()]
        wanted = paid.copy()
        wanted[due] = True
        for places in self._portions(np.flatnonzero(wanted & ~found.known)):
            tell(int(places[0]))
            if not account.affords(int(_tokens(found, due[due < places[0]]).sum())):
                break
            fresh[self._ask(places, documents, labels, texts, found)] = True
        due = due[: int(np.argmin(np.append(found.known[due], False)))]
        charged = due[: account.affordable(_tokens(found, due))]
        tab.add(keys[charged])
        account.charge(found, charged, int((~fresh[charged]).sum()))
        told = paid & found.known
        told[charged] = True
        return np.where(told, found.answers, np.int8(UNASKED)), np.where(told, found.confidence, np.float32(0))

    def _numbers(self, documents: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The numbers that the store knows the texts of the pairs by."""
        for ids, known, texts in (
            (documents, self._document_texts, self._documents),
            (labels, self._label_texts, self._labels),
        ):
            unknown = np.unique(ids[known[ids] == 0])
            known[unknown] = self._store.texts([texts[int(i)] for i in unknown])
        return self._document_texts[documents], self._label_texts[labels]

    def _portions(self, places: np.ndarray) -> Iterator[np.ndarray]:
        size = self._teacher.at_once
        return (places[start : start + size] for start in range(0, len(places), size))

    def _ask(
        self,
        places: np.ndarray,
        documents: np.ndarray,
        labels: np.ndarray,
        texts: tuple[np.ndarray, np.ndarray],
        found: Found,
    ) -> np.ndarray:
        """Have the pairs at `places` of a block answered and kept; returns the places of those that nobody else had."""
        with self._lock:  # one process asks a teacher at a time: the others find its answers
            again = self._store.look_up(self._id, texts[0][places], texts[1][places])
            found.put(places[again.known], again.at(again.known))
            left: np.ndarray = places[~again.known]
            if not len(left):
                return left
            pairs = Pairs(
                documents=[self._documents[int(i)] for i in documents[left]],
                labels=[self._labels[int(i)] for i in labels[left]],
                document_ids=self._rows[documents[left]],
                label_ids=labels[left],
            )
            for answers in self._teacher.ask(pairs):
                self._check(answers, pairs)
                told = left[answers.places]
                self._store.keep(self._id, texts[0][told], texts[1][told], answers)
                found.put(told, answers)
        if not found.known[left].all():
            raise TeacherError(
                f"teacher {self._teacher.title}: answered {int(found.known[left].sum())} of {len(left)} pairs"
            )
        return left

    def _check(self, answers: Answers, pairs: Pairs) -> None:
        """What a teacher must keep to, or what is stored would be wrong for good."""
        sizes = {len(column) for column in vars(answers).values()}
        fits = len(sizes) == 1 and np.isin(answers.places, np.arange(len(pairs))).all()
        sound = np.isin(answers.answers, (YES, NO, UNPARSED)).all() and np.isfinite(answers.confidence).all()
        if not (fits and sound):
            raise TeacherError(f"teacher {self._teacher.title}: handed over answers that do not fit what it was asked")


def _tokens(found: Found, places: np.ndarray) -> np.ndarray:
    costs: np.ndarray = found.prompt_tokens[places] + found.completion_tokens[places]
    return costs
