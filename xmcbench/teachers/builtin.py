"""The teachers that come with xmcbench, through the hook that third parties use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xmcbench.plugins.hookspecs import hookimpl
from xmcbench.teachers.annotated import Annotated
from xmcbench.teachers.causal_model import CausalModel
from xmcbench.teachers.endpoint import Endpoint


@hookimpl
def register_teachers(register: Callable[[Any], None]) -> None:
    for teacher in (Endpoint, CausalModel, Annotated):
        register(teacher)
