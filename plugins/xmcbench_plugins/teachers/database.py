"""The judgements of teachers: one SQLite file in the store, shared by all trials and safe for concurrent processes.

Only a yes or a no is stored, never a reply without one. A document or label is identified by the hash of its text, a
teacher by everything that determines its answers. Each text is stored once, and judgements refer to it by its id.
Whenever texts and judgements are read, they are checked against their hashes and checksums.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from xmcbench.teachers.prompts import first_words
from xmcbench.teachers.teacher import Answers, Replies, Vectors
from xmcbench.trial.run import NO, UNPARSED, YES
from xmcbench.trial.splitmix64 import mix, splitmix64
from xmcbench.trial.store import StoreError

_log = logging.getLogger(__name__)
FILE = "judgements.sqlite"  # in the root of the store
LOCKS = "locks"  # the folder of lock files, in the root of the store
VERSION = 6  # of the database schema
WAIT_SECONDS = 60.0  # longest wait for a concurrent writer
CHUNK = 500  # values in one SQL statement
ROWS = 10_000  # read at a time
WORDS = {YES: "yes", NO: "no"}
EMBEDDING = "embedding"  # in place of a prompt

_TABLES = """
CREATE TABLE teacher (
    id INTEGER PRIMARY KEY,
    hash BLOB NOT NULL UNIQUE,  -- of identity and prompt
    title TEXT NOT NULL, identity TEXT NOT NULL, prompt TEXT NOT NULL,
    checksum BLOB NOT NULL  -- of these three texts
) STRICT;
CREATE TABLE text (id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, content TEXT NOT NULL) STRICT;
CREATE TABLE judgement (
    teacher INTEGER NOT NULL, document INTEGER NOT NULL, label INTEGER NOT NULL,
    answer INTEGER NOT NULL, confidence REAL NOT NULL,
    prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,
    checksum INTEGER NOT NULL,  -- of the values before it
    added INTEGER NOT NULL DEFAULT 0,  -- seconds since 1970; 0: nobody noted it
    PRIMARY KEY (teacher, document, label)
) STRICT, WITHOUT ROWID;
"""
_SERVED = """
CREATE TABLE served (  -- the names by which servers called the model of a teacher
    teacher INTEGER NOT NULL, name TEXT NOT NULL, PRIMARY KEY (teacher, name)
) STRICT, WITHOUT ROWID;
"""
_VECTORS = """
CREATE TABLE IF NOT EXISTS vector (
    teacher INTEGER NOT NULL, text INTEGER NOT NULL, content BLOB NOT NULL,  -- float32, little-endian
    prompt_tokens INTEGER NOT NULL,
    checksum BLOB NOT NULL,  -- of the values before it
    added INTEGER NOT NULL,  -- seconds since 1970
    PRIMARY KEY (teacher, text)
) STRICT;
"""
_ADDED = "ALTER TABLE judgement ADD COLUMN added INTEGER NOT NULL DEFAULT 0"
_INTEGERS = ("teacher", "document", "label", "answer", "prompt_tokens", "completion_tokens", "checksum")
_NAMES = (*_INTEGERS[:4], "confidence", *_INTEGERS[4:])
_JUDGEMENT = np.dtype([(name, np.int64 if name in _INTEGERS else np.float64) for name in _NAMES])
_COLUMNS = ", ".join(_NAMES)


@dataclass(frozen=True)
class Rule:
    """Which answers are meant: those to which all of this applies."""

    teacher: str = "*"  # a glob pattern of titles
    served: str = "*"  # of a name by which the server called the model; its answers under other names too
    answer: int | None = None
    before: int | None = None  # stored before, in seconds since 1970; those of which nobody noted it too

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables whose rows may be meant: an embedding is no yes or no."""
        return ("judgement", "vector") if self.answer is None else ("judgement",)

    def condition(self) -> tuple[str, list[Any]]:
        """As SQL about judgements `j` and their teachers `t`, with the values of its question marks."""
        parts: list[tuple[str, Any]] = [("t.title GLOB ?", self.teacher)]
        if self.served != "*":
            parts.append(("EXISTS (SELECT 1 FROM served s WHERE s.teacher = t.id AND s.name GLOB ?)", self.served))
        if self.answer is not None:
            parts.append(("j.answer = ?", self.answer))
        if self.before is not None:
            parts.append(("j.added < ?", self.before))
        return " AND ".join(part for part, _ in parts), [value for _, value in parts]


