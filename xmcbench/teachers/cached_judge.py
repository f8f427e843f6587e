"""The judge of a trial: looks answers up in the store, asks the teacher for the missing ones, charges all of them.

The trial pays within the limits of its budget, once for each pair. Legend: N pairs as the method asks for them, B
distinct pairs of a block.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from filelock import FileLock

from xmcbench.data.dataset import Texts
from xmcbench.errors import XMCBenchError
from xmcbench.files.network import allow_network
from xmcbench.plugins.registry import registry
from xmcbench.teachers.database import LOCKS, JudgementStore, StoredAnswers
from xmcbench.teachers.subprocess_teacher import AnnotatedDataset, SubprocessTeacher
from xmcbench.teachers.teacher import Answers, Pairs, Replies, Teacher, TeacherError
from xmcbench.trial.budget import Budget, Ledger
from xmcbench.trial.run import NO, UNASKED, UNPARSED, YES, Judge, Judgements, Progress, Run, TeacherSettings
from xmcbench.trial.splitmix64 import mix, splitmix64

KEY = np.dtype([("pair", "<i8"), ("checksum", "<i8")])  # in the file


class ChargedPairs:
    """The keys of the pairs that a trial was charged for, in a file beside its checkpoints, oldest first.

    A resumed trial passes as `count` the number of calls in its restored ledger. Later keys in the file are dropped:
    their pairs are charged again when the resumed trial asks for them, so that it spends what an unbroken run spends.
    Several workers of a trial write the same bytes to the same place.
    """

    def __init__(self, path: Path, count: int) -> None:
        self.path, self.count = path, count
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        keys = np.fromfile(path, KEY, count)
        pairs = keys["pair"].astype(np.int64)
        intact = int((keys["checksum"] == splitmix64(pairs + 1)).sum())
        if intact < count:
            raise XMCBenchError(
                f"{path}: found {intact} intact pairs, expected {count}: delete {path.parent} to start the trial over"
            )
        self._sorted = np.sort(pairs)

    def contains(self, keys: np.ndarray) -> np.ndarray:
        """bool [N]: which of the pairs are paid for."""
        if not len(self._sorted):
            return np.zeros(len(keys), bool)
        nearest = np.searchsorted(self._sorted, keys).clip(max=len(self._sorted) - 1)
        return np.asarray(self._sorted[nearest] == keys)

    def add(self, keys: np.ndarray) -> None:
        """Append the keys of pairs that are not in the file yet. They are on disk when this returns."""
        if not len(keys):
            return
        entries = np.zeros(len(keys), KEY)
        entries["pair"], entries["checksum"] = keys, splitmix64(keys.astype(np.int64) + 1)
        with self.path.open("r+b") as file:
            file.seek(self.count * KEY.itemsize)
            file.write(entries.tobytes())
            file.flush()
            os.fsync(file.fileno())
        self.count += len(keys)
        new = np.sort(keys)
        self._sorted = np.insert(self._sorted, np.searchsorted(self._sorted, new), new)


@dataclass(frozen=True)
class Account:
    """Charges pairs to a trial's ledger, within its budget."""

    ledger: Ledger
    budget: Budget
    charged_pairs: Callable[[], ChargedPairs]  # called once the ledger of a resumed trial is restored
    report: Callable[[Progress], None] = lambda _: None

    def calls_left(self) -> int | None:
        """The number of further pairs that the budget allows; None: unlimited."""
        limit = self.budget.teacher_calls
        return None if limit is None else max(0, limit - self.ledger.teacher_calls)

    def affords(self, tokens: int) -> bool:
        """Whether the budget allows another pair after pairs that cost `tokens` tokens."""
        limit = self.budget.teacher_tokens
        return limit is None or self.ledger.teacher_tokens + tokens < limit

    def affordable(self, tokens: np.ndarray) -> int:
        """The number of the next pairs that the budget allows, given their `tokens` [N]; the last may cross it."""
        limit = self.budget.teacher_tokens
        if limit is None:
            return len(tokens)
        before = self.ledger.teacher_tokens + np.cumsum(tokens) - tokens
        return int(np.searchsorted(before, limit))

    def charge(self, stored: StoredAnswers, places: np.ndarray, cached: int) -> None:
        """Charge the pairs at `places` of a block; the answers to `cached` of them were in the store."""
        ledger, costs = self.ledger, stored.tokens(places)
        ledger.teacher_calls += len(places)
        ledger.teacher_cached += cached
        ledger.teacher_prompt_tokens += int(stored.prompt_tokens[places].sum())
        ledger.teacher_completion_tokens += int(stored.completion_tokens[places].sum())
        if self.budget.teacher_tokens is not None:  # a trial may exceed this limit by at most one pair
            largest = max(ledger.largest_step.get("teacher_tokens", 0), int(costs.max(initial=0)))
            ledger.largest_step["teacher_tokens"] = largest


