"""The judge of a trial: looks answers up in the store, asks the teacher for the missing ones, charges all of them.

The trial pays within the limits of its budget, once for each pair, or document that the teacher writes about. Replies
without an answer do not enter the store: the trial that asked keeps them beside its checkpoints, so that a killed trial
resumes without asking again, and drops them when it fails, so that its next attempt asks again. Legend: N pairs as the
method asks for them, B distinct questions: pairs, or documents.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from filelock import FileLock

from xmcbench.data.dataset import Texts
from xmcbench.errors import XMCBenchError
from xmcbench.files.network import allow_network
from xmcbench.plugins.hookspecs import hookimpl
from xmcbench.teachers.judges import Asking, JudgeMaker, Known
from xmcbench.teachers.teacher import CUT, REFUSED, Answers, Pairs, Replies, Teacher, TeacherError, has_answer
from xmcbench.trial.budget import Budget, Ledger
from xmcbench.trial.run import NO, UNASKED, UNPARSED, YES, Judge, Judgements, Progress
from xmcbench.trial.splitmix64 import mix
from xmcbench.trial.store import StoreError
from xmcbench_plugins.teachers.charged_pairs import UNANSWERED, ChargedPairs
from xmcbench_plugins.teachers.database import FILE, LOCKS, JudgementStore
from xmcbench_plugins.teachers.subprocess_teacher import SubprocessTeacher

FIRST = 32  # questions of the first batch: until one is answered, nobody knows whether replies can be read
FEW = 8  # replies that may all hold no answer, by chance


@dataclass(frozen=True)
class Account:
    """Charges pairs to a trial's ledger, within its budget."""

    ledger: Ledger
    budget: Budget
    charged_pairs: Callable[[], ChargedPairs]  # called once the ledger of a resumed trial is restored
    report: Callable[[Progress], None] = lambda _: None

    def left(self, unit: Literal["calls", "tokens"]) -> float:
        """What the budget leaves of the teacher's calls or tokens."""
        limit = getattr(self.budget, f"teacher_{unit}")
        return math.inf if limit is None else max(0, limit - getattr(self.ledger, f"teacher_{unit}"))

    def charge(self, spent: np.ndarray, kinds: np.ndarray, cached: int) -> None:
        """Charge pairs whose prompts and completions took `spent` [2, N] tokens; `cached` of them were in the store.

        `kinds`, int8 [N], are YES or NO, or tell why there is no answer.
        """
        ledger, (prompt_tokens, completion_tokens) = self.ledger, spent.sum(axis=1).tolist()
        ledger.teacher_calls += spent.shape[1]
        ledger.teacher_cached += cached
        ledger.teacher_unparsed += int((~has_answer(kinds)).sum())
        ledger.teacher_cut += int((kinds == CUT).sum())
        ledger.teacher_refused += int((kinds == REFUSED).sum())
        ledger.teacher_prompt_tokens += prompt_tokens
        ledger.teacher_completion_tokens += completion_tokens
        if self.budget.teacher_tokens is not None:  # a trial may exceed this limit by at most one pair
            dearest = int(spent.sum(axis=0).max(initial=0))
            ledger.largest_step["teacher_tokens"] = max(ledger.largest_step.get("teacher_tokens", 0), dearest)


_log = logging.getLogger(__name__)
BLOCK = 8192  # questions looked up and charged at a time
Batch = TypeVar("Batch", Answers, Replies)


