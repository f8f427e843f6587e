"""A simulated teacher in a process of its own: the annotations are there, and nowhere a method could find them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xmcbench.teachers.teacher import Answers, Pairs, Teacher, TeacherError


@dataclass(frozen=True)
class Lesson:
    """The dataset that a simulated teacher knows the annotations of."""

    dataset: str
    content_hash: str
    data: Path
    cache: Path


class Hosted:
    """Stands in for a simulated teacher: asks the real one, in a process that starts with the first question."""

    def __init__(self, teacher: Teacher, lesson: Lesson) -> None:
        self._teacher, self._lesson = teacher, lesson
        self._process: subprocess.Popen[str] | None = None
        self.title, self.template, self.at_once = teacher.title, teacher.template, teacher.at_once

    def identity(self) -> dict[str, Any]:
        return {**self._teacher.identity(), "dataset": self._lesson.content_hash}

    def ask(self, pairs: Pairs) -> Iterator[Answers]:
        process = self._started()
        wanted = {"documents": pairs.document_ids.tolist(), "labels": pairs.label_ids.tolist()}
        for told in self._exchange(process, wanted):
            yield Answers(*(np.array(column, kind) for column, kind in zip(told, _KINDS, strict=True)))

    def close(self) -> None:
        if self._process is not None:
            with self._process as process:  # closes its pipes: it ends when nothing more can come
                process.terminate()
            self._process = None

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            command = [sys.executable, "-P", "-m", "xmcbench.teachers.host"]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            lesson = {name: str(value) for name, value in asdict(self._lesson).items()}
            self._exchange(self._process, {"teacher": self._teacher.config.model_dump(mode="json"), "lesson": lesson})
        return self._process

    def _exchange(self, process: subprocess.Popen[str], question: dict[str, Any]) -> Any:
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise TeacherError(f"teacher {self.title}: its process ended with code {process.wait()}")
        reply = json.loads(line)
        if "problem" in reply:
            raise TeacherError(f"teacher {self.title}: {reply['problem']}")
        return reply["told"]


_KINDS = (np.int64, np.int8, np.float32, np.int64, np.int64)  # of the columns of `Answers`