BLOCK = 8192  # pairs looked up and charged at a time


class CachedJudge:
    """A `Judge` whose answers are cached in the store.

    `documents` are the training texts that the method sees, and `rows` their rows in the dataset's training split.
    `number` tells the judges of one trial apart.
    """

    def __init__(
        self,
        teacher: Teacher | SubprocessTeacher,
        number: int,
        store: JudgementStore,
        documents: Texts,
        rows: np.ndarray,
        labels: Texts,
        account: Account,
    ) -> None:
        self._teacher, self._store, self._account = teacher, store, account
        self._documents, self._rows, self._labels = documents, rows, labels
        self._identity = teacher.identity()
        self._id = store.teacher(teacher.title, self._identity, teacher.template)
        name = sha256(repr((sorted(self._identity.items()), teacher.template)).encode()).hexdigest()[:16]
        self._lock = FileLock(store.path.parent / LOCKS / f"teacher-{name}")
        self._number, self._first_key = number, number * len(documents) * len(labels)
        self._document_texts = np.zeros(len(documents), np.int64)  # ids in the store; 0: not looked up yet
        self._label_texts = np.zeros(len(labels), np.int64)

    def __call__(self, document_ids: np.ndarray, label_ids: np.ndarray) -> Judgements:
        """See `Judge`."""
        documents, labels = np.asarray(document_ids, np.int64), np.asarray(label_ids, np.int64)
        self._check_ids(documents, labels)
        _, first, inverse = np.unique(documents * len(self._labels) + labels, return_index=True, return_inverse=True)
        order = np.argsort(first)
        places = first[order]  # where each distinct pair comes first
        answers, confidence = np.full(len(places), UNASKED, np.int8), np.zeros(len(places), np.float32)
        with self._account.ledger.stage("judge"):
            for start in range(0, len(places), BLOCK):
                block = slice(start, start + BLOCK)
                report = partial(self._report, start, len(places))
                answers[block], confidence[block] = self._block(documents[places[block]], labels[places[block]], report)
        back = np.argsort(order)[inverse]
        return Judgements(answers[back], confidence[back])

    def write(self, document_ids: np.ndarray, prompt: str, tokens: int) -> list[str | None]:
        """See `Judge`."""
        documents = np.asarray(document_ids, np.int64)
        self._check_ids(documents, np.zeros_like(documents))
        distinct = np.array(list(dict.fromkeys(documents.tolist())), np.int64)
        replies: dict[int, str | None] = {}
        with self._account.ledger.stage("judge"):
            for start in range(0, len(distinct), BLOCK):
                block = distinct[start : start + BLOCK]
                report = partial(self._report, start, len(distinct))
                replies |= zip(block.tolist(), self._written(block, prompt, tokens, report), strict=True)
        return [replies[document] for document in documents.tolist()]

    def close(self) -> None:
        self._teacher.close()
        self._store.close()

    def __enter__(self) -> CachedJudge:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _check_ids(self, documents: np.ndarray, labels: np.ndarray) -> None:
        """Raise XMCBenchError unless both are ids of shape [N] within range."""
        if documents.ndim != 1 or documents.shape != labels.shape:
            raise XMCBenchError(f"pairs to judge have shapes {documents.shape} and {labels.shape}, expected [N] both")
        for kind, ids, size in (("document", documents, len(self._documents)), ("label", labels, len(self._labels))):
            if len(ids) and not 0 <= ids.min() <= ids.max() < size:
                wrong = ids[(ids < 0) | (ids >= size)][0]
                raise XMCBenchError(f"{kind} {wrong} of a pair to judge is out of range, expected one of 0..{size - 1}")

    def _report(self, start: int, total: int, done: int) -> None:
        self._account.report(Progress("judge", (start + done) / total))

    def _block(
        self, documents: np.ndarray, labels: np.ndarray, report: Callable[[int], None]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Answers and confidence of B distinct pairs. `report` receives the number of pairs that are done."""
        texts = self._text_ids(documents, self._document_texts, self._documents)
        labels_texts = self._text_ids(labels, self._label_texts, self._labels)

        def ask(places: np.ndarray) -> Iterator[tuple[np.ndarray, Any]]:
            pairs = Pairs(
                documents=[self._documents[int(i)] for i in documents[places]],
                labels=[self._labels[int(i)] for i in labels[places]],
                document_ids=self._rows[documents[places]],
                label_ids=labels[places],
            )
            for answers in self._teacher.ask(pairs):
                self._check(answers, len(pairs))
                answered = places[answers.places]
                self._store.add(self._id, texts[answered], labels_texts[answered], answers)
                yield answered, answers

        stored, answered = self._settle(
            self._first_key + documents * len(self._labels) + labels,
            lambda places: self._store.look_up(self._id, texts[places], labels_texts[places]),
            ask,
            report,
        )
        return np.where(answered, stored.answers, np.int8(UNASKED)), np.where(
            answered, stored.confidence, np.float32(0)
        )

    def _written(
        self, documents: np.ndarray, prompt: str, tokens: int, report: Callable[[int], None]
    ) -> list[str | None]:
        """What the teacher writes about B distinct documents. It is stored as a label that it accepts."""
        teacher = self._store.teacher(self._teacher.title, {**self._identity, "written tokens": tokens}, prompt)
        texts = self._text_ids(documents, self._document_texts, self._documents)
        written = np.zeros(len(documents), np.int64)  # text ids of the replies

        def look_up(places: np.ndarray) -> StoredAnswers:
            written[places], stored = self._store.replies(teacher, texts[places])
            return stored

        def ask(places: np.ndarray) -> Iterator[tuple[np.ndarray, Any]]:
            asked = [self._documents[int(i)] for i in documents[places]]
            for replies in self._teacher.write(asked, prompt, tokens):
                answers = _accepted(replies)
                self._check(answers, len(asked))
                answered = places[replies.places]
                written[answered] = self._store.texts(replies.texts)
                self._store.add(teacher, texts[answered], written[answered], answers)
                yield answered, answers

        start = sha256(repr((self._number, prompt, tokens)).encode()).digest()[:8]
        keys = mix(documents + np.int64(int.from_bytes(start, "little", signed=True)))
        keys |= np.int64(-(2**63))  # those of pairs are not negative
        _, answered = self._settle(keys, look_up, ask, report)
        contents = iter(self._store.contents(written[answered]))
        return [next(contents) if known else None for known in answered]

    def _settle(
        self,
        keys: np.ndarray,
        look_up: Callable[[np.ndarray], StoredAnswers],
        ask: Callable[[np.ndarray], Iterator[tuple[np.ndarray, Any]]],
        report: Callable[[int], None],
    ) -> tuple[StoredAnswers, np.ndarray]:
        """Answer B distinct questions, which the trial pays for under `keys`, within its budget; bool [B] which.

        `look_up(places)` reads what the store knows; `ask(places)` asks the teacher, stores and yields its answers.
        """
        account, charged_pairs = self._account, self._account.charged_pairs()
        stored = look_up(np.arange(len(keys)))
        fresh = np.zeros(len(keys), bool)  # answered just now, for this trial
        paid = charged_pairs.contains(keys)
        due = np.flatnonzero(~paid)[: account.calls_left()]
        wanted = paid.copy()
        wanted[due] = True
        missing, size = np.flatnonzero(wanted & ~stored.known), self._teacher.batch_size
        for places in (missing[start : start + size] for start in range(0, len(missing), size)):
            report(int(places[0]))
            if not account.affords(int(stored.tokens(due[due < places[0]]).sum())):
                break
            fresh[self._ask(places, look_up, ask, stored)] = True
        due = due[: int(np.argmin(np.append(stored.known[due], False)))]
        charged = due[: account.affordable(stored.tokens(due))]
        charged_pairs.add(keys[charged])
        account.charge(stored, charged, int((~fresh[charged]).sum()))
        answered = paid & stored.known
        answered[charged] = True
        return stored, answered

    def _text_ids(self, ids: np.ndarray, known: np.ndarray, texts: Texts) -> np.ndarray:
        """The store's ids [B] of the texts with these `ids`; `known` keeps those that were looked up."""
        unknown = np.unique(ids[known[ids] == 0])
        known[unknown] = self._store.texts([texts[int(i)] for i in unknown])
        return np.asarray(known[ids])

    def _ask(
        self,
        places: np.ndarray,
        look_up: Callable[[np.ndarray], StoredAnswers],
        ask: Callable[[np.ndarray], Iterator[tuple[np.ndarray, Any]]],
        stored: StoredAnswers,
    ) -> np.ndarray:
        """Ask the teacher the questions at `places` of a block and store its answers.

        Returns the places that no other process had asked about in the meantime.
        """
        # One process asks a teacher at a time; the others find its answers in the store.
        with self._lock, allow_network():
            again = look_up(places)
            stored.insert(places[again.known], again.take(again.known))
            missing: np.ndarray = places[~again.known]
            if not len(missing):
                return missing
            for answered, answers in ask(missing):
                stored.insert(answered, answers)
        if not stored.known[missing].all():
            count = int(stored.known[missing].sum())
            raise TeacherError(f"teacher {self._teacher.title}: answered {count} of {len(missing)} questions")
        return missing

    def _check(self, answers: Answers, count: int) -> None:
        """Raise TeacherError for answers to `count` questions that must not be stored."""
        sizes = {len(column) for column in vars(answers).values()}
        fits = len(sizes) == 1 and np.isin(answers.places, np.arange(count)).all()
        sound = np.isin(answers.answers, (YES, NO, UNPARSED)).all() and np.isfinite(answers.confidence).all()
        if not (fits and sound):
            raise TeacherError(f"teacher {self._teacher.title}: its answers do not fit what it was asked about")


def _accepted(replies: Replies) -> Answers:
    """Replies as the store keeps them: as labels that the teacher accepts."""
    count = len(replies.texts)
    yes, sure = np.full(count, YES, np.int8), np.ones(count, np.float32)
    return Answers(replies.places, yes, sure, replies.prompt_tokens, replies.completion_tokens)


CHARGED = "charged.bin"  # a file beside a trial's checkpoints


@dataclass
class JudgeFactory:
    """Makes judges for one trial: a method calls `JudgeFactory(...)` as `run.judge(config)`.

    `documents` are the training texts that the method sees, `rows` their rows in the dataset's training split. A
    simulated teacher reads the annotations of `annotated` in a process of its own.
    """

    run: Run
    store: Path
    annotated: AnnotatedDataset
    documents: Texts
    rows: np.ndarray
    labels: Texts
    teachers: list[Teacher]  # of the judges made so far, for the record
    popen: Callable[..., subprocess.Popen[str]] = subprocess.Popen  # starts the process of a simulated teacher
    _judges: list[CachedJudge] = field(default_factory=list)

    def __call__(self, config: TeacherSettings) -> Judge:
        """A judge that asks the teacher named in `config`. Making it asks nothing and loads nothing."""
        teacher: Teacher = registry().thing("teacher", config.name)(config)
        run = self.run
        judge = CachedJudge(
            SubprocessTeacher(teacher, self.annotated, self.popen) if teacher.simulated else teacher,
            len(self._judges),
            JudgementStore(self.store),
            self.documents,
            self.rows,
            self.labels,
            Account(run.ledger, run.budget, lambda: self._charged_pairs, run.report),
        )
        self.teachers.append(teacher)
        self._judges.append(judge)
        return judge

    @cached_property
    def _charged_pairs(self) -> ChargedPairs:
        return ChargedPairs(self.run.checkpoint / CHARGED, self.run.ledger.teacher_calls)

    def close(self) -> None:
        """Close all judges. Closing a judge twice is harmless."""
        for judge in self._judges:
            judge.close()
