"""The judgements of teachers: one SQLite file in the store, shared by all trials and safe for concurrent processes.

A document or label is identified by the hash of its text, a teacher by everything that determines its answers. Each
text is stored once, and judgements refer to it by its id. Whenever texts and judgements are read, they are checked
against their hashes and checksums.

`export` writes them as a table, row by row, because a store may hold millions.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from filelock import FileLock

from xmcbench.errors import UnknownNameError, XMCBenchError, import_extra
from xmcbench.files.atomic import atomic_write
from xmcbench.files.csv_text import cell
from xmcbench.teachers.teacher import Answers, Replies
from xmcbench.trial.run import NO, UNPARSED, YES
from xmcbench.trial.splitmix64 import mix, splitmix64
from xmcbench.trial.store import StoreError

_log = logging.getLogger(__name__)
FILE = "judgements.sqlite"  # in the root of the store
LOCKS = "locks"  # the folder of lock files, in the root of the store
VERSION = 3  # of the database schema
WAIT_SECONDS = 60.0  # longest wait for a concurrent writer
CHUNK = 500  # values in one SQL statement
ROWS = 10_000  # read at a time
WORDS = {YES: "yes", NO: "no", UNPARSED: "unparsed"}
COLUMNS = ("document", "label", "answer", "confidence", "teacher", "identity", "prompt")

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
    PRIMARY KEY (teacher, document, label)
) STRICT, WITHOUT ROWID;
"""
_INTEGERS = ("teacher", "document", "label", "answer", "prompt_tokens", "completion_tokens", "checksum")
_NAMES = (*_INTEGERS[:4], "confidence", *_INTEGERS[4:])
_JUDGEMENT = np.dtype([(name, np.int64 if name in _INTEGERS else np.float64) for name in _NAMES])
_COLUMNS = ", ".join(_NAMES)


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
                self._create_tables()

    def _create_tables(self) -> None:
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        if version not in (0, VERSION):
            raise StoreError(f"{self.path}: found schema version {version}, expected {VERSION}")
        if version == 0:
            with self._transaction():
                for statement in _TABLES.split(";\n"):
                    self._database.execute(statement)
                self._database.execute(f"PRAGMA user_version = {VERSION}")

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

    def texts(self, contents: Sequence[str]) -> np.ndarray:
        """The ids of texts, int64 [N]. New texts are added."""
        keys = [_hash(content) for content in contents]
        with self._faults():
            known = self._text_ids(keys)
            if missing := {key: content for key, content in zip(keys, contents, strict=True) if key not in known}:
                with self._transaction():
                    self._database.executemany(
                        "INSERT OR IGNORE INTO text (hash, content) VALUES (?, ?)", missing.items()
                    )
                known |= self._text_ids(list(missing))
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
        known: dict[int, str] = {}
        with self._faults():
            for chunk in _chunks(np.unique(ids).tolist()):
                for row_id, key, content in self._database.execute(
                    f"SELECT id, hash, content FROM text WHERE id IN ({_marks(chunk)})", tuple(chunk)
                ):
                    if _hash(content) != key:
                        raise StoreError(f"{self.path}: damaged: text {row_id} differs from its hash")
                    known[row_id] = content
            return [known[row_id] for row_id in ids.tolist()]

    def _about(self, teacher: int, documents: np.ndarray) -> np.ndarray:
        """The intact judgements of a teacher about these documents, text ids [N]."""
        rows: list[tuple[float, ...]] = []
        with self._faults():
            for chunk in _chunks(np.unique(documents).tolist()):
                rows += self._database.execute(
                    f"SELECT {_COLUMNS} FROM judgement WHERE teacher = ? AND document IN ({_marks(chunk)})",
                    (teacher, *chunk),
                )
            return self._without_damaged(np.array(rows, _JUDGEMENT))

    def _without_damaged(self, table: np.ndarray) -> np.ndarray:
        """The judgements whose checksums match; the others are deleted."""
        damaged = table["checksum"] != _checksums(table)
        if damaged.any():
            _log.warning("warning: %s: %d judgements are damaged and are asked for again", self.path, damaged.sum())
            with self._transaction():
                self._database.executemany(
                    "DELETE FROM judgement WHERE teacher = ? AND document = ? AND label = ?",
                    table[["teacher", "document", "label"]][damaged].tolist(),
                )
        intact: np.ndarray = table[~damaged]
        return intact

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
        table["checksum"] = _checksums(table)
        statement = f"INSERT OR IGNORE INTO judgement ({_COLUMNS}) VALUES ({_marks(_NAMES)})"
        with self._faults(), self._transaction():
            self._database.executemany(statement, table.tolist())

    def rows(self, title: str = "*") -> Iterator[tuple[str, str, str, float, str, str, str]]:
        """All judgements of the teachers whose title matches a glob pattern, as tuples of `COLUMNS`.

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

    def _text_ids(self, keys: Sequence[bytes]) -> dict[bytes, int]:
        """The ids of the texts with these hashes, by hash; unknown hashes are left out."""
        known: dict[bytes, int] = {}
        for chunk in _chunks(keys):
            for key, row_id, content in self._database.execute(
                f"SELECT hash, id, content FROM text WHERE hash IN ({_marks(chunk)})", tuple(chunk)
            ):
                if _hash(content) != key:
                    raise StoreError(f"{self.path}: damaged: text {row_id} differs from its hash")
                known[key] = row_id
        return known

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute(
            "BEGIN IMMEDIATE"
        )  # a read lock that is upgraded later could deadlock with another process
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
        except StoreError:
            raise
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


def _marks(values: Sequence[Any]) -> str:
    """The question marks of a statement with these values."""
    return ", ".join("?" * len(values))


def _pair_keys(documents: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """int64 [N], one number per pair. Text ids are below 2**31, so two of them fit in 64 bits."""
    keys: np.ndarray = (documents << 32) | labels
    return keys


def _chunks(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (values[start : start + CHUNK] for start in range(0, len(values), CHUNK))


Rows = Iterable[tuple[Any, ...]]
PARQUET_ROWS = 50_000  # rows in memory while Parquet is written


def writer(form: str, to_file: bool) -> Callable[[Rows, Path | None], int]:
    """The function that writes rows to a file or standard output and returns their number.

    Raises XMCBenchError for an unknown format, or one that cannot be written to standard output.
    """
    writers = {"csv": _csv, "json": _json, "parquet": _parquet}
    if form not in writers:
        raise UnknownNameError("format", form, writers, "--format")
    if form == "parquet" and not to_file:
        raise XMCBenchError("--format parquet: expected a file to write to, --output FILE")
    return writers[form]


def _csv(rows: Rows, output: Path | None) -> int:
    with _opened(output) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        table = csv.writer(text)
        table.writerow(COLUMNS)
        count = 0
        for row in rows:
            table.writerow(map(cell, row))
            count += 1
        text.detach()
    return count


def _json(rows: Rows, output: Path | None) -> int:
    """Write a JSON list of objects, one per line."""
    with _opened(output) as file:
        count = 0
        file.write(b"[")
        for count, row in enumerate(rows, 1):
            line = json.dumps(dict(zip(COLUMNS, row, strict=True)), ensure_ascii=False)
            file.write((",\n" if count > 1 else "\n").encode() + line.encode())
        file.write(b"\n]\n")
    return count


def _parquet(rows: Rows, output: Path | None) -> int:
    arrow = import_extra("pyarrow", "parquet", "--format parquet")
    parquet = import_extra("pyarrow.parquet", "parquet", "--format parquet")
    assert output is not None
    fields = [(name, arrow.float32() if name == "confidence" else arrow.string()) for name in COLUMNS]
    schema = arrow.schema(fields)
    count = 0
    with _opened(output) as file, parquet.ParquetWriter(file, schema) as table:
        iterator = iter(rows)
        while part := list(islice(iterator, PARQUET_ROWS)):
            columns = dict(zip(COLUMNS, zip(*part, strict=True), strict=True))
            table.write_table(arrow.table({name: list(column) for name, column in columns.items()}, schema=schema))
            count += len(part)
    return count


@contextmanager
def _opened(output: Path | None) -> Iterator[BinaryIO]:
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    else:
        with atomic_write(output) as file:
            yield file
