"""The process of a simulated teacher: `python -m xmcbench.teachers.host` reads JSON lines and answers each with one.

The first line says which teacher and which dataset; the others hold the ids of pairs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from xmcbench.data import load
from xmcbench.errors import XMCBenchError
from xmcbench.plugins.registry import registry
from xmcbench.teachers.teacher import Pairs, Teacher


def serve(questions: TextIO, replies: TextIO) -> None:
    """Answer until no more questions come."""

    def reply(content: dict[str, Any]) -> None:
        replies.write(json.dumps(content) + "\n")
        replies.flush()

    host = _Host()
    for line in questions:
        question = json.loads(line)
        try:
            reply({"told": host.begin(**question) if "teacher" in question else host.answer(**question)})
        except XMCBenchError as problem:
            reply({"problem": str(problem)})


class _Host:
    def begin(self, teacher: dict[str, Any], lesson: dict[str, str]) -> list[Any]:
        kind = registry().teacher(teacher["name"])
        self.teacher: Teacher = kind(kind.Config.model_validate_json(json.dumps(teacher)))
        dataset = load(lesson["dataset"], Path(lesson["data"]), Path(lesson["cache"]))
        if dataset.card.content_hash != lesson["content_hash"]:
            raise XMCBenchError(f"{lesson['dataset']} changed on disk since the run was planned; run it again")
        self.train = dataset.training_data()
        self.teacher.attend(self.train)
        return []

    def answer(self, documents: list[int], labels: list[int]) -> list[list[list[float]]]:
        """The columns of each of the teacher's `Answers`."""
        pairs = Pairs(
            documents=[self.train.texts[i] for i in documents],
            labels=[self.train.label_texts[i] for i in labels],
            document_ids=np.array(documents, np.int64),
            label_ids=np.array(labels, np.int64),
        )
        return [[column.tolist() for column in vars(told).values()] for told in self.teacher.ask(pairs)]


if __name__ == "__main__":
    channel, sys.stdout = sys.stdout, sys.stderr  # what a plugin prints must not get among the replies
    serve(sys.stdin, channel)