class JudgementStore:
    """Reads and writes the judgements of a store. Every database or disk error raises `StoreError`."""

    def __init__(self, root: Path) -> None:
        self.path = root / FILE
        with self._faults():
            (root / LOCKS).mkdir(parents=True, exist_ok=True)
            with FileLock(root / LOCKS / FILE):  # two processes may create the database at the same time
                if self.path.exists() and not self.path.stat().st_size:
                    _log.warning("warning: %s: empty, as if it were new; its answers are gone", self.path)
                self.path.touch()  # with the rights that the umask leaves; SQLite's own give a group none to write
                self._database = sqlite3.connect(self.path, timeout=WAIT_SECONDS, isolation_level=None)
                self._database.execute("PRAGMA journal_mode = WAL")  # readers and a writer do not wait for each other
                (version,) = self._database.execute("PRAGMA user_version").fetchone()
                new = {0: (*_TABLES.split(";\n"), _SERVED), 3: (_ADDED, _SERVED), 4: (_ADDED,), 5: ()}
                if version in new:
                    with self._transaction():
                        for statement in (*new[version], _VECTORS):
                            self._database.execute(statement)
                        if version == 3:
                            self._from_version_3()
                        self._database.execute(f"PRAGMA user_version = {VERSION}")
                elif version != VERSION:
                    raise StoreError(f"{self.path}: found schema version {version}, expected {VERSION}")

    def close(self) -> None:
        self._database.close()

    def teacher(self, title: str, identity: dict[str, Any], prompt: str) -> int:
        """The id of the teacher with this identity and prompt template, which is added if it is new."""
        identity_text = json.dumps(identity, sort_keys=True)
        key = _hash(json.dumps([identity_text, prompt]))
        with self._faults(), self._transaction():
            self._database.execute(
                "INSERT OR IGNORE INTO teacher (hash, title, identity, prompt, checksum) VALUES (?, ?, ?, ?, ?)",
                (key, title, identity_text, prompt, _hash(json.dumps([title, identity_text, prompt]))),
            )
            (row_id,) = self._database.execute("SELECT id FROM teacher WHERE hash = ?", (key,)).fetchone()
        return int(row_id)

    def _from_version_3(self) -> None:
        """Drop replies without an answer, and bring answers of endpoints under what they depend on.

        That is, of a document, what the model read of it; limits that cut a document or a reply are no settings of an
        answer any more. Where two teachers become one, the first answer stays.
        """
        self._database.execute(f"DELETE FROM judgement WHERE answer = {UNPARSED}")
        teachers = self._database.execute("SELECT id, title, identity, prompt FROM teacher ORDER BY id").fetchall()
        for old, title, text, prompt in teachers:
            identity: dict[str, Any] = json.loads(text)
            if identity.get("teacher") != "openai" or "max_words" not in identity:
                continue
            words = identity.pop("max_words")
            identity.pop("answer_tokens", None)
            if "{labels}" not in prompt:
                identity.pop("labels_per_prompt", None)
            statement = f"SELECT {_COLUMNS}, content FROM judgement JOIN text ON text.id = document WHERE teacher = ?"
            rows = self._database.execute(statement, (old,)).fetchall()
            table = np.array([row[:-1] for row in rows], _JUDGEMENT)
            intact = table["checksum"] == _checksums(table)
            table["teacher"] = self.teacher(title, identity, prompt)
            table["document"] = self.texts([first_words(row[-1], words) for row in rows])
            self._database.execute("DELETE FROM judgement WHERE teacher = ?", (old,))
            self._insert(table[intact], added=0)

    def served(self, teacher: int) -> list[str]:
        """The names by which servers have called the model of a teacher, sorted."""
        with self._faults():
            found = self._database.execute("SELECT name FROM served WHERE teacher = ? ORDER BY name", (teacher,))
            return [name for (name,) in found]

    def add_served(self, teacher: int, names: Iterable[str]) -> None:
        """Note names by which a server calls the model of a teacher."""
        with self._faults(), self._transaction():
            rows = [(teacher, name) for name in names]
            self._database.executemany("INSERT OR IGNORE INTO served (teacher, name) VALUES (?, ?)", rows)

    def texts(self, contents: Sequence[str]) -> np.ndarray:
        """The ids of texts, int64 [N]. New texts are added."""
        keys = [_hash(content) for content in contents]
        with self._faults():
            known = {key: row_id for row_id, key, _ in self._texts("hash", keys)}
            if missing := {key: content for key, content in zip(keys, contents, strict=True) if key not in known}:
                with self._transaction():
                    self._database.executemany(
                        "INSERT OR IGNORE INTO text (hash, content) VALUES (?, ?)", missing.items()
                    )
                known |= {key: row_id for row_id, key, _ in self._texts("hash", list(missing))}
        return np.fromiter((known[key] for key in keys), np.int64, len(keys))

    def look_up(self, teacher: int, documents: np.ndarray, labels: np.ndarray) -> Answers:
        """The stored answers of a teacher to those of N pairs, text ids `documents` [N] and `labels` [N], that it has.

        A damaged judgement is deleted, with a warning: the teacher is asked again.
        """
        table = self._about(teacher, documents)
        places, rows = _matches(_pair_keys(documents, labels), _pair_keys(table["document"], table["label"]))
        found = table[rows]
        answers, confidence = found["answer"].astype(np.int8), found["confidence"].astype(np.float32)
        return Answers(places, answers, confidence, found["prompt_tokens"], found["completion_tokens"])

    def vectors(self, teacher: int, texts: np.ndarray) -> Vectors:
        """The stored embeddings of those of N texts, ids [N], that a teacher has embedded; damaged ones are deleted."""
        statement, damaged, found = (
            "SELECT text, content, prompt_tokens, checksum FROM vector WHERE teacher = ? AND text",
            [],
            {},
        )
        with self._faults():
            for text, content, tokens, checksum in self._select(statement, np.unique(texts).tolist(), teacher):
                if checksum == _vector_checksum(teacher, text, content, tokens):
                    found[text] = np.frombuffer(content, "<f4"), tokens
                else:
                    damaged.append(text)
            if damaged:
                _log.warning("warning: %s: %d embeddings are damaged and are asked for again", self.path, len(damaged))
                with self._transaction():
                    self._database.executemany(
                        "DELETE FROM vector WHERE teacher = ? AND text = ?", [(teacher, text) for text in damaged]
                    )
        places = [place for place, text in enumerate(texts.tolist()) if text in found]
        rows = [found[int(texts[place])] for place in places]
        stacked = np.stack([row for row, _ in rows]) if rows else np.zeros((0, 0), np.float32)
        return Vectors(np.array(places, np.int64), stacked, np.array([tokens for _, tokens in rows], np.int64))

    def add_vectors(self, teacher: int, texts: np.ndarray, batch: Vectors) -> None:
        """Store the embeddings of M texts, ids [M]; they are durable when this returns."""
        contents = [row.astype("<f4").tobytes() for row in batch.vectors]
        spent, now = batch.prompt_tokens.tolist(), int(time.time())
        rows = [
            (teacher, text, content, tokens, _vector_checksum(teacher, text, content, tokens), now)
            for text, content, tokens in zip(texts.tolist(), contents, spent, strict=True)
        ]
        with self._faults(), self._transaction():
            self._database.executemany("INSERT OR IGNORE INTO vector VALUES (?, ?, ?, ?, ?, ?)", rows)

    def replies(self, teacher: int, documents: np.ndarray) -> Replies:
        """What a teacher wrote about those of N documents, text ids [N], that the store knows.

        It is stored as a label that the teacher accepts.
        """
        table = self._about(teacher, documents)
        places, rows = _matches(documents, table["document"])
        found = table[rows]
        return Replies(places, self.contents(found["label"]), found["prompt_tokens"], found["completion_tokens"])

    def contents(self, ids: np.ndarray) -> list[str]:
        """The texts with these ids [N]. Raises `StoreError` for one that is missing or differs from its hash."""
        with self._faults():
            known = {row_id: content for row_id, _, content in self._texts("id", np.unique(ids).tolist())}
            return [known[row_id] for row_id in ids.tolist()]

    def _texts(self, column: str, values: Sequence[Any]) -> Iterator[tuple[int, bytes, str]]:
        """Id, hash and content of the texts whose id or hash is one of these; those that are not there are left out."""
        for row_id, key, content in self._select(f"SELECT id, hash, content FROM text WHERE {column}", values):
            if _hash(content) != key:
                raise StoreError(f"{self.path}: damaged: text {row_id} differs from its hash")
            yield row_id, key, content

    def _select(self, statement: str, values: Sequence[Any], *others: Any) -> Iterator[Any]:
        """The rows of a statement whose last column is one of `values`, of which there may be many."""
        for start in range(0, len(values), CHUNK):
            chunk = values[start : start + CHUNK]
            yield from self._database.execute(f"{statement} IN ({_marks(chunk)})", (*others, *chunk))

    def _about(self, teacher: int, documents: np.ndarray) -> np.ndarray:
        """The intact judgements of a teacher about these documents, text ids [N]; damaged ones are deleted."""
        wanted, statement = np.unique(documents).tolist(), f"SELECT {_COLUMNS} FROM judgement WHERE teacher = ? AND"
        with self._faults():
            table = np.array(list(self._select(f"{statement} document", wanted, teacher)), _JUDGEMENT)
            damaged = table["checksum"] != _checksums(table)
            if damaged.any():
                _log.warning("warning: %s: %d judgements are damaged and are asked for again", self.path, damaged.sum())
                with self._transaction():
                    self._database.executemany(
                        "DELETE FROM judgement WHERE teacher = ? AND document = ? AND label = ?",
                        table[["teacher", "document", "label"]][damaged].tolist(),
                    )
        return np.asarray(table[~damaged])

    def add_replies(self, teacher: int, documents: np.ndarray, replies: Replies) -> None:
        """Store what a teacher wrote about N documents, text ids [N]."""
        yes, sure = np.full(len(documents), YES, np.int8), np.ones(len(documents), np.float32)
        answers = Answers(replies.places, yes, sure, replies.prompt_tokens, replies.completion_tokens)
        self.add(teacher, documents, self.texts(replies.texts), answers)

    def add(self, teacher: int, documents: np.ndarray, labels: np.ndarray, answers: Answers) -> None:
        """Store the answers of a teacher to N pairs, text ids [N] each; they are durable when this returns."""
        table = np.zeros(len(documents), _JUDGEMENT)
        table["teacher"], table["document"], table["label"] = teacher, documents, labels
        table["answer"], table["confidence"] = answers.answers, answers.confidence
        table["prompt_tokens"], table["completion_tokens"] = answers.prompt_tokens, answers.completion_tokens
        with self._faults(), self._transaction():
            self._insert(table, int(time.time()))

    def _insert(self, table: np.ndarray, added: int) -> None:
        """Add the judgements of a table, but for those that are there, with their checksums."""
        table["checksum"] = _checksums(table)
        statement = f"INSERT OR IGNORE INTO judgement ({_COLUMNS}, added) VALUES ({_marks(_NAMES)}, {added})"
        self._database.executemany(statement, table.tolist())

    def held(self, rule: Rule) -> list[tuple[str, int]]:
        """How many answers a rule covers, by the title of their teacher."""
        condition, values = rule.condition()
        counts: Counter[str] = Counter()
        with self._faults():
            for table in rule.tables:
                statement = f"SELECT t.title, COUNT(*) FROM {table} j JOIN teacher t ON t.id = j.teacher"
                counts.update(dict(self._database.execute(f"{statement} WHERE {condition} GROUP BY t.title", values)))
        return sorted(counts.items())

    def drop(self, rule: Rule) -> int:
        """Delete the answers that a rule covers, so that they are asked for again; returns how many there were.

        Texts stay: trials that run know them by their ids. Of a teacher that is left without an answer the names by
        which servers called its model are forgotten.
        """
        condition, values = rule.condition()
        covered, left = f"SELECT 1 FROM teacher t WHERE t.id = j.teacher AND {condition}", "SELECT teacher FROM"
        count = 0
        with self._faults(), self._transaction():
            for table in rule.tables:
                count += self._database.execute(f"DELETE FROM {table} AS j WHERE EXISTS ({covered})", values).rowcount
            self._database.execute(f"DELETE FROM served WHERE teacher NOT IN ({left} judgement UNION {left} vector)")
        return count

    def known(self, identity: dict[str, Any], prompt: str) -> tuple[int, int, int]:
        """How many pairs a teacher has answered, and the tokens of their prompts and of their answers."""
        key = _hash(json.dumps([json.dumps(identity, sort_keys=True), prompt]))
        table, answers = ("vector", "0") if prompt == EMBEDDING else ("judgement", "j.completion_tokens")
        statement = (
            f"SELECT COUNT(*), TOTAL(j.prompt_tokens), TOTAL({answers}) FROM {table} j"
            " JOIN teacher t ON t.id = j.teacher WHERE t.hash = ?"
        )
        with self._faults():
            count, prompts, completions = self._database.execute(statement, (key,)).fetchone()
        return int(count), int(prompts), int(completions)

    def rows(self, title: str = "*") -> Iterator[tuple[str, str, str, float, str, str, str]]:
        """All judgements of the teachers whose title matches a glob pattern, as the columns of an export.

        Raises `StoreError` at the first that is damaged, or refers to a damaged text or teacher.
        """
        own = ", ".join(f"j.{name}" for name in _NAMES)
        with self._faults():
            for checksum, *texts in self._database.execute("SELECT checksum, title, identity, prompt FROM teacher"):
                if _hash(json.dumps(texts)) != checksum:
                    raise StoreError(f"{self.path}: damaged: a teacher differs from its checksum")
            found = self._database.execute(
                f"SELECT {own}, d.hash, d.content, l.hash, l.content, t.hash, t.title, t.identity, t.prompt"
                " FROM judgement j LEFT JOIN teacher t ON t.id = j.teacher"
                " LEFT JOIN text d ON d.id = j.document LEFT JOIN text l ON l.id = j.label"
                " WHERE t.title GLOB ? OR t.title IS NULL ORDER BY j.teacher, j.document, j.label",
                (title,),
            )
            while rows := found.fetchmany(ROWS):
                table = np.array([row[: len(_NAMES)] for row in rows], _JUDGEMENT)
                if bool((table["checksum"] != _checksums(table)).any()):
                    raise StoreError(f"{self.path}: damaged: a judgement differs from its checksum")
                for row in rows:
                    document_key, document, label_key, label, teacher_key, *teacher = row[len(_NAMES) :]
                    texts = {document_key: document, label_key: label, teacher_key: json.dumps(teacher[1:])}
                    if any(_hash(str(text)) != key for key, text in texts.items()):
                        raise StoreError(f"{self.path}: damaged: a text of a judgement differs from its hash")
                    title, identity, prompt = teacher
                    yield document, label, WORDS[row[3]], row[4], title, identity, prompt

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        if self._database.in_transaction:  # a part of another one
            yield
            return
        with self._database:
            # A read lock that is upgraded later could deadlock with another process.
            self._database.execute("BEGIN IMMEDIATE")
            yield

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as problem:
            raise StoreError(f"{self.path}: {problem}") from problem
        except (LookupError, OverflowError, TypeError, ValueError) as problem:  # values that no row should have
            raise StoreError(f"{self.path}: damaged: {problem!r}") from problem