class CachedJudge(AbstractContextManager["CachedJudge"]):
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
        self._served_as = set(store.served(self._id))
        teacher.served_as.update(self._served_as)
        name = sha256(repr((sorted(self._identity.items()), teacher.template)).encode()).hexdigest()[:16]
        self._lock = FileLock(store.path.parent / LOCKS / f"teacher-{name}")
        self._number, self._first_key = number, number * len(documents) * len(labels)
        # By ids in the store, of teacher and prompt: replies without an answer since the last one with an answer.
        self._silent: Counter[int] = Counter()
        self._answered: set[int] = set()  # those that have answered this judge
        self._document_texts = np.zeros(len(documents), np.int64)  # ids in the store; 0: not looked up yet
        self._label_texts = np.zeros(len(labels), np.int64)

    def __call__(self, document_ids: np.ndarray, label_ids: np.ndarray) -> Judgements:
        """See `Judge`."""
        documents, labels = np.asarray(document_ids, np.int64), np.asarray(label_ids, np.int64)
        self._check_ids(documents, labels)
        _, first, inverse = np.unique(documents * len(self._labels) + labels, return_index=True, return_inverse=True)
        order = np.argsort(first)
        documents, labels = documents[first[order]], labels[first[order]]  # each distinct pair, in the order asked for
        answers, confidence = np.full(len(order), UNASKED, np.int8), np.zeros(len(order), np.float32)

        def ids(places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return (
                self._text_ids(documents[places], self._document_texts, self._documents),
                self._text_ids(labels[places], self._label_texts, self._labels),
            )

        def ask(places: np.ndarray) -> Iterator[Answers]:
            pairs = Pairs(
                documents=[self._documents[int(i)] for i in documents[places]],
                labels=[self._labels[int(i)] for i in labels[places]],
                document_ids=self._rows[documents[places]],
                label_ids=labels[places],
            )
            return self._teacher.ask(pairs)

        def keep(places: np.ndarray, batch: Answers) -> None:
            answers[places] = np.where(has_answer(batch.answers), batch.answers, UNPARSED)
            confidence[places] = batch.confidence

        answered = self._settle(
            self._id,
            self._first_key + documents * len(self._labels) + labels,
            lambda places: self._store.look_up(self._id, *ids(places)),
            ask,
            lambda places, batch: self._store.add(self._id, *ids(places), batch),
            keep,
        )
        answers[answered & (answers == UNASKED)] = UNPARSED  # what this trial was told before it was killed
        answers[~answered], confidence[~answered] = UNASKED, 0
        back = np.argsort(order)[inverse]
        return Judgements(answers[back], confidence[back])

    def write(self, document_ids: np.ndarray, prompt: str, tokens: int) -> list[str | None]:
        """See `Judge`."""
        documents = np.asarray(document_ids, np.int64)
        self._check_ids(documents, np.zeros_like(documents))
        distinct = np.array(list(dict.fromkeys(documents.tolist())), np.int64)
        written: dict[int, str] = {}  # by document
        teacher = self._store.teacher(self._teacher.title, {**self._identity, "written tokens": tokens}, prompt)

        def ids(places: np.ndarray) -> np.ndarray:
            return self._text_ids(distinct[places], self._document_texts, self._documents)

        start = sha256(repr((self._number, prompt, tokens)).encode()).digest()[:8]
        keys = mix(distinct + np.int64(int.from_bytes(start, "little", signed=True)))
        answered = self._settle(
            teacher,
            keys | np.int64(-(2**63)),  # those of pairs are not negative
            lambda places: self._store.replies(teacher, ids(places)),
            lambda places: self._teacher.write([self._documents[int(i)] for i in distinct[places]], prompt, tokens),
            lambda places, batch: self._store.add_replies(teacher, ids(places), batch),
            lambda places, batch: written.update(zip(distinct[places].tolist(), batch.texts, strict=True)),
        )
        paid = set(distinct[answered].tolist())
        return [written.get(document, "") if document in paid else None for document in documents.tolist()]

    def close(self) -> None:
        self._teacher.close()
        self._store.close()

    def __exit__(self, *problem: object) -> None:
        self.close()

    def _check_ids(self, documents: np.ndarray, labels: np.ndarray) -> None:
        """Raise XMCBenchError unless both are ids of shape [N] within range."""
        if documents.ndim != 1 or documents.shape != labels.shape:
            raise XMCBenchError(f"pairs to judge have shapes {documents.shape} and {labels.shape}, expected [N] both")
        for kind, ids, size in (("document", documents, len(self._documents)), ("label", labels, len(self._labels))):
            if len(ids) and not 0 <= ids.min() <= ids.max() < size:
                wrong = ids[(ids < 0) | (ids >= size)][0]
                raise XMCBenchError(f"{kind} {wrong} of a pair to judge is out of range, expected one of 0..{size - 1}")

    def _settle(
        self,
        teacher: int,
        keys: np.ndarray,
        look_up: Callable[[np.ndarray], Batch],
        ask: Callable[[np.ndarray], Iterator[Batch]],
        store: Callable[[np.ndarray, Batch], None],
        keep: Callable[[np.ndarray, Batch], None],
    ) -> np.ndarray:
        """Have the questions answered that the trial can pay for, in their order; bool [B]: which.

        The trial pays for them under `keys`, int64 [B]. `look_up` gives what the store knows of the questions at some
        places, `ask` what the teacher replies to them. `store` and `keep` receive these places of a batch: those of the
        teacher's answers, and those of every batch. Raises TeacherError where a whole batch has no answer.
        """
        total, size = len(keys), self._teacher.batch_size
        account, charged_pairs = self._account, self._account.charged_pairs()
        unanswered = charged_pairs.unanswered
        known, fresh, settled = np.zeros((3, total), bool)  # fresh: the teacher replied just now, for this trial
        kinds, spent = np.full(total, YES, np.int8), np.zeros((2, total), np.int64)  # spent: tokens of both texts

        def note(places: np.ndarray, batch: Batch) -> None:
            places = places[batch.places]
            known[places], kinds[places] = True, batch.answers
            spent[:, places] = batch.prompt_tokens, batch.completion_tokens
            keep(places, batch)

        def recall(places: np.ndarray) -> None:
            """Note what the store knows, and what this trial was told without an answer."""
            batch = look_up(places)
            note(places, batch)
            self._answered |= {teacher} if len(batch.places) else set()
            found, rows = unanswered.look_up(keys[places])
            known[places[found]], kinds[places[found]] = True, rows["kind"]
            spent[:, places[found]] = rows["prompt_tokens"], rows["completion_tokens"]

        def settle(places: np.ndarray) -> None:
            """Ask the teacher, and store its answers; one process at a time: the others find them in the store."""
            with self._lock, allow_network():
                recall(places)
                missing = places[~known[places]]
                for batch in ask(missing) if len(missing) else ():
                    self._check(batch, len(missing))
                    answers = has_answer(batch.answers)
                    asked = missing[batch.places]
                    store(asked[answers], _part(batch, answers))
                    note(missing, batch)
                    unanswered.add(keys[asked[~answers]], kinds[asked[~answers]], spent[:, asked[~answers]])
            fresh[missing] = True
            self._note_served()
            if not known[missing].all():
                count = int(known[missing].sum())
                raise TeacherError(f"teacher {self._teacher.title}: replied to {count} of {len(missing)} questions")
            if has_answer(kinds[missing]).any():
                self._answered.add(teacher)
                self._silent[teacher] = 0
                return
            self._silent[teacher] += len(missing)
            if self._silent[teacher] >= (max(size, FIRST) if teacher in self._answered else FEW):
                raise TeacherError(self._silence(self._silent[teacher], kinds[missing]))

        with account.ledger.stage("judge"):
            for start in range(0, total, BLOCK):
                block = np.arange(start, min(start + BLOCK, total))
                recall(block)
                paid = charged_pairs.contains(keys[block])
                calls, tokens = account.left("calls"), account.left("tokens")
                due = block[~paid][: int(min(calls, BLOCK))]
                missing = np.sort(np.concatenate([block[paid], due]))
                missing = missing[~known[missing]]
                while len(missing):
                    places, missing = np.split(missing, [size if teacher in self._answered else min(size, FIRST)])
                    account.report(Progress("judge", int(places[0]) / total))
                    if spent[:, due[due < places[0]]].sum() >= tokens:
                        break
                    settle(places)
                due = due[: int(np.argmin(np.append(known[due], False)))]
                before = spent[:, due].sum(axis=0).cumsum() - spent[:, due].sum(axis=0)
                charged = due[before < tokens]  # the last may cross the limit
                charged_pairs.add(keys[charged])
                account.charge(spent[:, charged], kinds[charged], int((~fresh[charged]).sum()))
                settled[block[paid]] = known[block[paid]]
                settled[charged] = True
        return settled

    def _note_served(self) -> None:
        """Store the names by which the server calls the teacher's model; one that it did not have before is told."""
        if new := self._teacher.served_as - self._served_as:
            self._store.add_served(self._id, new)
            if before := sorted(self._served_as):
                _log.warning(
                    "warning: teacher %s: its server now calls the model %s, earlier answers are of %s; "
                    "`revision` keeps models apart",
                    *(self._teacher.title, " and ".join(sorted(new)), " and ".join(before)),
                )
            self._served_as |= new

    def _silence(self, count: int, kinds: np.ndarray) -> str:
        """The message where none of the last `count` replies holds an answer; `kinds` are those of the last batch."""
        parts = {"cut": CUT, "refused": REFUSED}
        counts = [f"{number} {name}" for name, kind in parts.items() if (number := int((kinds == kind).sum()))]
        reasons = f" ({', '.join(counts)})" if counts else ""
        hint = f"; {self._teacher.without_answer}" if self._teacher.without_answer else ""
        return f"teacher {self._teacher.title}: none of {count} replies holds an answer{reasons}{hint}"

    def _text_ids(self, ids: np.ndarray, known: np.ndarray, texts: Texts) -> np.ndarray:
        """The store's ids [B] of the texts with these `ids`; `known` keeps those that were looked up."""
        unknown = np.unique(ids[known[ids] == 0])
        read = self._teacher.reads if texts is self._documents else str
        known[unknown] = self._store.texts([read(texts[int(i)]) for i in unknown])
        return np.asarray(known[ids])

    def _check(self, batch: Answers | Replies, count: int) -> None:
        """Raise TeacherError for answers to `count` questions that must not be stored."""
        sizes = {len(column) for column in vars(batch).values()}
        sound = len(sizes) == 1 and np.isin(batch.places, np.arange(count)).all()
        sound = sound and np.isin(batch.answers, (YES, NO, UNPARSED, CUT, REFUSED)).all()
        if not sound or (isinstance(batch, Answers) and not np.isfinite(batch.confidence).all()):
            raise TeacherError(f"teacher {self._teacher.title}: its answers do not fit what it was asked about")


def _part(batch: Batch, chosen: np.ndarray) -> Batch:
    """The chosen ones, bool [M], of a batch."""
    if chosen.all():
        return batch
    columns = {
        name: np.asarray(column, dtype=object if name == "texts" else None) for name, column in vars(batch).items()
    }
    return type(batch)(**{name: column[chosen] for name, column in columns.items()})


CHARGED = "charged.bin"  # a file beside a trial's checkpoints


class CachedJudges(JudgeMaker):
    """Makes judges for one trial, whose answers are in its store."""

    name = "cached"

    def __init__(self, asking: Asking) -> None:
        super().__init__(asking)
        self._judges: list[CachedJudge] = []

    @classmethod
    def known(cls, store: Path, teacher: Teacher) -> Known:
        """What the file of answers holds; where there is none, none is made."""
        if not (store / FILE).is_file():
            return Known()
        answers = JudgementStore(store)
        try:
            return Known(*answers.known(teacher.identity(), teacher.template))
        finally:
            answers.close()

    def judge(self, teacher: Teacher) -> Judge:
        """A judge that asks the teacher. Making it asks nothing and loads nothing."""
        asking, run = self.asking, self.asking.run
        judge = CachedJudge(
            SubprocessTeacher(teacher, asking.annotated, asking.popen) if teacher.simulated else teacher,
            len(self._judges),
            JudgementStore(asking.store),
            asking.documents,
            asking.rows,
            asking.labels,
            Account(run.ledger, run.budget, lambda: self._charged_pairs, run.report),
        )
        self._judges.append(judge)
        return judge

    @cached_property
    def _charged_pairs(self) -> ChargedPairs:
        return ChargedPairs(self.asking.run.checkpoint / CHARGED, self.asking.run.ledger.teacher_calls)

    def close(self, problem: BaseException | None = None) -> None:
        """Close all judges. After a failure of the trial its next attempt asks again what has no answer."""
        for judge in self._judges:
            judge.close()
        if isinstance(problem, Exception) and not isinstance(problem, OSError | StoreError):
            (self.asking.run.checkpoint / UNANSWERED).unlink(missing_ok=True)


@hookimpl
def register_judges(register: Callable[[type[JudgeMaker]], None]) -> None:
    """Register the judges that cache answers."""
    register(CachedJudges)
