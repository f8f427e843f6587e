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
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
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
from xmcbench.teachers.teacher import CUT, REFUSED, Answers, Pairs, Replies, Teacher, TeacherError, Vectors, has_answer
from xmcbench.trial.budget import Budget, Ledger
from xmcbench.trial.run import NO, UNASKED, UNPARSED, YES, Judge, Judgements, Progress
from xmcbench.trial.splitmix64 import mix
from xmcbench.trial.store import StoreError
from xmcbench_plugins.teachers.charged_pairs import UNANSWERED, ChargedPairs
from xmcbench_plugins.teachers.database import EMBEDDING, FILE, LOCKS, JudgementStore
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
    price: tuple[float, float] = (0.0, 0.0)  # for a million tokens of prompts, and of completions

    def left(self, limit: Literal["teacher_calls", "teacher_tokens", "money"]) -> float:
        """What the budget leaves of a limit."""
        most = getattr(self.budget, limit)
        return math.inf if most is None else max(0, most - getattr(self.ledger, limit))

    def money(self, spent: np.ndarray) -> np.ndarray:
        """float64 [N]: the price of prompts and completions of `spent` [2, N] tokens."""
        return np.asarray(np.array(self.price) @ spent / MILLION)

    def pays_next(self, spent: np.ndarray) -> np.ndarray:
        """bool [N + 1]: whether the budget pays for another question after so many of those that take `spent` [2, N].

        Costs are known only afterwards: the last question may cross a limit of tokens or money.
        """
        enough = np.ones(spent.shape[1] + 1, bool)
        for limit, costs in (("teacher_tokens", spent.sum(axis=0)), ("money", self.money(spent))):
            enough &= np.append(0, costs.cumsum()) < self.left(limit)  # type: ignore[arg-type]
        return enough

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
        prices = self.money(spent)
        ledger.money += float(prices.sum())
        for limit, costs in (("teacher_tokens", spent.sum(axis=0)), ("money", prices)):
            if getattr(self.budget, limit) is not None:  # a trial may exceed this limit by at most one pair
                ledger.note_step(limit, costs.max(initial=0).item())