def _matches(wanted: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The places of those of the `wanted` keys [N] that are among `keys`, and where these have them first."""
    known, rows = np.unique(keys, return_index=True)
    nearest = np.searchsorted(known, wanted).clip(max=max(0, len(known) - 1))
    places = np.flatnonzero(known[nearest] == wanted) if len(known) else np.zeros(0, np.int64)
    return places, rows[nearest[places]]


def _hash(text: str) -> bytes:
    return sha256(text.encode()).digest()[:16]


def _checksums(table: np.ndarray) -> np.ndarray:
    """int64 [N]: a hash of all columns but the last, by SplitMix64."""
    total = np.zeros(len(table), np.int64)
    for name in _NAMES[:-1]:
        total = mix(total * 31 + splitmix64(np.ascontiguousarray(table[name]).view(np.int64)))
    return total


def _vector_checksum(teacher: int, text: int, content: bytes, tokens: int) -> bytes:
    return sha256(repr((teacher, text, tokens)).encode() + content).digest()[:16]


def _marks(values: Sequence[Any]) -> str:
    """The question marks of a statement with these values."""
    return ", ".join("?" * len(values))


def _pair_keys(documents: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """int64 [N], one number per pair. Text ids are below 2**31, so two of them fit in 64 bits."""
    return np.asarray((documents << 32) | labels)
