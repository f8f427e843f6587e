"""The process of a simulated teacher: `python -m xmcbench.teachers.subprocess_server`.

It reads JSON lines and answers each with one. The first line names the teacher and the dataset, later lines hold the
ids of pairs.
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


def serve(requests: TextIO, replies: TextIO) -> None:
    """Answer requests until there are no more."""

    def reply(content: dict[str, Any]) -> None:
        replies.write(json.dumps(content) + "\n")
        replies.flush()

    server = _Server()
    for line in requests:
        request = json.loads(line)
        try:
            reply({"result": server.start(**request) if "teacher" in request else server.answer(**request)})
        except XMCBenchError as problem:
            reply({"problem": str(problem)})


class _Server:
    def start(self, teacher: dict[str, Any], annotated: dict[str, str]) -> list[Any]:
        """Build the teacher and show it the training data."""
        kind = registry().teacher(teacher["name"])
        self.teacher: Teacher = kind(kind.Config.model_validate_json(json.dumps(teacher)))
        dataset = load(annotated["name"], Path(annotated["data"]), Path(annotated["cache"]))
        if dataset.card.content_hash != annotated["content_hash"]:
            raise XMCBenchError(f"{annotated['name']} changed on disk since the run was planned; run it again")
        self.train = dataset.training_data()
        self.teacher.read_annotations(self.train)
        return []

    def answer(self, documents: list[int], labels: list[int]) -> list[list[list[float]]]:
        """The columns of each of the teacher's `Answers`."""
        pairs = Pairs(
            documents=[self.train.texts[i] for i in documents],
            labels=[self.train.label_texts[i] for i in labels],
            document_ids=np.array(documents, np.int64),
            label_ids=np.array(labels, np.int64),
        )
        return [[column.tolist() for column in vars(answers).values()] for answers in self.teacher.ask(pairs)]


if __name__ == "__main__":
    channel, sys.stdout = sys.stdout, sys.stderr  # what a plugin prints must not mix with the replies
    serve(sys.stdin, channel)