_log = logging.getLogger(__name__)
TEXTS = 512  # to embed at a time, at least
BLOCK = 8192  # questions looked up and charged at a time
Batch = TypeVar("Batch", Answers, Replies, Vectors)
MILLION = 10**6
BYTES_OF_A_TOKEN = 3  # about, and rather few: by which a batch is cut that might cross a limit


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
        self._teacher, self._store, self._account = teacher, store, replace(account, price=teacher.price)
        self._documents, self._rows, self._labels = documents, rows, labels
        self._identity = teacher.identity()
        self._id = store.teacher(teacher.title, self._identity, teacher.template)
        self._served_as = set(store.served(self._id))
        teacher.served_as.update(self._served_as)
        name = sha256(repr((sorted(self._identity.items()), teacher.template)).encode()).hexdigest()[:16]
        self._lock = FileLock(store.path.parent / LOCKS / f"teacher-{name}")
        self._number, self._first_key = number, number * len(documents) * len(labels)
        self._asked = np.zeros(2, np.int64)  # tokens of prompts and completions that were no answers of the store
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

    def embed(self, texts: Texts, budget: Budget | None) -> np.ndarray:
        """See `EmbeddingJudge`."""
        account = self._account if budget is None else replace(self._account, budget=budget)
        contents = [self._teacher.reads(texts[row]) for row in range(len(texts))]
        teacher = self._store.teacher(self._teacher.title, self._identity, EMBEDDING)
        numbers_N = np.asarray(self._store.texts(contents))
        ids, first, inverse = np.unique(numbers_N, return_index=True, return_inverse=True)
        order = np.argsort(first)  # each distinct text, in the order asked for
        ids = ids[order]
        sizes = np.array([len(contents[place].encode()) for place in first[order].tolist()], np.int64)
        start = sha256(f"embedding {teacher}".encode()).digest()[:8]
        keys = mix(ids + np.int64(int.from_bytes(start, "little", signed=True))) | np.int64(-(2**63))
        vectors: dict[int, np.ndarray] = {}  # by place

        def affordable(places: np.ndarray, spent: np.ndarray) -> int:
            """How many of these texts to ask about at once: the budget is likely to pay for all of them."""
            expected = np.zeros((2, len(places)), np.int64)
            expected[0] = 1 + sizes[places] // BYTES_OF_A_TOKEN
            pays = account.pays_next(np.concatenate([spent, expected], axis=1))[spent.shape[1] :]
            return max(1, int(pays[1:].sum()))

        settled = self._settle(
            teacher,
            keys,
            lambda places: self._store.vectors(teacher, ids[places]),
            lambda places: self._teacher.embed([contents[first[order[place]]] for place in places.tolist()]),
            lambda places, batch: self._store.add_vectors(teacher, ids[places], batch),
            lambda places, batch: vectors.update(zip(places.tolist(), batch.vectors, strict=True)),
            account,
            affordable,
            TEXTS,
        )
        rows = np.argsort(order)[inverse]
        paid = settled[rows]
        rows = rows[: len(rows) if paid.all() else int(np.argmin(paid))]
        found = {len(vectors[row]) for row in set(rows.tolist())}
        if len(found) > 1:
            raise TeacherError(
                f"teacher {self._teacher.title}: its embeddings have {' and '.join(map(str, sorted(found)))} numbers: "
                "its model changed; `revision` keeps models apart"
            )
        return np.stack([vectors[row] for row in rows.tolist()]) if len(rows) else np.zeros((0, 0), np.float32)

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
        account: Account | None = None,
        affordable: Callable[[np.ndarray, np.ndarray], int] = lambda places, _: len(places),
        smallest: int = 1,
    ) -> np.ndarray:
        """Have the questions answered that the trial can pay for, in their order; bool [B]: which.

        The trial pays for them under `keys`, int64 [B]. `look_up` gives what the store knows of the questions at some
        places, `ask` what the teacher replies to them. `store` and `keep` receive these places of a batch: those of the
        teacher's answers, and those of every batch. `affordable` says how many of some places to ask about at once
        after questions that took `spent` [2, N] tokens, of at least `smallest` where there are as many.
        Raises TeacherError where a whole batch has no answer.
        """
        total, size = len(keys), max(smallest, self._teacher.batch_size)
        account = account or self._account
        charged_pairs = account.charged_pairs()
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
                    self._asked += (batch.prompt_tokens.sum(), batch.completion_tokens.sum())
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

        with account.ledger.stage("judge"), self._telling_what_was_paid():
            for start in range(0, total, BLOCK):
                block = np.arange(start, min(start + BLOCK, total))
                recall(block)
                paid = charged_pairs.contains(keys[block])
                due = block[~paid][: int(min(account.left("teacher_calls"), BLOCK))]
                missing = np.sort(np.concatenate([block[paid], due]))
                missing = missing[~known[missing]]
                while len(missing):
                    most = size if teacher in self._answered else min(size, FIRST)
                    before = spent[:, due[due < missing[0]]]
                    if not account.pays_next(before)[-1]:
                        break
                    places, missing = np.split(missing, [affordable(missing[:most], before)])
                    account.report(Progress("judge", int(places[0]) / total))
                    settle(places)
                due = due[: int(np.argmin(np.append(known[due], False)))]
                charged = due[account.pays_next(spent[:, due])[:-1]]
                charged_pairs.add(keys[charged])
                account.charge(spent[:, charged], kinds[charged], int((~fresh[charged]).sum()))
                settled[block[paid]] = known[block[paid]]
                settled[charged] = True
        return settled

    @contextmanager
    def _telling_what_was_paid(self) -> Iterator[None]:
        """Add to an error of the teacher what its answers took that the store did not have before."""
        try:
            yield
        except TeacherError as problem:
            if not (tokens := int(self._asked.sum())):
                raise
            money = float(self._account.money(self._asked[:, None])[0])
            price = f", which cost {money:,.4g}" if money else ""
            raise TeacherError(f"{problem}; asked so far: {tokens:,} tokens{price}") from None

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

    def _check(self, batch: Answers | Replies | Vectors, count: int) -> None:
        """Raise TeacherError for answers to `count` questions that must not be stored."""
        sizes = {len(column) for column in vars(batch).values()}
        sound = len(sizes) == 1 and bool(np.isin(batch.places, np.arange(count)).all())
        sound = sound and bool(np.isin(batch.answers, (YES, NO, UNPARSED, CUT, REFUSED)).all())
        if isinstance(batch, Vectors):
            finite = bool(np.isfinite(batch.vectors).all() and (batch.prompt_tokens >= 0).all())
            sound = sound and batch.vectors.ndim == 2 and finite
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
            judged = answers.known(teacher.identity(), teacher.template)
            embedded = answers.known(teacher.identity(), EMBEDDING)
            return Known(*judged, *embedded[:2])
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
