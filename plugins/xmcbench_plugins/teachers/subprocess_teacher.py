"""Runs a simulated teacher in a separate process, so that no method can reach the annotations that it reads.

That process is this module, run by `python -m`. It reads JSON lines and answers each with one. The first line names the
teacher and the dataset, later lines hold the ids of pairs, or documents to write about.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from xmcbench.data import TrainingData, load
from xmcbench.errors import XMCBenchError
from xmcbench.plugins.registry import registry
from xmcbench.teachers.judges import AnnotatedDataset
from xmcbench.teachers.teacher import Answers, Pairs, Replies, Teacher, TeacherError, Vectors

_KINDS = (np.int64, np.int8, np.float32, np.int64, np.int64)  # of the columns of `Answers`


class SubprocessTeacher:
    """Asks a simulated teacher in a child process, which starts with the first question."""

    def __init__(
        self,
        teacher: Teacher,
        annotated: AnnotatedDataset,
        popen: Callable[..., subprocess.Popen[str]] = subprocess.Popen,
    ) -> None:
        self._teacher, self._annotated, self._popen = teacher, annotated, popen
        self._process: subprocess.Popen[str] | None = None
        self.title, self.template, self.batch_size = teacher.title, teacher.template, teacher.batch_size

    @property
    def without_answer(self) -> str:
        return self._teacher.without_answer

    @property
    def price(self) -> tuple[float, float]:
        return self._teacher.price

    @property
    def served_as(self) -> set[str]:
        return self._teacher.served_as

    def reads(self, document: str) -> str:
        return self._teacher.reads(document)

    def identity(self) -> dict[str, Any]:
        return {**self._teacher.identity(), "dataset": self._annotated.content_hash}

    def ask(self, pairs: Pairs) -> Iterator[Answers]:
        request = {"documents": pairs.document_ids.tolist(), "labels": pairs.label_ids.tolist()}
        for columns in self._call(self._started(), request):
            yield Answers(*(np.array(column, kind) for column, kind in zip(columns, _KINDS, strict=True)))

    def write(self, documents: Sequence[str], prompt: str, tokens: int) -> Iterator[Replies]:
        request = {"documents": list(documents), "prompt": prompt, "tokens": tokens}
        for places, texts, prompts, completions, answers in self._call(self._started(), request):
            spent = np.array(prompts, np.int64), np.array(completions, np.int64)
            yield Replies(np.array(places, np.int64), texts, spent[0], spent[1], np.array(answers, np.int8))

    def embed(self, texts: Sequence[str]) -> Iterator[Vectors]:
        return self._teacher.embed(texts)  # annotations say nothing about a text alone

    def close(self) -> None:
        if self._process is not None:
            with self._process as process:  # closes the pipes, so that the child has nothing left to read
                process.terminate()
            self._process = None

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            command = [sys.executable, "-P", "-m", "xmcbench_plugins.teachers.subprocess_teacher"]
            self._process = self._popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            annotated = {name: str(value) for name, value in asdict(self._annotated).items()}
            settings = self._teacher.config.model_dump(mode="json")
            self._call(self._process, {"teacher": settings, "annotated": annotated})
        return self._process

    def _call(self, process: subprocess.Popen[str], request: dict[str, Any]) -> Any:
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise TeacherError(f"teacher {self.title}: its process ended with code {process.wait()}")
        reply = json.loads(line)
        if "problem" in reply:
            raise TeacherError(f"teacher {self.title}: {reply['problem']}")
        return reply["result"]


def serve(requests: TextIO, replies: TextIO) -> None:
    """Answer requests until there are no more: the first names the teacher, which the others ask."""
    for line in requests:
        request = json.loads(line)
        batches: Iterator[Answers | Replies] = iter(())
        try:
            if "teacher" in request:
                teacher, train = _built(**request)
            elif "prompt" in request:
                batches = teacher.write(**request)
            else:
                documents, labels = np.array(request["documents"], np.int64), np.array(request["labels"], np.int64)
                texts = [train.texts[i] for i in documents.tolist()], [train.label_texts[i] for i in labels.tolist()]
                batches = teacher.ask(Pairs(*texts, documents, labels))
            reply: dict[str, Any] = {
                "result": [[np.asarray(own).tolist() for own in vars(b).values()] for b in batches]
            }
        except XMCBenchError as problem:
            reply = {"problem": str(problem)}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def _built(teacher: dict[str, Any], annotated: dict[str, str]) -> tuple[Teacher, TrainingData]:
    """The teacher with these settings, which has read the annotations, and the training data."""
    kind = registry().thing("teacher", teacher["name"])
    built: Teacher = kind(kind.Config.model_validate_json(json.dumps(teacher)))
    dataset = load(annotated["name"], Path(annotated["data"]), Path(annotated["cache"]))
    if dataset.card.content_hash != annotated["content_hash"]:
        raise XMCBenchError(f"{annotated['name']} changed on disk since the run was planned; run it again")
    train = dataset.training_data()
    built.read_annotations(train)
    return built, train


if __name__ == "__main__":
    channel, sys.stdout = sys.stdout, sys.stderr  # what a plugin prints must not mix with the replies
    serve(sys.stdin, channel)
