"""The built-in teachers, registered through the hook that third parties use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xmcbench.plugins.hookspecs import check_config, check_subclass, hookimpl
from xmcbench.teachers.annotated import Annotated
from xmcbench.teachers.causal_model import CausalModel
from xmcbench.teachers.endpoint import Endpoint
from xmcbench.teachers.teacher import Teacher


@hookimpl
def register_teachers(register: Callable[[Any], None]) -> None:
    """Register `openai`, `transformers` and `annotated`."""
    for teacher in (Endpoint, CausalModel, Annotated):
        register(teacher)


def check_plugin(thing: Any) -> None:
    """Raise TypeError if `thing` cannot be registered as a teacher."""
    check_subclass(thing, Teacher, "xmcbench.teachers.Teacher")
    if not isinstance(getattr(thing, "summary", None), str):
        raise TypeError(f"{thing.__name__} has no summary")
    check_config(thing, Teacher)
