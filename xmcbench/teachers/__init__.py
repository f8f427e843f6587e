"""Teachers: they judge whether labels fit documents, and what they say is kept."""

from __future__ import annotations

from xmcbench.teachers.judge import Judge, Judgements
from xmcbench.teachers.prompts import PROMPTS, OneLabelPrompt, Prompt
from xmcbench.teachers.teacher import (
    NO,
    UNASKED,
    UNPARSED,
    YES,
    Answers,
    Pairs,
    Teacher,
    TeacherConfig,
    TeacherError,
)

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
    "Teacher",
    "TeacherConfig",
    "TeacherError",
]
