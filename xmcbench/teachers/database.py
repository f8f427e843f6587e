"""Judgements on disk: one SQLite file in a store, shared by all trials and safe with several processes.

Documents and labels are known by the hash of their text, a teacher by what determines its answers. A text is there
once; a judgement is a row of small numbers that point at it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from xmcbench.trial.judging import NO, UNPARSED, YES
from xmcbench.trial.store import StoreError

FILE = "judgements.sqlite"  # in the root of a store
LOCKS = "locks"  # a folder beside it
VERSION = 1  # of the tables
WAIT_SECONDS = 60.0  # for another process that writes
CHUNK = 500  # values in one statement
WORDS = {YES: "yes", NO: "no", UNPARSED: "unparsed"}
COLUMNS = ("document", "label", "answer", "confidence", "teacher", "identity", "prompt")

_TABLES = """
CREATE TABLE IF NOT EXISTS teacher (
    id INTEGER PRIMARY KEY,
    hash BLOB NOT NULL UNIQUE,  -- of identity and prompt
    title TEXT NOT NULL, identity TEXT NOT NULL, prompt TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS text (id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, content TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS judgement (
    teacher INTEGER NOT NULL, document INTEGER NOT NULL, label INTEGER NOT NULL,
    answer INTEGER NOT NULL, confidence REAL NOT NULL,
    prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,
    PRIMARY KEY (teacher, document, label)
) STRICT, WITHOUT ROWID;
"""


@dataclass
class Found:
    """What is known of N pairs; where `known` is false the rest means nothing."""

    known: np.ndarray  # bool [N]
    answers: np.ndarray  # int8 [N]
    confidence: np.ndarray  # float32 [N]
    prompt_tokens: np.ndarray  # int64 [N]
    completion_tokens: np.ndarray  # int64 [N]

    @classmethod
    def nothing(cls, size: int) -> Found:
        return cls(
            np.zeros(size, bool),
            np.zeros(size, np.int8),
            np.zeros(size, np.float32),
            np.zeros(size, np.int64),
            np.zeros(size, np.int64),
        )

    def at(self, places: np.ndarray) -> Found:
        """The same of some of the pairs."""
        return Found(*(column[places] for column in vars(self).values()))

    def tokens(self, places: np.ndarray) -> np.ndarray:
        """int64: the tokens of prompt and answer of each of the pairs at `places`."""
        return np.asarray(self.prompt_tokens[places] + self.completion_tokens[places])

    def put(self, places: np.ndarray, other: Any) -> None:
        """Enter what `other` (Found or Answers) tells of the pairs at `places`."""
        self.known[places] = True
        for name in ("answers", "confidence", "prompt_tokens", "completion_tokens"):
            getattr(self, name)[places] = getattr(other, name)


class JudgementStore:
    """The judgements of a store. Every fault of file or disk is a `StoreError`."""

    def __init__(self, root: Path) -> None:
        self.path = root / FILE
        with self._faults():
            (root / LOCKS).mkdir(parents=True, exist_ok=True)
            with FileLock(root / LOCKS / FILE):  # two that make the file at once
                self._database = sqlite3.connect(self.path, timeout=WAIT_SECONDS, isolation_level=None)
                self._database.execute("PRAGMA journal_mode = WAL")  # readers and a writer do not wait for each other
                self._make_tables()

    def _make_tables(self) -> None:
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        if version not in (0, VERSION):
            raise StoreError(f"{self.path}: found version {version} of its tables, expected {VERSION}")
        if version == 0:
            with self._transaction():
                for statement in _TABLES.split(";\n"):
                    self._database.execute(statement)
                self._database.execute(f"PRAGMA user_version = {VERSION}")

    def close(self) -> None:
        self._database.close()

    def teacher(self, title: str, identity: dict[str, Any], prompt: str) -> int:
        """The number of the teacher with this identity and this prompt template."""
        told = json.dumps(identity, sort_keys=True)
        key = _hash(json.dumps([told, prompt]))
        with self._faults(), self._transaction():
            self._database.execute(
                "INSERT OR IGNORE INTO teacher (hash, title, identity, prompt) VALUES (?, ?, ?, ?)",
                (key, title, told, prompt),
            )
            (number,) = self._database.execute("SELECT id FROM teacher WHERE hash = ?", (key,)).fetchone()
        return int(number)

    def texts(self, contents: Sequence[str]) -> np.ndarray:
        """int64 [N] numbers of texts; those that are not there yet are put in."""
        keys = [_hash(content) for content in contents]
        with self._faults():
            known = self._numbers(keys)
            if missing := {key: content for key, content in zip(keys, contents, strict=True) if key not in known}:
                with self._transaction():
                    self._database.executemany(
                        "INSERT OR IGNORE INTO text (hash, content) VALUES (?, ?)", missing.items()
                    )
                known |= self._numbers(list(missing))
        return np.fromiter((known[key] for key in keys), np.int64, len(keys))

    def look_up(self, teacher: int, documents: np.ndarray, labels: np.ndarray) -> Found:
        """What is known of the pairs of texts `documents` [N] and `labels` [N]."""
        found = Found.nothing(len(documents))
        wanted = np.unique(documents).tolist()
        rows: list[tuple[float, ...]] = []
        with self._faults():
            for chunk in _chunks(wanted):
                rows += self._database.execute(
                    "SELECT document, label, answer, confidence, prompt_tokens, completion_tokens FROM judgement"
                    f" WHERE teacher = ? AND document IN ({', '.join('?' * len(chunk))})",
                    (teacher, *chunk),
                )
        if not rows:
            return found
        table = np.array(rows, np.float64)  # numbers of texts are far below 2**53
        keys = _pair_keys(table[:, 0].astype(np.int64), table[:, 1].astype(np.int64))
        order = np.argsort(keys)
        asked = _pair_keys(documents, labels)
        at = order[np.searchsorted(keys, asked, sorter=order).clip(max=len(keys) - 1)]
        places = np.flatnonzero(keys[at] == asked)
        told = table[at[places]]
        found.put(places, Found(np.ones(len(places), bool), *told[:, 2:].T))
        return found

    def add(self, teacher: int, documents: np.ndarray, labels: np.ndarray, answers: Any) -> None:
        """Store what a teacher (`Answers` or `Found`) said of N pairs. When this returns it outlives a kill."""
        columns = (answers.answers, answers.confidence, answers.prompt_tokens, answers.completion_tokens)
        rows = zip(documents.tolist(), labels.tolist(), *(column.tolist() for column in columns), strict=True)
        with self._faults(), self._transaction():
            self._database.executemany(
                "INSERT OR IGNORE INTO judgement VALUES (?, ?, ?, ?, ?, ?, ?)", ((teacher, *row) for row in rows)
            )

    def rows(self, title: str = "*") -> Iterator[tuple[str, str, str, float, str, str, str]]:
        """Every judgement of the teachers whose title matches, as `COLUMNS` name it: the texts, the answer in words."""
        with self._faults():
            for document, label, answer, *rest in self._database.execute(
                "SELECT d.content, l.content, j.answer, j.confidence, t.title, t.identity, t.prompt FROM judgement j"
                " JOIN teacher t ON t.id = j.teacher JOIN text d ON d.id = j.document JOIN text l ON l.id = j.label"
                " WHERE t.title GLOB ? ORDER BY j.teacher, j.document, j.label",
                (title,),
            ):
                yield (document, label, WORDS[answer], *rest)

    def _numbers(self, keys: Sequence[bytes]) -> dict[bytes, int]:
        known: dict[bytes, int] = {}
        for chunk in _chunks(keys):
            known |= dict(
                self._database.execute(
                    f"SELECT hash, id FROM text WHERE hash IN ({', '.join('?' * len(chunk))})", tuple(chunk)
                ).fetchall()
            )
        return known

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")  # two that read first and write later would lock each other out
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as problem:
            raise StoreError(f"{self.path}: {problem}") from problem


def _hash(text: str) -> bytes:
    return sha256(text.encode()).digest()[:16]


def _pair_keys(documents: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """[N] one number a pair: fewer than 2**31 texts fit into half of 64 bits."""
    keys: np.ndarray = (documents << 32) | labels
    return keys


def _chunks(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (values[start : start + CHUNK] for start in range(0, len(values), CHUNK))
