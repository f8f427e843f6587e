"""Teachers: they judge whether labels fit documents. Their answers are cached in the store and charged to trials."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xmcbench.plugins.hookspecs import check_config, check_subclass, hookimpl
from xmcbench.teachers.annotated import Annotated
from xmcbench.teachers.causal_model import CausalModel
from xmcbench.teachers.endpoint import Endpoint
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


@hookimpl
def register_teachers(register: Callable[[type[Teacher]], None]) -> None:
    """Register the built-in teachers through the hook that third parties use."""
    for teacher in (Endpoint, CausalModel, Annotated):
        register(teacher)


def check_plugin(thing: Any) -> None:
    """Raise TypeError if `thing` cannot be registered as a teacher."""
    check_subclass(thing, Teacher, "xmcbench.teachers.Teacher")
    if not isinstance(getattr(thing, "summary", None), str):
        raise TypeError(f"{thing.__name__} has no summary")
    check_config(thing, Teacher)
