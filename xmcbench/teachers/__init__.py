"""The contract of teachers, which judge whether labels fit documents, and of those who ask them for a trial."""

from __future__ import annotations

from typing import Any

from xmcbench.plugins.hookspecs import check_config, check_subclass
from xmcbench.teachers.judges import AnnotatedDataset, Asking, JudgeMaker
from xmcbench.teachers.prompts import PROMPTS, OneLabelPrompt, Prompt, WritingPrompt, read_labels
from xmcbench.teachers.teacher import Answers, Pairs, Replies, Teacher, TeacherConfig, TeacherError, Vectors
from xmcbench.trial.run import NO, UNASKED, UNPARSED, YES, Judge, Judgements

__all__ = [
    "NO",
    "PROMPTS",
    "UNASKED",
    "UNPARSED",
    "YES",
    "AnnotatedDataset",
    "Answers",
    "Asking",
    "Judge",
    "JudgeMaker",
    "Judgements",
    "OneLabelPrompt",
    "Pairs",
    "Prompt",
    "Replies",
    "Teacher",
    "TeacherConfig",
    "TeacherError",
    "Vectors",
    "WritingPrompt",
    "read_labels",
]


def check_plugin(thing: Any) -> None:
    """Raise TypeError if `thing` cannot be registered as a teacher."""
    check_subclass(thing, Teacher, "xmcbench.teachers.Teacher")
    if not isinstance(getattr(thing, "summary", None), str):
        raise TypeError(f"{thing.__name__} has no summary")
    if all(getattr(thing, name) is getattr(Teacher, name) for name in ("ask", "write", "embed")):
        raise TypeError(f"{thing.__name__} does not define ask, write or embed")
    check_config(thing, Teacher)
