"""Teachers: they judge whether labels fit documents. Their answers are cached in the store and charged to trials."""

from __future__ import annotations

from xmcbench.teachers.prompts import PROMPTS, OneLabelPrompt, Prompt, WritingPrompt, read_labels
from xmcbench.teachers.teacher import Answers, Pairs, Replies, Teacher, TeacherConfig, TeacherError
from xmcbench.trial.run import NO, UNASKED, UNPARSED, YES, Judge, Judgements

__all__ = [
    "NO",
    "PROMPTS",
    "UNASKED",
    "UNPARSED",
    "YES",
    "Answers",
    "Judge",
    "Judgements",
    "OneLabelPrompt",
    "Pairs",
    "Prompt",
    "Replies",
    "Teacher",
    "TeacherConfig",
    "TeacherError",
    "WritingPrompt",
    "read_labels",
]
